"""The report of a store: every section that can be made, and of the others why not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import NamedTuple

from rmq_store.admin.info import store_info
from rmq_store.errors import LOG, StoreError
from rmq_store.questions.answer_by_shares import OnProgress
from rmq_store.reading.store_reader import StoreReader
from rmq_store.report import consumer_groups, facts_and_damage, space, undelivered
from rmq_store.report.report_scope import NO_BOUNDS, Inquiry, NamedStore, ReadLimits, missing
from rmq_store.report.section import Remark, Report, Section, worst_first

_REMARKS = 10  # findings of a section that are listed at the start of the report


class _Asked(NamedTuple):
    """A section: where it stands, the function that makes it, and the command that asks the same."""

    anchor: str
    title: str
    make: Callable[[Inquiry], Section]
    command: tuple[str, ...]


_SECTIONS = (
    _Asked("facts", "The store", facts_and_damage.facts, ("info",)),
    _Asked("files", "Files", facts_and_damage.files, ("info",)),
    _Asked("damage", "Damage", facts_and_damage.damage, ("verify",)),
    _Asked("space", "What fills the log", space.space, ("usage",)),
    _Asked("rate", "When messages were stored", space.rate, ("usage", "--by", "day")),
    _Asked("lag", "Consumer groups", consumer_groups.lag, ("lag",)),
    _Asked("retention", "What retention takes", consumer_groups.retention, ("retention",)),
    _Asked("scheduled", "Scheduled messages", undelivered.scheduled, ("verify",)),
    _Asked("transactions", "Transactions", undelivered.transactions, ("verify",)),
    _Asked("dead-letters", "Dead letters", undelivered.dead_letters, ("verify",)),
    _Asked("retries", "Retries", undelivered.retries, ("verify",)),
    _Asked("largest", "The largest messages", space.largest, ("usage",)),
)
SECTIONS = {one.anchor: one.title for one in _SECTIONS}


def store_report(
    path: str,
    *,
    broker_conf: str | None = None,
    broker_name: str | None = None,
    verify: bool = False,
    everything: bool = False,
    bounds: ReadLimits | None = None,
    now_ms: int | None = None,
    on_open: Callable[[StoreReader], OnProgress | None] = lambda store: None,
) -> Report:
    """A report of the store at `path`. Changes nothing in it.

    `verify`: check the whole log, also if it is larger than `bounds` has it. `everything`: read all that
    `bounds` would leave out. `now_ms`: the moment of the report, by default that of the clock. `on_open`: is
    given the open store whose log is checked, and returns what is called with the bytes that were. Raises
    StoreError if neither the store nor its log alone can be opened; damage in parts of the store becomes part
    of the report.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    named = NamedStore.of(path, broker_conf, broker_name)
    limits = NO_BOUNDS if everything else bounds or ReadLimits()
    try:
        with StoreReader.open(path, broker_conf=broker_conf, broker_name=broker_name) as store:
            chain = store.log.chain
            # A check of a small log takes seconds.
            checked = verify or (chain.cost.grows and chain.stop - chain.start <= limits.verified)
            progress = on_open(store) if checked else None
            inquiry = Inquiry(store, named, limits, now, checked, progress)
            sections = [section_of(inquiry, one.anchor) for one in _SECTIONS]
    except StoreError as error:
        info = store_info(path, broker_name=broker_name, broker_conf=broker_conf)
        sections = [facts_and_damage.facts_from(info, named)]
        for one in _SECTIONS[1:]:
            sections.append(missing(one.anchor, one.title, error, named.command(*one.command)))
    return Report(named.path, now, version("rmqstore"), sections)


def section_of(inquiry: Inquiry, anchor: str) -> Section:
    """A section by its anchor, one of SECTIONS; what cannot be made says why."""
    (asked,) = (one for one in _SECTIONS if one.anchor == anchor)
    try:
        section = asked.make(inquiry)
        worst = worst_first(section.remarks)
        if rest := worst[_REMARKS:]:
            text = f"{len(rest):,} more findings are in the section {section.title}"
            worst[_REMARKS:] = [Remark(rest[0].severity, text, rest[0].command)]
            section = replace(section, remarks=worst)
        return section
    except (StoreError, OSError) as error:
        fault: Exception = error
    except Exception as error:  # of any kind: one section must not cost the report
        LOG.exception("the section %s cannot be made", asked.title)
        fault = RuntimeError(f"{error!r}: a damaged number of the store, or a fault of rmqstore")
    return missing(anchor, asked.title, fault, inquiry.command(*asked.command))
