"""rmqstore lag, offsets, retention: how far consumer groups are, and what the broker takes from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli import options
from rmq_store.cli.command import command
from rmq_store.cli.options import StoreArgs, flag, option
from rmq_store.cli.output import OUTPUT, Output, note, problem
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.progress import Progress
from rmq_store.text.sizes import counted, size
from rmq_store.text.times import TIME_FORMS, Time, shown_time

if TYPE_CHECKING:
    from rmq_store.reading.store_reader import StoreReader

_NAMED = 3  # groups in a sentence
_POPPED = "notAcknowledged"
_BEHIND = ("lag", "lagBytes", "lagMs", _POPPED)
_ROW = ("consumerGroup", "topic", "queueId", "consumerOffset", *_BEHIND, "status")
_KEPT = ("consumerGroup", "topic", "queueId", "lag", "status")
_TOTALS = ("consumerGroup", "topic", "queues", *_BEHIND, "queuesWithLoss")


@command
def lag(
    at: StoreArgs = options.STORE,
    out: Output = OUTPUT,
    groups: tuple[str, ...] = options.GROUPS,
    topics: tuple[str, ...] = options.TOPICS,
    top: int | None = options.TOP.but(help="Only the N furthest behind."),
    max_lag: int | None = option(
        "--max-lag",
        type=options.WholeNumber(min=0),
        metavar="N",
        help="Exit with 1 if a group is more messages behind in a topic.",
    ),
    by: str = option(
        "--by",
        type=click.Choice(["queue", "group"]),
        default="queue",
        help="A row for each queue, or one for each group and topic.",
    ),
) -> bool:
    """Show how far consumer groups are behind in each queue: messages, bytes, time.

    The row that is furthest behind comes first. The offsets come from the broker's offset file, which
    misses what was consumed since the broker wrote it; --json prints the file's age. What was popped
    before an offset and not acknowledged is counted apart. Exit code 1 if a
    group lost messages, does not get some, has an offset behind them, or is more than --max-lag behind,
    if the store lacks messages of any group, if the offsets are gone, and if --max-lag finds none.

    Examples:
        rmqstore lag /data/store --group g-slow
        # for a cron job: exit code 1 if a group is more than 1000 messages behind
        rmqstore lag /data/store --by group --max-lag 1000
    """
    return print_lag(at, out, groups, topics, top=top, max_lag=max_lag, by_group=by == "group")


def print_lag(
    at: StoreArgs,
    out: Output,
    groups: Sequence[str],
    topics: Sequence[str],
    queue_ids: Sequence[int] = (),
    *,
    top: int | None = None,
    max_lag: int | None = None,
    by_group: bool = False,
) -> bool:
    """Print the lag of groups in topics and queues, and what is wrong on stderr."""
    from rmq_store.questions.lag_summary import lag_of
    from rmq_store.tables import TABLES

    with at.open() as opened, Progress("lag", unit="offsets") as progress:
        answer = lag_of(opened, groups, topics, queue_ids, progress=progress)
        lacks_some = opened.opening.has_losses
        unknown = _unknown_lag(opened, is_asked=bool(groups) or max_lag is not None)
        if max_lag is not None and not unknown:
            unknown = list(answer.without_offset(groups, topics))
        furthest = answer.furthest_behind()[:top]
        rows = TABLES["groups"].of_rows(opened.broker_name, furthest)
    if by_group:
        totals, texts = answer.by_group()[:top], ("consumerGroup", "topic")
        out.rows(totals, _popped_where_some(_TOTALS, totals), texts=texts, kept=(*texts, "lag"))
    else:
        out.table([rows], _popped_where_some(_ROW, furthest), kept=_KEPT)
    note(answer.summary())
    problems = [*unknown, *answer.problems(max_lag)]
    for sentence in problems:
        problem(sentence)
    return bool(problems) or lacks_some


def _popped_where_some(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns; that of popped messages only where a row has some."""
    some = any(row[_POPPED] for row in rows)
    return [column for column in columns if some or column != _POPPED]


def _unknown_lag(store: StoreReader, *, is_asked: bool) -> list[str]:
    """Only a note where no group is: a store without consumers has no file of offsets."""
    from rmq_store.config.consumer_offsets import CONSUMER_FILES, has_consumer_offsets
    from rmq_store.search.selection import users_groups
    from rmq_store.verify.config_against_store import broker_message_offset

    if has_consumer_offsets(store.path):
        return []
    absent = f"there is no {CONSUMER_FILES[0]}: how far groups have consumed is not known"
    of_broker = store.view.topics.has_file or broker_message_offset(store) is not None
    groups = users_groups(store) if of_broker else []
    if not groups and not is_asked:
        note(absent)
        return []
    if groups:
        absent += f" ({', '.join(groups[:_NAMED])}{', ...' if len(groups) > _NAMED else ''})"
    return [f"{absent}. Look for the file in a copy or a replica"]


@command
def offsets(
    at: StoreArgs = options.STORE,
    group: str | None = options.GROUP,
    topic: str | None = options.TOPIC,
    queue_ids: tuple[int, ...] = options.QUEUES,
    place: str | None = option(
        "--reset-to", metavar="PLACE", help="earliest, latest or a queue offset."
    ),
    moment: Time | None = option(
        "--reset-to-time",
        type=options.time,
        metavar="TIME",
        help=f"The first message stored at TIME or later: {TIME_FORMS}.",
    ),
    new_group: bool = flag("--new-group", help="The group has no offsets yet (needs --topic)."),
    really: bool = flag("--apply", help="Write the new offsets; without it they are only shown."),
    out: Output = OUTPUT,
) -> bool:
    """Show offsets of consumer groups, or reset those of one group while the broker is down.

    Without --apply a reset is only shown. --apply writes it into the broker's offset file and keeps
    the old file as .bak. It fails while a broker holds the store's lock. Give --broker-conf if it
    sets another folder for the log.

    Examples:
        rmqstore offsets /data/store --group g-slow
        # skip what the group has not read; --apply writes it
        rmqstore offsets /data/store --group g-slow --topic orders --reset-to latest
        # read the last hour again
        rmqstore offsets /data/store --group g-slow --reset-to-time -1h --apply
    """
    if place is None and moment is None:
        if really:
            raise click.UsageError("--apply needs --reset-to or --reset-to-time")
        groups, topics = ([] if name is None else [name] for name in (group, topic))
        return print_lag(at, out, groups, topics, queue_ids)
    if group is None:
        raise click.UsageError("--reset-to and --reset-to-time need --group")
    if place is not None and moment is not None:
        raise click.UsageError("give only one of --reset-to and --reset-to-time")
    if new_group and topic is None:
        raise click.UsageError("--new-group needs --topic: a new group has no topics yet")
    from rmq_store.admin.reset_offsets import apply_reset, plan_reset

    with at.open() as opened:
        to: Any = int(place) if place is not None and place.isdigit() else place
        changes = plan_reset(
            opened,
            group,
            to=to,
            timestamp=options.time_in(opened, moment),
            topic=topic,
            queue_ids=queue_ids or None,
            new_group=new_group,
        )
        written = apply_reset(opened, changes) if really and changes else None
    rows = [{**as_json_object(change), "written": written is not None} for change in changes]
    out.rows(rows, ("topic", "queueId", "before", "after", "minOffset", "maxOffset"))
    if not out.as_json:
        todo = "--apply writes it" if changes else "there is nothing to reset"
        note(f"written to {written}" if written else f"nothing was written; {todo}")
    return not changes


@command
def retention(
    at: StoreArgs = options.STORE,
    manual: bool = flag("--manual", help="Ignore deleteWhen, like the broker's admin command."),
    keep_from: Time | None = option(
        "--keep-from",
        type=options.time,
        metavar="TIME",
        help=f"Delete log files whose messages are all older than TIME: {TIME_FORMS}.",
    ),
    why: bool = flag("--why", help="Show what keeps the oldest log file, and when it would go."),
    really: bool = flag("--apply", help="Delete; without it the files are only shown."),
    lose_unread: bool = flag(
        "--lose-unread", help="Let --apply delete messages that a group or the broker has not read."
    ),
    out: Output = OUTPUT,
) -> bool:
    """Show what the broker would delete now, and who loses messages.

    Those are consumer groups, and the broker itself: delayed and timer messages that are not delivered, open
    transactions. Follows fileReservedTime, deleteWhen and the disk ratios of --broker-conf, or the broker's
    defaults. DELETES only with --apply, and fails while a broker has the store open. --json prints
    one line per file, one for each loss, then a summary line.

    Examples:
        rmqstore retention /data/store
        rmqstore retention /data/store --why
        # which files --apply would delete, and which groups have not read them
        rmqstore retention /data/store --keep-from 2026-11-21
    """
    from rmq_store.admin.retention import RetentionPolicy, apply_retention, plan_retention

    if why and (manual or really or lose_unread or keep_from is not None):
        raise click.UsageError("--why only shows: leave out the other options")
    if lose_unread and not really:
        raise click.UsageError("--lose-unread is for --apply")
    with at.open() as opened:
        if why:
            _print_why(opened, out)
            return False
        policy, moment = RetentionPolicy.of(opened.config), options.time_in(opened, keep_from)
        plan = plan_retention(opened, policy, manual=manual, keep_from=moment)
    freed = apply_retention(plan, lose_unread=lose_unread) if really else 0
    files = (*plan.log, *plan.queues, *plan.index)
    rows = [[file.path, size(file.size), file.why] for file in files]
    out.rows(map(as_json_object, files), ("file", "size", "why"), rows)
    for risk in plan.risks:
        line = (
            f"group {risk.group} loses {risk.messages} unconsumed messages of {risk.topic}/{risk.queue_id}: "
            f"its offset is {risk.consumer_offset}, and the first offset left is {risk.min_offset}"
        )
        out.record(risk, [line], fg="yellow")
    for loss in plan.unfinished:
        messages = counted(loss.messages, "message")
        line = f"{messages} that the broker is not done with: {loss.reader}"
        out.record(loss._asdict(), [line], fg="yellow")
    summary = {
        "path": plan.path,
        "trigger": plan.trigger,
        "log_start": plan.log_start,
        "log_start_after": plan.log_start_after,
        "files": len(files),
        "bytes": plan.bytes,
        "freed": freed,
        "unread": plan.unread,
    }
    lines = []
    if plan.trigger is None:
        disk = f"disk {plan.disk_used_percent:.0f} %, limit {policy.due_above_percent} %"
        lines = [f"nothing is due: {disk}; next deletion in hour {policy.deleteWhen} (deleteWhen)"]
    elif not files:
        lines = ["nothing is due: no file has only messages that are old enough"]
    done = f": deleted, {size(freed)}" if really else "; --apply deletes them" if files else ""
    unread = f", with {counted(plan.unread, 'unread message')}" if plan.unread else ""
    lines.append(f"{counted(len(files), 'file')}, {size(plan.bytes)}{done}{unread}")
    by_disk = {"disk": policy.due_above_percent, "forced": policy.forced_above_percent}
    limit = by_disk.get(plan.trigger or "")
    if limit is not None and len(plan.log) >= policy.deleteFileBatchMax:
        lines.append(
            f"disk {plan.disk_used_percent:.0f} %: a broker deletes more every 10 seconds, down to {limit} %"
        )
    out.record(summary, lines)
    return False


def _print_why(store: StoreReader, out: Output) -> None:
    from rmq_store.admin.retention import LAST_FILE, RetentionPolicy, why_oldest_file_is_kept

    policy = RetentionPolicy.of(store.config)
    oldest = why_oldest_file_is_kept(store, policy)
    if oldest is None:
        raise click.UsageError("the log has no files")
    written, old = shown_time(oldest.written), shown_time(oldest.old_enough_at)
    at = None if oldest.goes_at is None else shown_time(oldest.goes_at)
    times = {"written": written, "oldEnoughAt": old, "goesAt": at}
    kept = oldest.kept_by or "nothing: it goes in the broker's next round"
    if kept == LAST_FILE:
        kept = "it is the last file, which a broker never deletes"
    forced = (
        f"at any age above {policy.forced_above_percent} (diskSpaceCleanForciblyRatio)"
        if policy.cleanFileForciblyEnable
        else "cleanFileForciblyEnable is false"
    )
    lines = {
        "oldest file": f"{oldest.path}, last written {written}",
        "fileReservedTime": f"{policy.fileReservedTime} h: old enough from {old} on",
        "deleteWhen": f"{policy.deleteWhen}: hours of the broker's local time; here that of this host",
        "disk": f"{oldest.disk_used_percent:.0f} % used; due at any hour above {policy.due_above_percent} "
        f"({policy.due_by}), {forced}",
        "kept by": kept,
        "it goes": "never" if at is None else f"{at} at the earliest",
    }
    width = max(map(len, lines))
    texts = (f"{name:<{width}}  {text}" for name, text in lines.items())
    out.record({**as_json_object(oldest), **asdict(policy), **times}, texts)
