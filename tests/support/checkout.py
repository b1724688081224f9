"""The folder of the checkout: tests run its scripts and read its pages."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
