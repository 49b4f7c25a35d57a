"""``oncelog groups``: listed, described, deleted, and their offsets moved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from ..base.errors import GroupIdNotFoundError, GroupNotEmptyError, OncelogError
from .data import (
    adopt_option,
    complete_group,
    complete_topic,
    data_option,
    json_option,
    opened_to_read,
    opened_to_write,
)
from .listing import Column, write_rows
from .output import CommandGroup, Misuse, end_with, talk

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..broker.offset_reset import ResetPlan
    from ..client.admin import Admin
    from ..client.admin_answers import ConsumerGroupDescription

OFFSET_COLUMNS: Final = (
    Column("GROUP"),
    Column("TOPIC"),
    Column("PARTITION", True),
    Column("CURRENT-OFFSET", True),
    Column("LOG-END-OFFSET", True),
    Column("LAG", True),
    Column("CONSUMER-ID"),
    Column("HOST"),
    Column("CLIENT-ID"),
)
PLAN_COLUMNS: Final = (
    Column("GROUP"),
    Column("TOPIC"),
    Column("PARTITION", True),
    Column("NEW-OFFSET", True),
)
TARGETS: Final = (
    *("to_earliest", "to_latest", "to_current", "to_offset", "shift_by"),
    *("to_datetime", "by_duration", "from_file"),
)
LEFT_BEHIND: Final = "Members that will not come back, as static ones of a killed process, are taken out first by --remove-members."
all_option = click.option("--all-groups", is_flag=True, help="All groups.")
remove_option = click.option(
    "--remove-members",
    is_flag=True,
    help="Take out members that will not come back first: static ones of a killed process, or those in an adopted "
    "directory. Where consumers live, their process has the directory, and this command does not get it.",
)

groups_argument = click.argument(
    "group_ids", nargs=-1, metavar="[GROUP...]", shell_complete=complete_group
)


@click.group(cls=CommandGroup, short_help="List, describe, delete and reset consumer groups.")
def groups() -> None:
    """List, describe, delete and reset consumer groups.

    \b
    Example
      oncelog groups describe billing --data data
    """


def _chosen(admin: Admin, group_ids: tuple[str, ...], *, all_groups: bool) -> list[str]:
    if bool(group_ids) == all_groups:
        raise click.UsageError("Name groups, or give --all-groups.")
    return list(group_ids) or [group.group_id for group in admin.list_consumer_groups()]


# ---------------------------------------------------------------- looking


@groups.command("list")
@data_option
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Those in a state (Stable, Empty, ...); may be repeated.",
)
@click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="classic or consumer; may be repeated."
)
@click.option("-v", "--verbose", is_flag=True, help="With type, protocol and state.")
@json_option
def list_(
    data: Path, *, states: tuple[str, ...], types: tuple[str, ...], verbose: bool, as_json: bool
) -> None:
    """List groups, one a line.

    \b
    Examples
      oncelog groups list --data data
      oncelog groups list --state Stable --verbose --data data
    """
    with opened_to_read(data) as log:
        found = log.admin().list_consumer_groups(states=states, types=types)
    if as_json:
        rows = [
            {
                "group": g.group_id,
                "type": g.type,
                "protocol": g.protocol_type,
                "state": g.state.label,
            }
            for g in found
        ]
        click.echo(json.dumps(rows))
    elif verbose:
        columns = (Column("GROUP"), Column("TYPE"), Column("PROTOCOL"), Column("STATE"))
        write_rows(
            columns, [(g.group_id, g.type, g.protocol_type or "-", g.state.label) for g in found]
        )
    else:
        for group in found:
            click.echo(group.group_id)
    if not found and not as_json:
        talk("There are no such groups." if states or types else "There are no groups.")


@groups.command(short_help="Describe groups: offsets, lag, who reads what.")
@groups_argument
@all_option
@data_option
@click.option("--members", is_flag=True, help="The members and how many partitions each has.")
@click.option(
    "--state",
    "shows_state",
    is_flag=True,
    help="The group itself: assignor, state, number of members.",
)
@json_option
def describe(
    group_ids: tuple[str, ...],
    data: Path,
    *,
    all_groups: bool,
    members: bool,
    shows_state: bool,
    as_json: bool,
) -> None:
    """Describe groups: what they have committed, how far behind they are, and who reads what.

    \b
    Examples
      oncelog groups describe billing --data data
      oncelog groups describe --all-groups --members --data data

    The end is the last stable offset, where a read_committed reader stops, and the lag counts up to it; markers and
    gaps count, too. Members are those that the log tells of: the ones of the last rebalance.
    """
    if members and shows_state:
        raise click.UsageError("Give one of --members and --state.")
    with opened_to_read(data) as log:
        admin = log.admin()
        answers = admin.describe_consumer_groups(_chosen(admin, group_ids, all_groups=all_groups))
    errors = [answer for answer in answers.values() if isinstance(answer, OncelogError)]
    found = [answer for answer in answers.values() if not isinstance(answer, OncelogError)]
    if not answers:
        talk("There are no groups.")
    if as_json:
        click.echo(json.dumps([_document(group) for group in found]))
    elif shows_state:
        columns = ("GROUP", "TYPE", "ASSIGNMENT-STRATEGY", "STATE")
        write_rows(
            (*map(Column, columns), Column("MEMBERS", True)),
            [
                (g.group_id, g.type, g.partition_assignor or "-", g.state, str(len(g.members)))
                for g in found
            ],
        )
    else:
        for group in found:
            if not group.members:
                talk(f"Consumer group '{group.group_id}' has no active members.")
        if members:
            _write_members(found)
            end_with(errors)
            return
        write_rows(OFFSET_COLUMNS, [row for group in found for row in _offset_rows(group)])
    end_with(errors)


def _offset_rows(group: ConsumerGroupDescription) -> list[tuple[str, ...]]:
    by_id = {member.member_id: member for member in group.members}
    rows = []
    for (topic, partition), lag in group.lags.items():
        owner = by_id.get(lag.member_id or "")
        figures = (lag.committed_offset, lag.end_offset, lag.lag)
        rows.append(
            (
                group.group_id,
                topic,
                str(partition),
                *("-" if figure is None else str(figure) for figure in figures),
                *((owner.member_id, owner.client_host, owner.client_id) if owner else "---"),
            )
        )
    return rows


def _write_members(found: list[ConsumerGroupDescription]) -> None:
    names = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID")
    rows = []
    for group in found:
        for member in group.members:
            who = (member.member_id, member.client_host or "-", member.client_id or "-")
            parts = " ".join(key.directory for key in member.assignment) or "-"
            rows.append((group.group_id, *who, str(len(member.assignment)), parts))
    write_rows((*map(Column, names), Column("#PARTITIONS", True), Column("ASSIGNMENT")), rows)


def _document(group: ConsumerGroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "assignor": group.partition_assignor or None,
        "generation": group.generation,
        "members": [
            {
                "memberId": member.member_id,
                "instanceId": member.group_instance_id,
                "clientId": member.client_id,
                "host": member.client_host,
                "assignment": [list(key) for key in member.assignment],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": topic,
                "partition": partition,
                "currentOffset": lag.committed_offset,
                "endOffset": lag.end_offset,
                "lag": lag.lag,
                "memberId": lag.member_id,
            }
            for (topic, partition), lag in group.lags.items()
        ],
    }


# ---------------------------------------------------------------- changing


def _take_out(admin: Admin, group_ids: list[str]) -> None:
    for group_id in group_ids:
        try:
            answers = admin.remove_members_from_consumer_group(group_id)
        except GroupIdNotFoundError:
            continue
        for name, refused in answers.items():
            if refused is None:
                talk(f"{group_id}: member {name} was taken out.")


def _with_advice(error: OncelogError) -> OncelogError:
    """A group that is active gets the way out of members that nobody will hear of again."""
    if not isinstance(error, GroupNotEmptyError):
        return error
    return GroupNotEmptyError(f"{error.args[0]}. {LEFT_BEHIND[:-1]}")


@groups.command(short_help="Delete groups without members.")
@groups_argument
@all_option
@data_option
@remove_option
@adopt_option
@json_option
def delete(
    group_ids: tuple[str, ...],
    data: Path,
    *,
    all_groups: bool,
    remove_members: bool,
    adopt: bool,
    as_json: bool,
) -> None:
    """Delete groups without members, and all that they have committed.

    \b
    Example
      oncelog groups delete billing --data data
    """
    with opened_to_write(data, adopt=adopt) as log:
        admin = log.admin()
        names = _chosen(admin, group_ids, all_groups=all_groups)
        if remove_members:
            _take_out(admin, names)
        answers = admin.delete_consumer_groups(names)
    gone = [name for name, answer in answers.items() if answer is None]
    if as_json:
        click.echo(json.dumps({"deleted": gone}))
    for name in gone if not as_json else ():
        click.echo(f"{name}: deleted")
    end_with([_with_advice(answer) for answer in answers.values() if answer is not None])


@groups.command("reset-offsets", short_help="Plan or move what groups have committed.")
@groups_argument
@all_option
@data_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:N,N]",
    shell_complete=complete_topic,
    help="A topic, or some of its partitions; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All that each group has committed.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="Behind the last record.")
@click.option(
    "--to-current", is_flag=True, help="To what is committed; to the end where nothing is."
)
@click.option(
    "--to-offset", type=int, metavar="N", help="To an offset, or the nearest that a log has."
)
@click.option(
    "--shift-by", type=int, metavar="N", help="So many on, or back with a negative number."
)
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record at yyyy-MM-ddTHH:mm:ss.SSS, with Z or +hh:mm or in UTC.",
)
@click.option(
    "--by-duration", metavar="PnDTnHnMnS", help="To the first record of the last so much time."
)
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="To what --export has written: [group,]topic,partition,offset.",
)
@click.option("--dry-run", is_flag=True, help="Only show the plan; the default.")
@click.option("--execute", is_flag=True, help="Commit it.")
@click.option("--export", is_flag=True, help="The plan as CSV, for --from-file.")
@remove_option
@adopt_option
@json_option
def reset_offsets(group_ids: tuple[str, ...], data: Path, **given: Any) -> None:
    """Move what groups without members have committed: shows the plan, and with --execute carries it out.

    \b
    Examples
      oncelog groups reset-offsets billing --topic orders --to-earliest --data data
      oncelog groups reset-offsets billing --topic orders:0,2 --topic pay --shift-by -10 --execute --data data
      oncelog groups reset-offsets --all-groups --all-topics --by-duration PT30M --data data
      oncelog groups reset-offsets billing --all-topics --to-current --export --data data > plan.csv

    Offsets that a log does not have become its nearest; no record at that time means the end. A group that is not
    there is made for named topics; with --all-topics its plan is empty, as nothing is committed. If anything is wrong
    with a plan, nothing of it is committed.
    """
    if given["execute"] and given["dry_run"]:
        raise click.UsageError("Give one of --dry-run and --execute.")
    target = _target(given)
    topics = _scope(given, target)
    if not given["execute"]:
        with opened_to_read(data) as log:
            _reset(log.admin(), group_ids, topics, target, given)
        return
    with opened_to_write(data, adopt=given["adopt"]) as log:
        _reset(log.admin(), group_ids, topics, target, given)


def _target(given: Mapping[str, Any]) -> dict[str, Any]:
    chosen = [name for name in TARGETS if given[name] is not None and given[name] is not False]
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in TARGETS)
    if len(chosen) > 1:
        given_flags = " and ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise click.UsageError(f"{given_flags} contradict each other: give one.")
    if not chosen:
        raise click.UsageError(f"Say where to, with one of {flags}.")
    (name,) = chosen
    if name in ("to_earliest", "to_latest", "to_current"):
        return {"to": name.removeprefix("to_")}
    if name == "from_file":
        from ..base.disk import read_file

        return {"from_csv": read_file(given[name]).decode(errors="replace")}
    return {name: given[name]}


def _scope(given: Mapping[str, Any], target: Mapping[str, Any]) -> list[str] | None:
    if "from_csv" in target:
        if given["topics"] or given["all_topics"]:
            raise click.UsageError("The lines of --from-file name their topics: leave --topic out.")
        return None
    if bool(given["topics"]) == given["all_topics"]:
        raise click.UsageError("Say which topics: --topic, which may be repeated, or --all-topics.")
    return list(given["topics"]) or None


def _reset(
    admin: Admin,
    group_ids: tuple[str, ...],
    topics: list[str] | None,
    target: dict[str, Any],
    given: Mapping[str, Any],
) -> None:
    names = _chosen(admin, group_ids, all_groups=given["all_groups"])
    if not names:
        raise Misuse("There are no groups.")
    if given["execute"] and given["remove_members"]:
        _take_out(admin, names)
    plans = admin.plan_reset(names, topics=topics, **target)
    errors = [error for plan in plans.values() for error in _errors(plan)]
    if given["execute"] and not errors:
        admin.execute_reset(plans)
    if given["export"]:
        click.echo(admin.export_reset(plans, names_groups=len(group_ids) != 1), nl=False)
    elif given["as_json"]:
        click.echo(
            json.dumps(
                [
                    {"group": name, "topic": topic, "partition": partition, "newOffset": offset}
                    for name, plan in plans.items()
                    for (topic, partition), offset in plan.offsets.items()
                ]
            )
        )
    else:
        rows = [
            (name, topic, str(partition), str(offset))
            for name, plan in plans.items()
            for (topic, partition), offset in plan.offsets.items()
        ]
        write_rows(PLAN_COLUMNS, rows)
        if rows and not errors and not given["execute"]:
            talk("Nothing was committed: --execute carries this plan out.")
        for name, plan in plans.items():
            if not plan.offsets and not _errors(plan):
                talk(
                    f"{name}: nothing is committed, so there is nothing to move; --topic names topics."
                )
    if errors and given["execute"]:
        talk("Nothing was committed.")
    end_with(errors)


def _errors(plan: ResetPlan) -> list[OncelogError]:
    found = [] if plan.error is None else [_with_advice(plan.error)]
    return [*found, *plan.errors.values()]
