"""Recorded answers of engines."""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"


def recorded(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()
