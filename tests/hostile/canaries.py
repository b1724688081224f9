"""Files beside a target, which must stay as they are."""

from __future__ import annotations

from pathlib import Path

Canaries = dict[str, tuple[bytes, int]]


def canaries(folder: Path) -> Canaries:
    """Make them in `folder`. Returns their content and times."""
    (folder / "can" / "0").mkdir(parents=True, exist_ok=True)
    (folder / "can" / "0" / "00000000000000000000").write_bytes(b"a file of somebody else")
    (folder / "victim.txt").write_text("this stays")
    return state_of(folder)


def state_of(folder: Path) -> Canaries:
    """Content and time of each of them now."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
        if path.relative_to(folder).parts[0] in ("can", "victim.txt")
    }
