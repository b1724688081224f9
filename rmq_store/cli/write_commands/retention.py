"""rmqstore retention."""

from __future__ import annotations

from dataclasses import asdict

import click

from rmq_store.cli.options import json_option, open_store, store_command
from rmq_store.cli.printing import print_json, print_rows
from rmq_store.text.sizes import size
from rmq_store.text.times import parse_time


@click.command()
@store_command
@click.option("--manual", is_flag=True, help="At any hour, as the broker's admin command does.")
@click.option(
    "--keep-from", metavar="TIME", help="Files whose messages were all stored before then."
)
@click.option("--apply", "really", is_flag=True, help="Delete; without, it is only shown.")
@json_option
def retention(
    store: str,
    broker_conf: str | None,
    broker_name: str | None,
    manual: bool,
    keep_from: str | None,
    really: bool,
    as_json: bool,
) -> None:
    """What the broker would delete now, and which consumer groups lose messages by it.

    By fileReservedTime, deleteWhen and the disk's ratios of --broker-conf (or the broker's
    defaults). DELETES only with --apply, and not while a broker has the store open. With --json a
    line for each file, one for each group and queue that loses, and the summary as the last.
    """
    from rmq_store.admin.retention import RetentionPolicy, apply_retention, plan_retention
    from rmq_store.text.json_keys import as_json_object

    with open_store(store, broker_conf, broker_name) as opened:
        plan = plan_retention(
            opened,
            RetentionPolicy.of(opened.config),
            manual=manual,
            keep_from=parse_time(keep_from),
        )
    freed = apply_retention(plan) if really else 0
    files = (*plan.log, *plan.queues, *plan.index)
    if as_json:
        for one in (*files, *plan.risks):
            print_json(as_json_object(one))
        summary = {
            "path": plan.path,
            "trigger": plan.trigger,
            "log_start": plan.log_start,
            "log_start_after": plan.log_start_after,
            "files": len(files),
            "bytes": plan.bytes,
            "freed": freed,
        }
        print_json(as_json_object(summary))
        return
    print_rows(["file", "size", "why"], [[one.path, size(one.size), one.why] for one in files])
    for risk in plan.risks:
        told = asdict(risk)
        click.secho(
            "group {group} loses {messages} messages of {topic}/{queue_id}, which it has not "
            "consumed: it stands at {consumer_offset}, and {min_offset} is the first left".format(
                **told
            ),
            fg="yellow",
        )
    if plan.trigger is None:
        click.echo(
            "it is not time to delete: neither the hour (deleteWhen) nor the disk asks for it"
        )
    click.echo(
        f"{len(files)} files, {size(plan.bytes)}"
        + (f": deleted, {size(freed)}" if really else "; --apply deletes them" if files else "")
    )
