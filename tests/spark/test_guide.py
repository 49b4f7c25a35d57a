"""The guide's programs run on a real Spark, and print what stands below them."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "spark.md"
# Not "python": those are run without a Spark, with the programs of all other guides.
FENCE = re.compile(r"^```(py|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_programs_of_the_guide_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: as one program, in a folder of its own; a path is made absolute where Spark's own folder is another."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"spark": spark}
    output = ""
    for language, text in FENCE.findall(GUIDE.read_text()):
        if language == "py":
            program = text
            for name in ("data", "checkpoint"):
                program = program.replace(f'"{name}"', repr(str(tmp_path / name)))
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(program, GUIDE.name, "exec"), names)  # noqa: S102
            output = printed.getvalue()
        else:
            assert text == output
