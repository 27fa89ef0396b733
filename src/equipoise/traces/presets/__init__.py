"""Synthetic workloads as data: one TOML file a preset, with the parameters and where they come from."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from equipoise.errors import TraceError, nearest

__all__ = ["PRESETS", "load_preset", "preset_names"]

PRESETS = ("agentic-coding", "chat-long", "chat-short", "code-completion", "reasoning", "mixed-tail")
"""Names, the default workload first."""


def preset_names() -> tuple[str, ...]:
    """Names of the synthetic workloads, the default one first."""
    return PRESETS


@cache
def load_preset(name: str) -> dict[str, Any]:
    """The table of a preset.

    Raises
    ------
    TraceError
        Unknown name.
    """
    if name not in PRESETS:
        raise TraceError(f"the workload preset {name!r} is unknown", fix=nearest(str(name), PRESETS))
    text = (files(__package__) / f"{name.replace('-', '_')}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
