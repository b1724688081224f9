"""The index files of a store, opened in order."""

from __future__ import annotations

from pathlib import Path

from rmq_store.config.broker_conf import StoreConfig
from rmq_store.errors import IndexGeometryError
from rmq_store.files.mapping import MappingCache
from rmq_store.files.segments import SegmentFile
from rmq_store.format.layout import INDEX_DIR
from rmq_store.index.index_file_reader import IndexFile, list_index_files

FILES_MAPPED = 2


def open_index_files(root: Path, config: StoreConfig) -> list[IndexFile]:
    """The readable index files."""
    mappings = MappingCache(FILES_MAPPED)
    segments = list_index_files(root / INDEX_DIR)
    opened = [open_index_file(segment, config, mappings) for segment in segments]
    return [file for file in opened if isinstance(file, IndexFile)]


def open_index_file(
    segment: SegmentFile, config: StoreConfig, mappings: MappingCache
) -> IndexFile | IndexGeometryError:
    slots, items = config.maxHashSlotNum, config.maxIndexNum
    try:
        return IndexFile(segment, slots=slots, items=items, mappings=mappings)
    except IndexGeometryError as error:
        return error
