"""rmqstore recover."""

from __future__ import annotations

import click

from rmq_store.cli.command import command
from rmq_store.cli.options import BROKER_CONF, STORE_PATH, flag, option, warn_of
from rmq_store.cli.output import OUTPUT, Output, note, problem
from rmq_store.errors import StoreError
from rmq_store.text.progress import Progress

_WHAT_APPLY_DOES = "--apply repairs the store; then rmqstore verify says what it still lacks"


@command
def recover(
    store: str = STORE_PATH,
    mode: str = option(
        "--method",
        type=click.Choice(["strict", "broker"]),
        default="strict",
        show_default=True,
        help="strict: keep as much as possible; broker: what DefaultMessageStore would do, without --apply.",
    ),
    release: str | None = option(
        "--release", help="The broker release that will start on it (default: the newest)."
    ),
    really: bool = flag("--apply", help="Repair the store; without it the changes are only shown."),
    broker_conf: str | None = BROKER_CONF,
    out: Output = OUTPUT,
) -> bool:
    """Show how a recovery would repair a store that was not closed cleanly, or repair it in place.

    A recovery cuts the log after its last intact record, and makes queues and index match it.
    CHANGES THE STORE only with --apply. Fails while a broker has the store open.
    """
    from rmq_store.recovery.recover_store import plan_recovery
    from rmq_store.recovery.recover_store import recover as mend

    if really and mode == "broker":
        raise click.UsageError(
            "--method broker shows what a broker would do: to have it done, start the broker. --apply "
            "repairs the store with method strict, which keeps more"
        )
    with Progress("recover") as progress:
        report = (
            mend(store, broker_conf, release=release, progress=progress)
            if really
            else plan_recovery(store, broker_conf, mode=mode, release=release, progress=progress)
        )
    out.record(report.to_dict(), str(report).splitlines())
    if not out.as_json and not really and not report.untouched:
        note(f"nothing was changed; {_WHAT_APPLY_DOES}")
    lost = report.entries_after_log or report.entries_left or report.lacking or report.left_out
    lacks = really and not report.untouched and _warned(store, broker_conf)
    return bool(report.damage or report.intact_cut or lost or lacks)


def _warned(store: str, broker_conf: str | None) -> bool:
    """Warn of what the recovered store lacks, as opening it sees. Returns whether messages are lost.

    An error here leaves that unknown, and the store repaired.
    """
    from rmq_store.store import MessageStore

    try:
        with MessageStore.open(store, broker_conf=broker_conf) as opened:
            warn_of(opened)
            return opened.opening.has_losses
    except (StoreError, OSError) as error:
        problem(f"warning: the store is repaired; what it still lacks is not known: {error}")
        return True
