"""``oncelog topics``: made, given more partitions and other options, listed, described and deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ..base.errors import (
    InvalidRequestError,
    OncelogError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from .data import (
    adopt_option,
    complete_topic,
    data_option,
    json_option,
    opened_to_read,
    opened_to_write,
    pairs_of,
)
from .listing import Column, write_rows
from .output import CommandGroup, end_with, plural, talk

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ..broker.answers import TopicDescription
    from ..client.admin import Admin

names_argument = click.argument(
    "names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic
)
config_option = click.option(
    "--config",
    "config",
    multiple=True,
    metavar="NAME=VALUE",
    help="A topic option; may be repeated.",
)


@click.group(cls=CommandGroup, short_help="Make, list, describe, alter and delete topics.")
def topics() -> None:
    """Make, list, describe, alter and delete topics.

    \b
    Example
      oncelog topics create orders --partitions 3 --config segment.bytes=1048576 --data data
    """


@topics.command()
@names_argument
@data_option
@click.option(
    "--partitions",
    type=int,
    default=-1,
    metavar="N",
    help="How many; by default num.partitions, 1.",
)
@click.option(
    "--replication-factor", type=int, default=-1, metavar="N", help="1: there is one process."
)
@config_option
@click.option("--if-not-exists", is_flag=True, help="A topic that is there already is no error.")
@click.option("--validate-only", is_flag=True, help="Only say whether it could be made.")
@adopt_option
@json_option
def create(
    names: tuple[str, ...],
    data: Path,
    *,
    partitions: int,
    replication_factor: int,
    config: tuple[str, ...],
    if_not_exists: bool,
    validate_only: bool,
    adopt: bool,
    as_json: bool,
) -> None:
    """Make topics, and the data directory if it is not there.

    \b
    Examples
      oncelog topics create orders --data data
      oncelog topics create orders payments --partitions 3 --config cleanup.policy=compact --data data
    """
    from ..broker.topics import NewTopic

    options = pairs_of(config, "--config")
    new = [NewTopic(name, partitions, replication_factor, options) for name in names]
    with opened_to_write(data, create=True, adopt=adopt) as log:
        answers = log.admin().create_topics(new, validate_only=validate_only)
        made = [answer for answer in answers.values() if not isinstance(answer, OncelogError)]
        if as_json:
            click.echo(
                json.dumps(
                    [_document(log.admin(), topic) for topic in made] if not validate_only else []
                )
            )
        for topic in made if not as_json else ():
            verb = "can be made" if validate_only else "made"
            click.echo(f"{topic.name}: {verb}, {plural(len(topic.partitions), 'partition')}")
    errors = []
    for name, answer in answers.items():
        if isinstance(answer, TopicAlreadyExistsError) and if_not_exists:
            talk(f"{name}: it is there already.")
        elif isinstance(answer, OncelogError):
            errors.append(answer)
    end_with(errors)


@topics.command()
@names_argument
@data_option
@click.option("--partitions", type=int, metavar="N", help="So many as there are to be in the end.")
@config_option
@click.option(
    "--delete-config", multiple=True, metavar="NAME", help="Takes an option back to its default."
)
@adopt_option
@json_option
def alter(
    names: tuple[str, ...],
    data: Path,
    *,
    partitions: int | None,
    config: tuple[str, ...],
    delete_config: tuple[str, ...],
    adopt: bool,
    as_json: bool,
) -> None:
    """Give topics more partitions, or other options.

    \b
    Examples
      oncelog topics alter orders --partitions 6 --data data
      oncelog topics alter orders --config retention.ms=3600000 --delete-config segment.bytes --data data

    With more partitions keys are spread anew: from then on a key may go elsewhere than before.
    """
    changes: dict[str, Any] = {**pairs_of(config, "--config"), **dict.fromkeys(delete_config)}
    if partitions is None and not changes:
        raise click.UsageError("Nothing to change: give --partitions, --config or --delete-config.")
    errors: list[OncelogError] = []
    with opened_to_write(data, adopt=adopt) as log:
        admin = log.admin()
        for name in names:
            try:
                _alter(admin, name, partitions, changes)
            except OncelogError as error:
                errors.append(error)
                continue
            if not as_json:
                click.echo(f"{name}: altered")
        if as_json:
            found = (answer for answer in admin.describe_topics(names).values())
            click.echo(
                json.dumps([_document(admin, t) for t in found if not isinstance(t, OncelogError)])
            )
    end_with(errors)


def _alter(admin: Admin, name: str, partitions: int | None, changes: dict[str, Any]) -> None:
    """Options are proven before partitions are added, so that an error means that nothing was changed."""
    from ..client.admin import ConfigChange, ConfigResource

    resource = ConfigResource("topic", name)
    steps = [
        ConfigChange(option, "delete" if value is None else "set", value)
        for option, value in changes.items()
    ]
    refused = admin.incremental_alter_configs({resource: steps}, validate_only=True)[resource]
    if refused is not None:
        raise refused
    if partitions is not None:
        admin.increase_partitions(name, partitions)
    if changes:
        admin.alter_topic_config(name, changes)


@topics.command("list")
@data_option
@click.option("--internal", is_flag=True, help="Those that coordinators keep their state in, too.")
@json_option
def list_(data: Path, *, internal: bool, as_json: bool) -> None:
    """List topics, one a line.

    \b
    Example
      oncelog topics list --data data
    """
    with opened_to_read(data) as log:
        found = log.admin().list_topics(include_internal=internal)
    if as_json:
        rows = [
            {"topic": topic.name, "topicId": topic.topic_id, "isInternal": topic.is_internal}
            for topic in found
        ]
        click.echo(json.dumps(rows))
        return
    for topic in found:
        click.echo(topic.name)
    if not found:
        talk("There are no topics yet: 'oncelog topics create' makes one.")


@topics.command(short_help="Describe topics: options, leaders, replicas, offsets.")
@click.argument("names", nargs=-1, metavar="[TOPIC...]", shell_complete=complete_topic)
@data_option
@click.option("--internal", is_flag=True, help="Those that coordinators keep their state in, too.")
@click.option("--configs", is_flag=True, help="All options with their values, and who set them.")
@json_option
def describe(
    names: tuple[str, ...], data: Path, *, internal: bool, configs: bool, as_json: bool
) -> None:
    """Describe topics, or all: id, options, and of each partition leader, replicas, ISR and offsets.

    \b
    Examples
      oncelog topics describe --data data
      oncelog topics describe orders --configs --data data

    start and end are the first offset and the one after the last; stable is the last stable offset: what a
    read_committed reader sees ends there. Leader, replicas and ISR are the node of this directory alone, also where
    it was one broker's of several: the copies that others may still have do not follow it.
    """
    with opened_to_read(data) as log:
        admin = log.admin()
        answers = admin.describe_topics(names or None)
        errors = [answer for answer in answers.values() if isinstance(answer, OncelogError)]
        found = [
            answer
            for answer in answers.values()
            if not isinstance(answer, OncelogError)
            and (names or internal or not answer.is_internal)
        ]
        if as_json:
            click.echo(json.dumps([_document(admin, topic, configs=configs) for topic in found]))
        else:
            for index, topic in enumerate(found):
                if index:
                    click.echo()
                _describe(admin, topic, configs=configs)
    end_with(errors)


@topics.command(short_help="Delete topics with all their records.")
@names_argument
@data_option
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no error.")
@adopt_option
@json_option
def delete(
    names: tuple[str, ...], data: Path, *, if_exists: bool, adopt: bool, as_json: bool
) -> None:
    """Delete topics with all their records, and what groups have committed for them.

    \b
    Example
      oncelog topics delete orders --data data
    """
    with opened_to_write(data, adopt=adopt) as log:
        answers = log.admin().delete_topics(names)
    gone = [name for name, answer in answers.items() if answer is None]
    if as_json:
        click.echo(json.dumps({"deleted": gone}))
    for name in gone if not as_json else ():
        click.echo(f"{name}: deleted")
    errors = []
    for name, answer in answers.items():
        if isinstance(answer, UnknownTopicOrPartitionError) and if_exists:
            talk(f"{name}: it is not there.")
        elif answer is not None:
            errors.append(answer)
    end_with(errors)


@topics.command("elect-leaders")
@data_option
@click.option(
    "--election-type",
    type=click.Choice(["preferred", "unclean"], case_sensitive=False),
    default="preferred",
    show_default=True,
)
@click.option(
    "--topic", metavar="TOPIC", shell_complete=complete_topic, help="With --partition: of one."
)
@click.option("--partition", type=click.IntRange(min=0), metavar="N")
@click.option("--all-topic-partitions", is_flag=True, help="Of all partitions.")
@json_option
def elect_leaders(
    data: Path,
    *,
    election_type: str,
    topic: str | None,
    partition: int | None,
    all_topic_partitions: bool,
    as_json: bool,
) -> None:
    """Elect leaders. With one replica each partition has its leader: ELECTION_NOT_NEEDED.

    \b
    Example
      oncelog topics elect-leaders --topic orders --partition 0 --data data
    """
    if all_topic_partitions == (topic is not None):
        raise click.UsageError(
            "Give --all-topic-partitions, or --topic with or without --partition."
        )
    with opened_to_read(data) as log:
        admin = log.admin()
        described = {topic: admin.describe_topic(topic)} if topic else admin.describe_topics()
        keys = [
            (name, found.partition)
            for name, answer in described.items()
            if not isinstance(answer, OncelogError)
            for found in answer.partitions
            if partition in (None, found.partition)
        ]
        if topic is not None and partition is not None and not keys:
            count = len(admin.describe_topic(topic).partitions)
            raise InvalidRequestError(
                f"topic {topic!r} has partitions 0 to {count - 1}, not {partition}"
            )
        answers = admin.elect_leaders(keys, election_type=election_type.lower())
    rows = [
        (key.topic, str(key.partition), "ELECTION_NOT_NEEDED" if error.code == 84 else str(error))
        for key, error in answers.items()
    ]
    if as_json:
        click.echo(json.dumps([{"topic": t, "partition": int(p), "answer": a} for t, p, a in rows]))
        return
    write_rows((Column("topic"), Column("partition", True), Column("answer")), rows)


# ---------------------------------------------------------------- what is shown


PARTITION_COLUMNS = (
    Column("partition", True),
    Column("leader", True),
    Column("replicas"),
    Column("isr"),
    Column("start", True),
    Column("end", True),
    Column("stable", True),
)


def _offsets(admin: Admin, topic: TopicDescription) -> dict[int, tuple[int | None, ...]]:
    """Start, end and last stable offset of each partition; None where it cannot be read."""
    wanted = (
        ("earliest", "read_uncommitted"),
        ("latest", "read_uncommitted"),
        ("latest", "read_committed"),
    )
    found: dict[int, list[int | None]] = {row.partition: [] for row in topic.partitions}
    for spec, isolation in wanted:
        specs = {(topic.name, number): spec for number in found}
        for key, answer in admin.list_offsets(specs, isolation_level=isolation).items():
            found[key.partition].append(None if isinstance(answer, OncelogError) else answer.offset)
    return {number: tuple(offsets) for number, offsets in found.items()}


def _describe(admin: Admin, topic: TopicDescription, *, configs: bool) -> None:
    options = admin.describe_topic_config(topic.name)
    own = " ".join(
        f"{entry.name}={entry.text}" for entry in options.values() if entry.source == "topic"
    )
    click.echo(
        f"{topic.name}  id {topic.topic_id}  {plural(len(topic.partitions), 'partition')}"
        f"  options {own or 'all default'}"
    )
    offsets = _offsets(admin, topic)
    write_rows(
        PARTITION_COLUMNS,
        [
            (
                str(row.partition),
                str(row.leader),
                ",".join(map(str, row.replicas)),
                ",".join(map(str, row.isr)),
                *("-" if offset is None else str(offset) for offset in offsets[row.partition]),
            )
            for row in topic.partitions
        ],
    )
    if configs:
        rows = [(entry.name, entry.text or "-", entry.source) for entry in options.values()]
        write_rows((Column("option"), Column("value"), Column("set_by")), rows)


def _document(admin: Admin, topic: TopicDescription, *, configs: bool = False) -> dict[str, Any]:
    offsets = _offsets(admin, topic)
    options: Iterable[Any] = admin.describe_topic_config(topic.name).values()
    return {
        "topic": topic.name,
        "topicId": topic.topic_id,
        "isInternal": topic.is_internal,
        "configs": {
            entry.name: entry.text for entry in options if configs or entry.source == "topic"
        },
        "partitions": [
            {
                "partition": row.partition,
                "leader": row.leader,
                "replicas": list(row.replicas),
                "isr": list(row.isr),
                **dict(
                    zip(
                        ("startOffset", "endOffset", "lastStableOffset"),
                        offsets[row.partition],
                        strict=True,
                    )
                ),
            }
            for row in topic.partitions
        ],
    }
