"""The slow twin of the fleet kernel: objects and lists, written apart from it after the same rules."""

from __future__ import annotations

from equipoise.fleet.twin.run import run_reference

__all__ = ["run_reference"]
