"""Exit codes of the commands. 0: all is well."""

from __future__ import annotations

EXIT_FINDINGS = 1
"""The command found something wrong, or did not find what was asked for."""
EXIT_FAILED = 2
"""The command could not do what was asked: a wrong option, no store, damage in the way."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it."""
