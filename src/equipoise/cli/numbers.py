"""Option types stricter than the parser's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

__all__ = ["Whole"]


def _whole(type_: Any, tokens: Sequence[Token]) -> int:
    """Whole numbers only: the parser would round 8.5 to 8 without a word, and fall over 1.0e400."""
    text = tokens[0].value
    if not re.fullmatch(r"[+-]?\d{1,30}", text):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(text)


Whole = Annotated[int, Parameter(converter=_whole)]
"""An option that takes a whole number."""
