"""Kafka's jars, tools and one broker, through kafka.sh."""

from __future__ import annotations

import base64
import os
import re
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


def missing() -> list[str]:
    """What this machine lacks, in words."""
    return _run("check")[0].decode().splitlines()


def _run(*words: str) -> tuple[bytes, str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["bash", str(SCRIPT), *words], capture_output=True, check=False, env=environment
    )
    complaints = done.stderr.decode(errors="replace")
    if done.returncode != 0:
        raise KafkaError(f"kafka.sh {' '.join(words)[:200]}: {complaints or done.stdout.decode()}")
    return done.stdout, complaints


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
    """One broker on a directory of its own."""

    def __init__(self, kafka: Kafka, home: Path) -> None:
        self.kafka = kafka
        self.home = home
        self.data = home / "data"
        self.port = _free_ports()
        self.address = f"127.0.0.1:{self.port}"
        self._runs = False

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        # A broker outlives the shell that starts it, and must not keep its pipes.
        _run("start", str(self.kafka.jars), str(self.home), str(self.port))
        self._runs = True

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
