"""meta.properties: whose directory it is, as a Kafka broker writes it and asks for it."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from oncelog.log.checkpoint import META_PROPERTIES, read_properties

from ..golden_cases import GOLDEN
from .brokers import opened

if TYPE_CHECKING:
    from pathlib import Path


def _shape(text: str) -> str:
    """The file with its values and its time left out."""
    text = re.sub(r"=.*", "=", text)
    return re.sub(r"#\w{3} \w{3} \d\d \d\d:\d\d:\d\d UTC \d{4}", "#time", text)


def test_a_new_directory_says_whose_it_is_in_the_lines_of_a_kafka_broker(tmp_path: Path) -> None:
    with opened(tmp_path, config={"node.id": 7}):
        text = (tmp_path / META_PROPERTIES).read_text()
    kafkas = (GOLDEN / "txn-mixed" / "data" / META_PROPERTIES).read_text()
    assert "#time" in _shape(text)
    assert _shape(text) == _shape(kafkas)
    found = read_properties(str(tmp_path / META_PROPERTIES))
    assert (found["version"], found["node.id"]) == ("1", "7")
    assert len(found["cluster.id"]) == len(found["directory.id"]) == 22
    assert found["cluster.id"] != found["directory.id"]


def test_the_identity_stays_over_restarts_and_is_made_again_when_it_is_lost(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    before = (tmp_path / META_PROPERTIES).read_bytes()
    with opened(tmp_path):
        assert (tmp_path / META_PROPERTIES).read_bytes() == before
    (tmp_path / META_PROPERTIES).unlink()
    with opened(tmp_path):
        assert (tmp_path / META_PROPERTIES).exists()


def test_an_adopted_directory_keeps_the_identity_that_it_has(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / "txn-mixed" / "data", data)
    before = (data / META_PROPERTIES).read_bytes()
    with opened(data, adopt=True):
        pass
    assert (data / META_PROPERTIES).read_bytes() == before
