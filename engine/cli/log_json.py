"""A file of record batches as one JSON document, written as it is read, one batch a line.

Names are those of Kafka's dump tool. Text stands under its name (``key``), bytes that are not UTF-8
under the name with ``Base64``; a batch has either ``createTime`` or ``logAppendTime``, the largest of its
records. ``isValid`` is null where checksums were not asked for.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ..segment import batch
from ..segment.batch import ControlType
from .log_reader import Batch, LogReader, batches_of
from .output import json_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


def write(reader: LogReader) -> None:
    """The document of one file on stdout."""
    write = sys.stdout.write
    write(f'{{"file": {json.dumps(reader.file)}, "size": {len(reader.buffer)}, "batches": [')
    separator = "\n"
    for line in _lines(reader):
        write(separator + line)
        separator = ",\n"
    rest = {"summary": summary_fields(reader), "damage": damage_fields(reader)}
    write(f"\n], {json.dumps(rest)[1:-1]}}}\n")


def _lines(reader: LogReader) -> Iterator[str]:
    left = reader.request.shown_max or sys.maxsize
    for rows in reader:
        if left <= 0:
            continue  # the summary still covers what is not shown
        if reader.request.records:
            for header, records in reader.records(rows):
                found = []
                for record in records:
                    found.append(record_fields(header, record, reader.request.values))
                    left -= 1
                    if left <= 0:
                        break
                yield json.dumps(batch_fields(header) | {"records": found})
                if left <= 0:
                    break
        else:
            shown = rows[:left]
            left -= len(shown)
            yield from (json.dumps(batch_fields(header)) for header in batches_of(shown))


def batch_fields(header: Batch) -> dict[str, Any]:
    """One batch under the names of Kafka's dump tool."""
    fields: dict[str, Any] = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon,
        "position": header.position,
        "logAppendTime" if header.is_append_time else "createTime": header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compression": header.codec,
        "crc": header.crc,
        "isValid": None if header.crc_ok < 0 else bool(header.crc_ok),
    }
    if header.is_control and header.record_count:
        fields["control"] = _control_fields(
            ControlType(header.control_type), header.coordinator_epoch
        )
    return fields


def record_fields(header: Batch, record: batch.Record, values: bool) -> dict[str, Any]:
    """One record under the names of Kafka's dump tool."""
    fields: dict[str, Any] = {
        "offset": record.offset,
        "logAppendTime" if record.timestamp_type else "createTime": record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": header.sequence(record.offset),
        "headerKeys": [name for name, _ in record.headers],
    }
    if header.is_control:
        control = batch.control_record(record.key, record.value)
        fields["control"] = _control_fields(control.type, control.coordinator_epoch)
    if values:
        fields |= json_bytes("key", record.key) | json_bytes("value", record.value)
        fields["headers"] = [
            {"key": name} | json_bytes("value", data) for name, data in record.headers
        ]
    return fields


def _control_fields(kind: ControlType, coordinator_epoch: int) -> dict[str, Any]:
    """What a control record says; only markers name a coordinator."""
    if kind in (ControlType.ABORT, ControlType.COMMIT):
        return {"type": kind.name, "coordinatorEpoch": coordinator_epoch}
    return {"type": kind.name}


def summary_fields(reader: LogReader) -> dict[str, Any]:
    """What the batches of the wanted range add up to, shown or not."""
    summary = reader.summary
    return {
        "batches": summary.batches,
        "records": summary.records,
        "bytes": summary.bytes,
        "firstOffset": summary.first_offset,
        "lastOffset": summary.last_offset,
        "missingOffsets": summary.missing_offsets,
        "minTimestamp": summary.min_timestamp,
        "maxTimestamp": summary.max_timestamp,
        "codecs": dict(summary.codecs),
        "transactionalBatches": summary.transactional,
        "controlBatches": dict(summary.control),
        "crcChecked": summary.crc_checked,
        "damaged": reader.findings.damage_count,
    }


def damage_fields(reader: LogReader) -> list[dict[str, Any]]:
    """What is wrong, the first few in full; ``damaged`` of the summary counts all."""
    return [
        {
            "error": type(fault).__name__,
            "what": fault.what,
            "position": fault.position,
            "baseOffset": fault.base_offset if fault.base_offset >= 0 else None,
            "record": fault.record if fault.record >= 0 else None,
            "advice": fault.advice,
        }
        for fault in reader.findings.damage
    ]
