"""The operating system as it is without permission: tests run as root, who has it everywhere."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def refuse(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, folder: Path) -> None:
    """Let `owner.name` behave below `folder` as without permission."""
    real = getattr(owner, name)

    def refusing(path: Any, *rest: Any, **more: Any) -> Any:
        if folder == Path(path) or folder in Path(path).parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(owner, name, refusing)
