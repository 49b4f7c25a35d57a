"""Columns that the sink takes, with the names and types of Spark's Kafka sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

NAMES: Final = ("topic", "partition", "key", "value", "headers")


def check_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns to write; raises for one that is missing or of another type. All others are left out."""
    given = {field.name: field.dataType for field in schema.fields}
    if "value" not in given:
        raise ValueError(
            f"there is no column 'value', only {', '.join(given) or 'none at all'}: rename one, for example with "
            "selectExpr('to_json(struct(*)) AS value')"
        )
    if topic is None and "topic" not in given:
        raise ValueError(
            "where do the rows go? Give the option 'topic', or a column 'topic' that says it row by row"
        )
    names = tuple(
        name for name in NAMES if name in given and not (name == "topic" and topic is not None)
    )
    for name in names:
        if not _fits(name, given[name]):
            raise ValueError(
                f"column '{name}' must be {_WANTED[name]}, not {given[name].simpleString()}: cast it, for example with "
                f"selectExpr('CAST({name} AS {_CAST[name]}) AS {name}', ...)"
            )
    return names


_WANTED: Final = {
    "topic": "string",
    "partition": "int",
    "key": "string or binary",
    "value": "string or binary",
    "headers": "array<struct<key:string,value:binary>>",
}
_CAST: Final = {
    "topic": "STRING",
    "partition": "INT",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}


def _fits(name: str, kind: DataType) -> bool:
    if name == "topic":
        return isinstance(kind, StringType)
    if name == "partition":
        return isinstance(kind, IntegerType)
    if name != "headers":
        return isinstance(kind, StringType | BinaryType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )
