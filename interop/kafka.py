"""Kafka's jars, tools and one broker, through kafka.sh."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

SCRIPT: Final = Path(__file__).with_name("kafka.sh")


class Row(NamedTuple):
    """A record as a consumer gets it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class KafkaError(Exception):
    """A tool or the broker failed; the message is what it said."""


def missing(jars: Path | None = None) -> list[str]:
    """What this machine lacks, in words; no Maven where the jars are there already."""
    words = () if jars is None else (str(jars),)
    return _run("check", *words)[0].decode().splitlines()


def run_apart(words: list[str], **environment: str) -> tuple[int, bytes, bytes]:
    """(status, output, complaints) of a program that does not outlive this call, nor do those that it starts.

    It has a session of its own: an interrupt from the terminal comes to us alone, and we end all of it. What starts
    another session, as a broker does, stays.
    """
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
    ) as process:
        try:
            output, complaints = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return process.returncode, output, complaints


def _run(*words: str, **environment: str) -> tuple[bytes, str]:
    status, output, said = run_apart(["bash", str(SCRIPT), *words], **environment)
    complaints = said.decode(errors="replace")
    if status != 0:
        raise KafkaError(f"kafka.sh {' '.join(words)[:200]}: {complaints or output.decode()}")
    return output, complaints


def _bytes(text: str) -> bytes | None:
    return None if text == "null" else base64.b64decode(text.removeprefix("="))


class Kafka:
    """The jars in one directory; made there when they are missing."""

    def __init__(self, jars: Path) -> None:
        self.jars = jars
        _run("fetch", str(jars))

    def tool(self, name: str, *words: str) -> tuple[bytes, str]:
        """(output, complaints) of a tool."""
        return _run("run", str(self.jars), name, *words)


class Broker:
    """One broker on a directory of its own; ``java_options`` are those of its machine, 512 MiB of heap unless told."""

    def __init__(self, kafka: Kafka, home: Path, java_options: str = "") -> None:
        self.kafka = kafka
        self._environment = {"BROKER_JAVA_OPTS": java_options} if java_options else {}
        self.home = home
        self.data = home / "data"
        self.port = _free_ports()
        self.address = f"127.0.0.1:{self.port}"
        self._runs = False

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        # Who is interrupted while it starts must find it to be ended.
        self._runs = True
        # A broker outlives the shell that starts it, and must not keep its pipes.
        words = (str(self.kafka.jars), str(self.home), str(self.port))
        _run("start", *words, **self._environment)

    def stop(self) -> None:
        if self._runs:
            _run("stop", str(self.home))
            self._runs = False

    def kill(self) -> None:
        if self._runs:
            _run("kill", str(self.home))
            self._runs = False

    def said(self, pattern: str) -> list[str]:
        """Lines of the broker's log since its last start that match."""
        lines = (self.home / "broker.log").read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(pattern, line)]

    def _client(self, job: str, *words: str) -> list[list[str]]:
        output, _ = self.kafka.tool("Client", job, self.address, *words)
        return [line.split("\t") for line in output.decode().splitlines()]

    def create(self, topics: dict[str, int]) -> None:
        self._client("create", *(f"{name}:{count}" for name, count in topics.items()))

    def produce(self, topic: str, partition: int, count: int) -> None:
        """A committed transaction and an aborted one."""
        self._client("produce", topic, str(partition), str(count))

    def read(
        self, isolation: str, topics: list[str]
    ) -> tuple[list[Row], dict[tuple[str, int], tuple[int, int]]]:
        """All records, sorted; start and end offset of each partition at that isolation level."""
        rows, ends = [], {}
        for kind, topic, partition, *rest in self._client("read", isolation, *topics):
            if kind == "partition":
                ends[topic, int(partition)] = (int(rest[0]), int(rest[1]))
                continue
            offset, timestamp, stamped, key, value, *headers = rest
            pairs = zip(headers[::2], headers[1::2], strict=True)
            rows.append(
                Row(
                    topic,
                    int(partition),
                    int(offset),
                    int(timestamp),
                    int(stamped),
                    _bytes(key),
                    _bytes(value),
                    tuple(
                        ((_bytes(name) or b"").decode(), _bytes(content)) for name, content in pairs
                    ),
                )
            )
        return sorted(rows, key=lambda row: row[:3]), ends

    def offsets(self, time: int, topics: list[str]) -> dict[tuple[str, int], int]:
        """GetOffsetShell: -1 latest, -2 earliest, -3 of the largest timestamp, else of a timestamp."""
        pattern = "|".join(topics)
        output, _ = self.kafka.tool(
            "GetOffsetShell", "--bootstrap-server", self.address, "--topic", pattern,
            "--time", str(time),
        )  # fmt: skip
        found = {}
        for line in output.decode().splitlines():
            topic, partition, offset = line.rsplit(":", 2)
            if offset:
                found[topic, int(partition)] = int(offset)
        return found


def _free_ports() -> int:
    """A port that is free, and the one after it as well."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
    raise KafkaError("no two free ports next to each other")
