"""What a real Kafka is shown holds what it should, and can be said in Kafka's words. No broker is needed for this."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncelog
from interop import dump, history
from oncelog.segment.batch import Attributes, Codec, scan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history")
    directory = history.open_directory(path)
    history.write(directory)
    directory.close()
    return path


def test_the_history_holds_every_kind_of_thing(written: Path) -> None:
    """Goal: the comparison with a broker does not pass for want of anything to compare.
    Method: look for each kind in what was written."""
    with oncelog.open(written, read_only=True) as log:
        assert {topic: len(numbers) for topic, numbers in log.topics().items()} == history.TOPICS
        open_one = log.partition("transactions", 0)
        assert open_one.last_stable_offset < open_one.log_end_offset, "a transaction is left open"
        assert len(open_one.log.segments) > 5
        assert len(open_one.aborted_transactions(0, open_one.log_end_offset)) > 5
        ended = log.partition("ended", 0)
        assert ended.last_stable_offset == ended.log_end_offset
        assert log.partition("shortened", 0).log_start_offset > 0
        assert [entry.epoch for entry in log.partition("cut", 0).epochs.entries] == [0, 1]
        offsets = [record.offset for record in log.read("compacted", 0)]
        assert offsets[-1] - offsets[0] > 2 * len(offsets), "most of it was compacted away"
        heads = [scan(segment.view()) for segment in log.partition("compacted", 0).log.segments]
        assert any((rows["attributes"] & int(Attributes.DELETE_HORIZON)).any() for rows in heads)
        assert any((rows["record_count"] == 0).any() for rows in heads)
        assert log.partition("empty", 0).log_end_offset == 0
        assert {record.timestamp_type for record in log.read("stamped", 0)} == {1}
        for codec in Codec:
            first = log.partition("codecs", int(codec)).log.segments[0].view()
            assert int(scan(first)["attributes"][0]) & int(Attributes.CODEC_MASK) == int(codec)
            found = [(one.key, one.value, one.headers) for one in log.read("codecs", int(codec))]
            assert any(key is None for key, _, _ in found)
            assert any(value is None for _, value, _ in found)
            assert any(content is None for _, _, headers in found for _, content in headers)


def test_every_file_can_be_said_in_the_words_of_the_tool(written: Path) -> None:
    """Goal: each suffix has a rendering, so that no file escapes the comparison.
    Method: render all files of the directory but those that Kafka's tool does not read."""
    seen = dict.fromkeys(dump.EXPECTED, 0)
    for path in written.glob("*/0*"):
        seen[path.suffix] += len(list(dump.EXPECTED[path.suffix](path)))
    assert all(seen.values()), seen
