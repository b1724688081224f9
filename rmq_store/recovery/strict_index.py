"""The index after a crash: deletes files that may be torn and indexes their records again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import IndexGeometryError, StoreError
from rmq_store.files.segments import SegmentFile
from rmq_store.format.byte_layout import INDEX_DIR
from rmq_store.format.releases import Dialect
from rmq_store.index.index_file_reader import (
    Geometry,
    Header,
    IndexFile,
    list_index_files,
    list_too_short,
)
from rmq_store.index.index_writer import IndexWriter
from rmq_store.markers.checkpoint import Checkpoint
from rmq_store.recovery.change_list import ChangeList


def index_geometry(files: Sequence[SegmentFile], config: StoreConfig) -> Geometry:
    """Slots and items: as configured, else as in the files, else the broker's defaults.

    A file without items proves the fewest.
    """
    explicit = config.maxHashSlotNum, config.maxIndexNum
    empty: Geometry | None = None
    for segment in reversed(files):
        try:
            file = IndexFile(segment, slots=explicit[0], items=explicit[1])
        except IndexGeometryError:
            continue
        if file.header.items:
            return file.geometry
        empty = empty or file.geometry
    return empty or Geometry(config.index_slots, config.index_items)


def last_index_writer(
    root: Path, files: Sequence[SegmentFile], geometry: Geometry, release: Dialect, *, planned: bool
) -> IndexWriter:
    """A writer that continues the newest of the `files`, with the header that it has.

    As in the broker, nothing else of the file is checked (IndexService#getAndCreateLastIndexFile).
    `planned`: it only counts.
    """
    header: Header | None = None
    if files:
        header = IndexFile.assumed(files[-1], geometry).header
        header = replace(header, index_count=max(1, header.index_count))  # IndexHeader#load
    last = Path(files[-1].path) if files else None
    return IndexWriter(root, geometry, release, last, header, only_counts=planned)


class IndexRecovery:
    """Which files remain, and the log offset from which to rebuild the index."""

    def __init__(
        self, root: Path, config: StoreConfig, checkpoint: Checkpoint, log_range: tuple[int, int]
    ) -> None:
        files = list_index_files(root / INDEX_DIR)
        self.geometry = index_geometry(files, config)
        self._root = root
        self._range = log_range
        self.doubtful: list[SegmentFile] = []
        begins: list[int] = []
        for segment in files:
            header = self._header(segment)
            full = header is not None and self._is_full(header, checkpoint)
            if not full or self.doubtful:  # all files after a doubtful one are doubtful
                self.doubtful.append(segment)
                begins.append(-1 if header is None else header.begin_log_offset)
        self.kept = files[: len(files) - len(self.doubtful)]
        self.start = self._start(begins)

    def _is_full(self, header: Header, checkpoint: Checkpoint) -> bool:
        """Whether a file was flushed completely and is no longer written to.

        The time alone does not show that: a file begun in the same millisecond in which the
        previous one became full has the same time.
        """
        whole = header.index_count >= self.geometry.items
        return whole and header.end_timestamp <= checkpoint.index_msg_timestamp

    def _header(self, segment: SegmentFile) -> Header | None:
        """The header of a trustworthy file; None for any other."""
        try:
            found = IndexFile(segment, slots=self.geometry.slots, items=self.geometry.items)
        except StoreError:
            return None
        header = found.header
        return header if header.items and header.end_log_offset < self._range[1] else None

    def _start(self, begins: list[int]) -> int | None:
        """Where to index from: the end of the remaining files, else the start of the deleted ones."""
        first, end = self._range
        if self.kept:
            before = self._header(self.kept[-1])
            return first if before is None else max(first, before.end_log_offset)
        if not begins:
            return None
        return begins[0] if first <= begins[0] < end else first

    def remove_doubtful(self, changes: ChangeList) -> None:
        """Delete the files that may be torn, and those that a crash left without a header."""
        files = [(file.path, file.size) for file in self.doubtful]
        for path, size in (*files, *list_too_short(self._root / INDEX_DIR)):
            changes.remove(path, size)
