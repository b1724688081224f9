"""The report of a store: what it is, its damage, and every other section that can be made; else why not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from typing import NamedTuple

from rmq_store.admin.info import StoreInfo, info_of, store_info, summary_of
from rmq_store.errors import LOG, StoreError, spoken
from rmq_store.format.byte_layout import ABORT_BACKUP_FILE
from rmq_store.markers import was_closed
from rmq_store.questions.answer_by_shares import OnProgress, OpenedStore, ask, processes_for
from rmq_store.reading.store_reader import StoreReader
from rmq_store.report import consumers, space
from rmq_store.report.section import (
    NO_BOUNDS,
    Grid,
    Inquiry,
    NamedStore,
    ReadLimits,
    Remark,
    Report,
    ReportCell,
    Section,
    columns_of_rows,
    failed_section,
    sentence_of_rest,
    text,
    worst_first,
)
from rmq_store.tables import TABLES
from rmq_store.text.sizes import counted
from rmq_store.verify.config_against_store import config_findings, progress_findings
from rmq_store.verify.findings import Finding, Severity
from rmq_store.verify.verify_store import VerifyQuestion

_ROWS = 100


def facts(inquiry: Inquiry) -> Section:
    """What the store is and how it ended (the answer of `rmqstore info`)."""
    return facts_from(info_of(inquiry.store), inquiry.named, verified=inquiry.verify)


def facts_from(info: StoreInfo, named: NamedStore, *, verified: bool = False) -> Section:
    """The section `facts`, also of a store whose queues cannot be read. `verified`: as in `summary_of`."""
    rows = [[text(name), text(value)] for name, value in summary_of(info, verified=verified)]
    return Section(
        "facts",
        "The store",
        grids=[Grid("facts-of-store", "", ("fact", "value"), rows)],
        remarks=list(_ending(named, info)),
        commands=[named.command("info")],
    )


def _ending(named: NamedStore, info: StoreInfo) -> Iterator[Remark]:
    if info.lockHeld:
        yield Remark(
            Severity.NOTE,
            "a process has the store open to write: the numbers are those of the moment when the "
            "report was made",
            named.command("info"),
        )
    elif not info.closed:
        or_open = ", or a broker has it open" if info.lockHeld is None else ""
        yield Remark(
            Severity.WARNING,
            f"the store was not closed cleanly{or_open}: it has the file abort, and the broker's next "
            "start recovers it",
            named.command("recover"),
        )


def files(inquiry: Inquiry) -> Section:
    """The release, and the files by part: their size, and the space that they take on the disk."""
    parts: dict[str, Counter[str]] = {}
    for row in TABLES["files"].rows(inquiry.store):
        counts = {"files": 1, "size": row["size"], "allocated": row["allocated"]}
        parts.setdefault(row["part"], Counter()).update(counts)
    order = sorted(parts, key=lambda part: (-parts[part]["size"], part))
    rows = [{"part": part, **parts[part]} for part in order]
    store = inquiry.store
    release = f"No file records the release; the records look like those of {store.dialect}."
    if (store.path / ABORT_BACKUP_FILE).exists():
        release = "The broker is of release 5.0 or newer: it left abort.bak."
    return Section(
        "files",
        "Files",
        f"{release} A broker creates log files in advance: size is what ls shows, "
        "allocated is what they take on the disk.",
        grids=[columns_of_rows("files-by-part", "", "part files size allocated", rows)],
        commands=[inquiry.command("table files")],
    )


def damage(inquiry: Inquiry) -> Section:
    """Damage: that which costs little to find, or all that `verify` finds."""
    store, look = inquiry.store, inquiry.command("verify")
    section = Section("damage", "Damage", commands=[look])
    if inquiry.verify:
        engine = processes_for(store)
        report = ask(VerifyQuestion(), OpenedStore(store), engine, progress=inquiry.progress)
        return replace(
            section,
            about=f"The whole log was checked: {counted(report.records, 'record')}, "
            f"{counted(report.queues, 'queue')}, {counted(len(report.index), 'index file')}."
            + ("" if len(report.findings) else " Nothing is wrong."),
            grids=_findings_grids(report.findings),
            remarks=[
                *_notes(inquiry),
                *(_remark(inquiry, kind, places) for kind, places in report.findings.kinds()),
            ],
            verdict=report.verdict,
        )
    findings = [*config_findings(store), *progress_findings(store), *_index_beyond(store)]
    losses = [Remark(Severity.ERROR, spoken(what), look) for what in store.opening.losses()]
    warnings = [*losses, *_notes(inquiry)]
    nothing = "Nothing was found in what was looked at." if not findings and not warnings else ""
    return replace(
        section,
        about="Looked at: the files of the log and of the queues, the end of the log, the headers of the "
        f"index, the files of config/ and the offsets of the groups. {nothing}",
        grids=_findings_grids(findings),
        remarks=[*warnings, *(_remark(inquiry, finding) for finding in findings)],
        unseen=[
            "The records and their checksums, the queue entries compared with the records, and the "
            "index: rmqstore report --verify, or rmqstore verify, reads all of them."
        ],
    )


def _index_beyond(store: StoreReader) -> Iterator[Finding]:
    """Findings for index files with records after the end of the log, by their headers alone."""
    try:
        index = store.key_index()
    except StoreError:  # of another geometry than the broker.conf says; verify reports it
        return
    severity = Severity.NOTE if not was_closed(store.path) else Severity.WARNING
    for file in index.files:
        beyond = index.why_beyond_log(file)
        if beyond is not None:
            yield Finding(
                severity,
                "index-beyond-log",
                file.path,
                f"{beyond}: the end of the log is lost, or the header is damaged",
                "rmqstore verify compares the file with the log",
            )


def _notes(inquiry: Inquiry) -> Iterator[Remark]:
    """What may be lost, or is elsewhere: a copy may have been made while the log grew."""
    for what in inquiry.store.opening.notes():
        yield Remark(Severity.WARNING, spoken(what), inquiry.command("verify"))
    if inquiry.store.opening.behind is not None:
        yield Remark(Severity.NOTE, inquiry.store.opening.behind, inquiry.command("queues"))


def _remark(inquiry: Inquiry, finding: Finding, places: int = 1) -> Remark:
    times = f" ({places} places)" if places > 1 else ""
    text = f"{finding.code}{times}: {finding.meaning}"
    return Remark(finding.severity, text, inquiry.command("verify"))


def _findings_grids(findings: Iterable[Finding]) -> list[Grid]:
    rows = [
        [
            *(text(finding.severity.value), text(finding.code), text(finding.path)),
            ReportCell("" if finding.start is None else f"{finding.start:,} to {finding.stop:,}"),
            *(text(finding.meaning), text(finding.advice)),
        ]
        for finding in findings
    ]
    columns = ("severity", "code", "file", "bytes of it", "meaning", "advice")
    more = sentence_of_rest(len(rows), _ROWS)
    return [Grid("findings", "", columns, rows[:_ROWS], more)] if rows else []


_REMARKS = 10  # findings of a section that are listed at the start of the report


class _SectionMaker(NamedTuple):
    """A section: where it stands, the function that makes it, and the command that asks the same."""

    anchor: str
    title: str
    make: Callable[[Inquiry], Section]
    command: tuple[str, ...]


_SECTIONS = (
    _SectionMaker("facts", "The store", facts, ("info",)),
    _SectionMaker("files", "Files", files, ("info",)),
    _SectionMaker("damage", "Damage", damage, ("verify",)),
    _SectionMaker("space", "What fills the log", space.space, ("usage",)),
    _SectionMaker("rate", "When messages were stored", space.rate, ("usage", "--by", "day")),
    _SectionMaker("lag", "Consumer groups", consumers.lag, ("lag",)),
    _SectionMaker("retention", "What retention takes", consumers.retention, ("retention",)),
    _SectionMaker("scheduled", "Scheduled messages", consumers.scheduled, ("verify",)),
    _SectionMaker("transactions", "Transactions", consumers.transactions, ("verify",)),
    _SectionMaker("dead-letters", "Dead letters", consumers.dead_letters, ("verify",)),
    _SectionMaker("retries", "Retries", consumers.retries, ("verify",)),
    _SectionMaker("largest", "The largest messages", space.largest, ("usage",)),
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
            sections = [section_of(inquiry, maker.anchor) for maker in _SECTIONS]
    except StoreError as error:
        info = store_info(path, broker_name=broker_name, broker_conf=broker_conf)
        sections = [facts_from(info, named)]
        for maker in _SECTIONS[1:]:
            sections.append(
                failed_section(maker.anchor, maker.title, error, named.command(*maker.command))
            )
    return Report(named.path, now, version("rmqstore"), sections)


def section_of(inquiry: Inquiry, anchor: str) -> Section:
    """A section by its anchor, one of SECTIONS; what cannot be made says why."""
    (maker,) = (row for row in _SECTIONS if row.anchor == anchor)
    try:
        section = maker.make(inquiry)
        worst = worst_first(section.remarks)
        if rest := worst[_REMARKS:]:
            text = f"{len(rest):,} more findings are in the section {section.title}"
            worst[_REMARKS:] = [Remark(rest[0].severity, text, rest[0].command)]
            section = replace(section, remarks=worst)
        return section
    except (StoreError, OSError) as error:
        fault: Exception = error
    except Exception as error:  # of any kind: one section must not cost the report
        LOG.exception("the section %s cannot be made", maker.title)
        fault = RuntimeError(f"{error!r}: a damaged number of the store, or a fault of rmqstore")
    return failed_section(anchor, maker.title, fault, inquiry.command(*maker.command))
