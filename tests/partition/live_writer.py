"""A process that writes transactions until it is killed: run with -m, with a directory and a durability.

Values say what must become of them: "kept" and "plain" are to be seen, "gone" never. In "fsync" durability a plain
record is synced before it is announced on standard output, one line each.
"""

from __future__ import annotations

import itertools
import sys

from tests.partition.logs import ABORT, COMMIT, KEY, NOW, TOPIC_ID, Writer, open_directory, options

SMALL = options(segment_bytes=3000, index_bytes=480, interval=100)
SYNCED = options(
    segment_bytes=3000, index_bytes=480, interval=100, ahead=1000, is_synced_on_roll=True
)
KEPT_OFFSETS = 300  # older ones are deleted now and then


def write(path: str, *, syncs: bool, deletes: bool) -> None:
    directory = open_directory(path, SYNCED if syncs else SMALL)
    partition = directory.create(KEY, TOPIC_ID)
    plain, keeper, goner = Writer(partition), Writer(partition, 1), Writer(partition, 2)
    for turn in itertools.count():
        goner.send([b"gone %d" % turn] * 3, transactional=True)
        keeper.send([b"kept %d" % turn] * 2, transactional=True)
        end = plain.send([b"plain %d" % turn]).last_offset + 1
        if syncs:
            partition.sync_to(end)
        keeper.end(COMMIT)
        goner.send([b"gone %d" % turn], transactional=True)
        goner.end(ABORT)
        if turn % 7 == 0:
            partition.roll(NOW)
        if deletes and turn % 15 == 14:
            partition.delete_records(max(partition.log_end_offset - KEPT_OFFSETS, 0))
        if turn % 20 == 0:
            directory.checkpoint()
            print(turn, end - 1, flush=True)


if __name__ == "__main__":
    write(sys.argv[1], syncs="fsync" in sys.argv[2:], deletes="deletes" in sys.argv[2:])
