"""Files beside a target, which must stay as they are."""

from __future__ import annotations

from pathlib import Path

_READ = 1 << 24  # bytes; of larger files, which are sparse, the size must do
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


def tree(folder: Path) -> dict[str, tuple[object, int]]:
    """Every file, folder and link below a folder: its content and time."""
    return {
        str(path.relative_to(folder)): (_content(path), path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith(".replay.lock")
    }


def _content(path: Path) -> object:
    if path.is_symlink():
        return path.readlink()
    if not path.is_file():
        return None
    size = path.stat().st_size
    return size if size > _READ else path.read_bytes()
