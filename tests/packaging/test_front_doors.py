"""Tests ask through the doors that users have; what they import from inside, and why, is listed here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.checkout import CHECKOUT

OURS = ("rmq_store", "spark_source", "rmqstore_jobs")
PUBLIC = {*OURS, "rmq_store.errors", "rmq_store.store", "rmq_store.testing", "rmq_store.cli.main"}
# Folder of tests (* are all): modules: why.
INSIDE = """
*: rmq_store.format rmq_store.markers: numbers, hashes and marks by which tests make and read bytes
*: rmq_store.config: settings, and files of a store that nobody opens
*: rmq_store.arrow.column_definitions rmq_store.tables: names of columns
*: rmq_store.scan.options: names of options
*: rmq_store.admin.info rmq_store.report.store_report: what is printed for people, as values
*: rmqstore_jobs.export rmqstore_jobs.dlq rmqstore_jobs.running rmq_store.files.journal: jobs as scripts
admin: rmq_store.arrow.encoding rmq_store.system_topics: strings and rows that a new store has to have
arrow: rmq_store.arrow rmq_store.commitlog rmq_store.consumequeue rmq_store.loops: fast against readable
browse: rmq_store.browse rmq_store.report.section rmq_store.search: a server here
cli: rmq_store.cli rmq_store.text rmq_store.questions: words, widths and forms of the shell
config: rmq_store.admin.reset_offsets: writers and readers of configuration
dataset: rmq_store.commitlog.log: how many bytes tell a store
dataset: rmq_store.sql.database: a table as SQL reads it, of a store that is replaced
files: rmq_store.files rmq_store.commitlog rmq_store.consumequeue: holes and maps, which no row shows
files: rmq_store.reading rmq_store.snapshot spark_source.streaming: looks at files that change meanwhile
hostile: rmq_store.files rmqstore_jobs.replaying: paths and texts before anything is read
hostile: rmq_store.reading rmq_store.snapshot rmq_store.scan: injuries in the middle of a read
jobs: rmqstore_jobs rmq_store.questions rmq_store.verify rmq_store.arrow.encoding: waves, killed senders
jobs: rmq_store.commitlog spark_source.writing: what a wave hands to a writer
live: rmqstore_jobs rmq_store.recovery rmq_store.verify: plans that a real broker confirms
loops: rmq_store.arrow rmq_store.consumequeue: compiled against interpreted; nothing outside shows which ran
packaging: rmqstore_jobs spark_source: pages have the tables of the code
reading: rmq_store.reading rmq_store.commitlog rmq_store.arrow rmq_store.consumequeue: limits made small
reading: rmq_store.files rmq_store.snapshot rmq_store.search rmq_store.scan.tasks: looks meanwhile
recovery: rmq_store.index rmq_store.consumequeue: index files, and lives of a queue
remote: rmq_store.files rmq_store.commitlog rmq_store.search: requests and blocks
report: rmq_store.report rmq_store.questions rmq_store.text rmq_store.system_topics: parts
search: rmq_store.search rmq_store.index rmq_store.reading: walks of an index, which messages do not show
snapshot: rmq_store.snapshot rmq_store.files rmq_store.commitlog rmq_store.consumequeue: looks of an opening
snapshot: rmq_store.search: ranges by time
spark_source: spark_source rmq_store.scan rmq_store.files rmq_store.search: without Spark
spark_source: rmq_store.snapshot rmq_store.index: what a query leaves unread
sql: rmq_store.sql rmq_store.index: a database in this process
support: rmq_store.files rmq_store.index rmq_store.system_topics rmq_store.cli rmqstore_jobs spark_source: all
system_topics: rmq_store.system_topics rmq_store.search rmq_store.commitlog: one pass
text: rmq_store.text rmq_store.cli: texts, times and bars by themselves
verify: rmq_store.verify rmq_store.recovery rmq_store.questions rmq_store.report spark_source: by place
verify: rmq_store.commitlog rmq_store.index rmq_store.files rmq_store.text: parts of files
writing: rmq_store.writing rmq_store.arrow.encoding rmq_store.commitlog rmq_store.files: flushes
"""
LINES = re.findall(r"(.+?): (.+): ", INSIDE)
RULES = {(folder, one) for folder, some in LINES for one in some.split()}


def imports(path: Path) -> Iterator[str]:
    """What a module imports of ours, with the name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith(OURS))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            yield from (f"{node.module}.{one.name}" for one in node.names)


def test_tests_import_what_users_import_or_what_is_listed() -> None:
    pages = " ".join(path.read_text("utf-8") for path in (CHECKOUT / "docs").rglob("*.md"))
    named = {word for word in re.findall(r"\w+(?:\.\w+)+", pages) if word.startswith(OURS)}
    public = {*PUBLIC, *named, *(word.rpartition(".")[0] for word in named)}
    used, wrong = set(), []
    for path in sorted((CHECKOUT / "tests").rglob("*.py")):
        folder = path.relative_to(CHECKOUT / "tests").parts[0]
        mine = {one for of, one in RULES if of in ("*", folder)}
        for name in imports(path):
            if not {name, name.rpartition(".")[0]} & public and ".testing." not in name:
                found = {one for one in mine if f"{name}.".startswith(f"{one}.")}
                used |= {(of, one) for of, one in RULES if of in ("*", folder) and one in found}
                wrong += [] if found else [f"{path}: {name}"]
    assert not wrong, "ask through a front, or say in INSIDE why not"
    assert not RULES - used, "nothing imports these any more"
