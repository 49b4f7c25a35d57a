"""What all commands share: they start quickly, help, suggest, and end every mistake with one sentence."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

import oncelog
from oncelog.cli.main import cli

from ..golden_cases import GOLDEN
from .running import printed, refused, run_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONCELOG = [sys.executable, "-m", "oncelog"]
KAFKA = GOLDEN / "txn-offsets/data"
OF_THE_DIRECTORY = ("topics", "produce", "consume", "offsets", "groups")


def commands(
    group: click.Group, names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*names, name))
        else:
            yield (*names, name), command


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    printed("topics", "create", "orders", "--partitions", "2", "--data", path)
    return path


# ---------------------------------------------------------------- help


def test_every_command_helps_with_an_example_and_speaks_json() -> None:
    for names, command in commands(cli, ()):
        text = printed(*names, "--help")
        assert f"oncelog {' '.join(names)}" in text, names
        assert "Example" in text, names
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in options or names == ("bench", "report"), names  # whose input is JSON
        if names[0] in OF_THE_DIRECTORY:
            assert "--data" in options, names


def test_the_list_of_commands_is_printed_without_importing_them() -> None:
    program = (
        "import sys, oncelog.cli.main as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(n.startswith('oncelog.cli.') and n.split('.')[2] in ('topics', 'groups', 'consume')"
        " for n in sys.modules) or 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, stdout=subprocess.DEVNULL)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "list"),
        ("topics", "describe"),
        ("offsets", "get"),
        ("groups", "list"),
        ("groups", "describe", "--all-groups"),
        ("consume", "in"),
        ("consume", "__consumer_offsets"),
    ],
)
def test_a_command_that_prints_text_loads_neither_pyarrow_nor_pandas(
    words: tuple[str, ...],
) -> None:
    arguments = [*words, "--data", str(KAFKA)]
    program = (
        f"import sys, oncelog.cli.main as m\ntry: m.main({arguments!r})\nexcept SystemExit as e: assert not e.code\n"
        "sys.exit(bool({'pyarrow', 'pandas', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, stdout=subprocess.DEVNULL)
    assert done.returncode == 0


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("topcs", "list"), "No such command 'topcs'. Did you mean topics"),
        (("topics", "descibe"), "No such command 'descibe'. Did you mean describe"),
        (("topics", "list", "--dta", "x"), "No such option '--dta'. Did you mean '--data'?"),
        (("groups", "reset-offsets", "--to-erliest"), "Did you mean"),
        (("topics", "list"), "Missing option '--data'"),
        (
            ("consume", "--topic", "x"),
            "Topics are named without one, as in 'oncelog consume orders'",
        ),
        (("groups", "describe", "--group", "x"), "Groups are named without one"),
        (("topics", "list", "--bootstrap-server", "x"), "--data DIR names the directory"),
        (("verify", "--data", "x"), "The directory is named without one"),
        (("topics", "list", "--topic", "x"), "No such option '--topic'."),
    ],
)
def test_a_slip_of_the_finger_gets_a_suggestion(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONCELOG_DATA", raising=False)
    assert sentence in refused(*words)


def test_a_directory_that_cannot_be_used_is_told_in_one_sentence(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    file = tmp_path / "file"
    file.touch()
    cases = {
        tmp_path / "nowhere": f"There is no directory {tmp_path / 'nowhere'}.",
        file: f"{file} is a file, not a data directory.",
        empty: f"{empty} is not a log directory: there is neither oncelog.metadata nor",
        KAFKA / "in-0": "is one partition's directory: name the data directory that it is in.",
    }
    for path, sentence in cases.items():
        for words in (
            ("topics", "list"),
            ("consume", "in"),
            ("groups", "list"),
            ("offsets", "get"),
        ):
            assert sentence in refused(*words, "--data", path)


def test_a_kafka_brokers_directory_is_written_only_when_it_is_adopted() -> None:
    assert "--adopt takes it over for good" in refused("topics", "create", "x", "--data", KAFKA)


def test_a_directory_in_use_is_told_with_the_pid_of_its_writer(data: Path) -> None:
    """Goal: the writer is named, and looking works beside it.
    Method: a process of its own holds the directory."""
    program = (
        "import sys, oncelog\n"
        f"with oncelog.open({str(data)!r}) as log:\n"
        "    print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        sentence = refused("topics", "create", "more", "--data", data)
        assert f"{data} is in use by pid {writer.pid}, and has one writer at a time." in sentence
        assert printed("topics", "list", "--data", data) == "orders\n"
        assert writer.stdin is not None
        writer.stdin.close()


def test_a_right_that_is_missing_is_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: permission denied is a sentence, wherever it strikes.
    Method: as a user whom the directory does not belong to; root is let in everywhere, so there the kernel's answer
    is given instead."""
    if os.getuid():
        data.chmod(0)
        try:
            assert "permission denied" in refused("topics", "list", "--data", data)
        finally:
            data.chmod(stat.S_IRWXU)
        return
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert f"{data}: permission denied." in refused("topics", "list", "--data", data)
    monkeypatch.undo()

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(data / ".lock"))

    monkeypatch.setattr("oncelog.base.disk.Disk.lock", denied)
    sentence = refused("topics", "create", "more", "--data", data)
    assert sentence.startswith(f"{data / '.lock'}: permission denied.")


def test_too_many_open_files_are_told_with_the_limit(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: it is the limit that is named, not the disk. Method: the kernel's answer is given while a topic is made."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(data))

    monkeypatch.setattr("oncelog.base.disk.Disk.make_directory", full)
    sentence = refused("topics", "create", "more", "--data", data, code=1)
    assert "Too many open files" in sentence
    assert sentence.endswith(
        "raise the limit, as with 'ulimit -n 65536'; 'oncelog doctor' shows it."
    )


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "mixed", "--format", "parquet", "--output"),
        ("export", "mixed", "--format", "arrow"),
        ("transactions", "timeline", "mixed", "--html"),
        ("transactions", "timeline", "mixed", "--png"),
        ("perf", "produce", "--num-records", "1", "--plot"),
    ],
    ids=" ".join,
)
def test_a_file_is_refused_before_the_work_where_it_cannot_be_written(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Goal: a slip in a path costs no time, and nothing that is no file is replaced, which root could do to a device.
    Method: a directory that is not there, and a pipe in the place of /dev/null."""
    data = tmp_path / "new" if words[0] == "perf" else GOLDEN / "txn-mixed/data"
    place = ("--data", data)
    missing = tmp_path / "no" / "file"
    assert f"there is no directory {tmp_path / 'no'}." in refused(*words, missing, *place)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert f"{pipe} is not a file to be replaced." in refused(*words, pipe, *place)
    assert pipe.is_fifo()
    assert not (tmp_path / "new").exists()


def test_the_directory_may_come_from_the_environment(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCELOG_DATA", str(data))
    assert printed("topics", "list") == "orders\n"


def test_names_of_topics_and_groups_are_completed(data: Path) -> None:
    with oncelog.open(data) as log:
        log.admin().alter_consumer_group_offsets("billing", {("orders", 0): 0})
    environment = os.environ | {"ONCELOG_DATA": str(data), "_ONCELOG_COMPLETE": "bash_complete"}
    for words, found in (
        ("oncelog consume or", b"orders"),
        ("oncelog groups describe bi", b"billing"),
    ):
        asked = environment | {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(ONCELOG, env=asked, capture_output=True, check=False)
        assert found in done.stdout, done


def test_a_file_of_properties_is_taken_and_connections_are_left_out(
    data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=localhost:9092\nsecurity.protocol=SSL\nisolation.level=read_uncommitted\n"
    )
    result = run_command("consume", "orders", "--command-config", file, "--data", data)
    assert result.exit_code == 0
    assert "bootstrap.servers, security.protocol: of no use for a directory" in result.stderr
    file.write_text("linger.mss=3\n")
    words = ("produce", "orders", "--command-config", file, "--data", data)
    assert "linger" in refused(*words, stdin="a\n")
