"""rmqstore retention."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from rmq_store.cli.command import command
from rmq_store.cli.options import STORE, StoreArgs, flag, option, time, time_in
from rmq_store.cli.output import OUTPUT, Output
from rmq_store.text.json_keys import as_json_object
from rmq_store.text.sizes import counted, size
from rmq_store.text.times import TIME_FORMS, Time, shown_time

if TYPE_CHECKING:
    from rmq_store.store import MessageStore


@command
def retention(
    at: StoreArgs = STORE,
    manual: bool = flag("--manual", help="Ignore deleteWhen, like the broker's admin command."),
    keep_from: Time | None = option(
        "--keep-from",
        type=time,
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
        policy, moment = RetentionPolicy.of(opened.config), time_in(opened, keep_from)
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
        lines = ["nothing is due: it is not the hour of deleteWhen, and the disk is not too full"]
    elif not files:
        lines = ["nothing is due: no file has only messages that are old enough"]
    done = f": deleted, {size(freed)}" if really else "; --apply deletes them" if files else ""
    unread = f", with {counted(plan.unread, 'unread message')}" if plan.unread else ""
    lines.append(f"{counted(len(files), 'file')}, {size(plan.bytes)}{done}{unread}")
    out.record(summary, lines)
    return False


def _print_why(store: MessageStore, out: Output) -> None:
    from rmq_store.admin.retention import LAST_FILE, RetentionPolicy, why_kept

    policy = RetentionPolicy.of(store.config)
    found = why_kept(store, policy)
    if found is None:
        raise click.UsageError("the log has no files")
    written, old = shown_time(found.written), shown_time(found.old_enough_at)
    at = None if found.goes_at is None else shown_time(found.goes_at)
    times = {"written": written, "oldEnoughAt": old, "goesAt": at}
    kept = found.kept_by or "nothing: it goes in the broker's next round"
    if kept == LAST_FILE:
        kept = "it is the last file, which a broker never deletes"
    forced = (
        f"at any age above {policy.forced_above} (diskSpaceCleanForciblyRatio)"
        if policy.cleanFileForciblyEnable
        else "cleanFileForciblyEnable is false"
    )
    lines = {
        "oldest file": f"{found.path}, last written {written}",
        "fileReservedTime": f"{policy.fileReservedTime} h: old enough from {old} on",
        "deleteWhen": f"{policy.deleteWhen}: hours of the broker's local time; here that of this host",
        "disk": f"{found.disk_used_percent:.0f} % used; due at any hour above {policy.due_above} "
        f"(diskMaxUsedSpaceRatio), {forced}",
        "kept by": kept,
        "it goes": "never" if at is None else f"{at} at the earliest",
    }
    width = max(map(len, lines))
    texts = (f"{name:<{width}}  {text}" for name, text in lines.items())
    out.record({**as_json_object(found), **asdict(policy), **times}, texts)
