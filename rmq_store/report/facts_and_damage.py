"""Sections of a report: what the store is and how it ended, and its damage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rmq_store.admin.info import StoreInfo, facts_of, info_of
from rmq_store.errors import StoreError, spoken
from rmq_store.format.byte_layout import ABORT_BACKUP_FILE
from rmq_store.markers import was_closed
from rmq_store.questions.answer_by_shares import OpenedStore, ask, processes_for
from rmq_store.reading.store_reader import StoreReader
from rmq_store.report.report_scope import Inquiry, NamedStore
from rmq_store.report.section import Cell, Grid, Remark, Section, listing, not_listed, text
from rmq_store.tables import TABLES
from rmq_store.text.sizes import counted
from rmq_store.verify.config_against_store import config_findings, progress_findings
from rmq_store.verify.findings import Finding, Severity
from rmq_store.verify.verify_store import VerifyQuestion

_ROWS = 100


def facts(inquiry: Inquiry) -> Section:
    """What the store is and how it ended (the answer of `rmqstore info`)."""
    return facts_from(info_of(inquiry.store), inquiry.named)


def facts_from(info: StoreInfo, named: NamedStore) -> Section:
    """The section `facts`, also of a store whose queues cannot be read."""
    rows = [[text(name), text(value)] for name, value in facts_of(info)]
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
        grids=[listing("files-by-part", "", "part files size allocated", rows)],
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
        beyond = index.beyond_log(file)
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
            *(text(one.severity.value), text(one.code), text(one.path)),
            Cell("" if one.start is None else f"{one.start:,} to {one.stop:,}"),
            *(text(one.meaning), text(one.advice)),
        ]
        for one in findings
    ]
    columns = ("severity", "code", "file", "bytes of it", "meaning", "advice")
    more = not_listed(len(rows), _ROWS)
    return [Grid("findings", "", columns, rows[:_ROWS], more)] if rows else []
