"""Numbers out of an engine's answer: finite, in range, or an `EngineError` that says which one was not."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from equipoise.engines.types import MAX_RANKS
from equipoise.errors import EngineError

__all__ = ["count", "json_document", "label_rank", "optional_count", "share"]

LARGEST = 1 << 53
"""Counts beyond it are not exact in JSON, and no engine has so many of anything."""


def json_document(data: bytes, source: str) -> Any:
    """The document as plain objects."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"{source}: the answer is no JSON ({str(error)[:80]}).") from error


def count(value: Any, name: str, source: str) -> int:
    """A whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EngineError(f"{source}: {name} = {_shown(value)} is no number.")
    if not 0 <= value <= LARGEST:  # NaN is not
        raise EngineError(f"{source}: {name} = {_shown(value)}; a count is from 0 to 2^53.")
    return round(value)


def optional_count(value: Any, name: str, source: str) -> int | None:
    """The same, None where there is none."""
    return None if value is None else count(value, name, source)


def share(value: Any, name: str, source: str) -> float | None:
    """A share from 0 to 1 (a little more is rounding, and cut); None where it is missing or not a number."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e-6 <= value <= 1.5:
        raise EngineError(f"{source}: {name} = {_shown(value)}; a share is from 0 to 1.")
    return min(max(float(value), 0.0), 1.0)


def label_rank(text: str | None, name: str, source: str) -> int:
    """A rank in a label; none is rank 0."""
    if text is None or text == "":
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) < MAX_RANKS):
        raise EngineError(f"{source}: {name} = {text[:40]!r} is no rank; ranks are 0 to {MAX_RANKS - 1}.")
    return int(text)


def _shown(value: Any) -> str:
    return repr(value)[:40]
