"""rmqstore verify."""

from __future__ import annotations

import sys

import click

from rmq_store.cli.exit_codes import EXIT_FINDINGS
from rmq_store.cli.options import json_option, open_store, store_command
from rmq_store.cli.printing import print_json
from rmq_store.text.progress import Progress

_COLOURS = {"note": "cyan", "warning": "yellow", "error": "red"}


@click.command()
@store_command
@json_option
def verify(store: str, broker_conf: str | None, broker_name: str | None, as_json: bool) -> None:
    """Whether log, queues, index, checkpoint and configuration agree. Changes nothing.

    Exit code 0: nothing is wrong; notes alone are nothing wrong. 1: something is. 2: it could not be
    looked at. With --json a line for each finding, and the summary as the last.
    """
    from rmq_store.text.json_keys import as_json_object
    from rmq_store.verify.findings import Severity
    from rmq_store.verify.verify_store import severities
    from rmq_store.verify.verify_store import verify as examine

    with (
        open_store(store, broker_conf, broker_name) as opened,
        Progress("verify", opened.log.chain.stop - opened.log.chain.start) as progress,
    ):
        report = examine(opened, progress)
    if as_json:
        for finding in report.findings:
            print_json(as_json_object(finding))
        told = {name: value for name, value in report.to_dict().items() if name != "findings"}
        summary = {**told, "index": report.index, "severities": severities(report.findings)}
        print_json(as_json_object(summary))
    else:
        for finding in report.findings:
            severity = finding.severity.value
            name = click.style(f"{severity:<8}", fg=_COLOURS[severity])
            where = "" if finding.start is None else f" {finding.start}..{finding.stop}"
            click.echo(f"{name}{finding.code}: {finding.path}{where}")
            click.echo(f"        {finding.meaning}")
            click.echo(f"        {finding.advice}")
        counts = severities(report.findings)
        click.echo(
            f"{report.records} records, {report.queues} queues, {len(report.index)} index files: "
            + ("nothing is wrong" if report.nothing_wrong else "not all is well")
            + " ("
            + ", ".join(f"{counts[one.value]} {one.value}s" for one in reversed(list(Severity)))
            + ")"
        )
    if not report.nothing_wrong:
        sys.exit(EXIT_FINDINGS)
