"""Exit codes of the commands. 0 means no problem."""

from __future__ import annotations

EXIT_FINDINGS = 1
"""The command found a problem, or found nothing."""
EXIT_FAILED = 2
"""The command could not do it: a wrong option, no store, or damage that prevents it."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it."""
