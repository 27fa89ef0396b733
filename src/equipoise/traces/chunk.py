"""`Chunk`: some synthetic requests in order of arrival, the unit that generators hand on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.types import Floats, Ints

__all__ = ["CHUNK_REQUESTS", "Chunk"]

CHUNK_REQUESTS = 32_768
"""Requests made at a time, about: memory follows the trace's columns and nothing else."""


class Chunk:
    """Some requests in order of arrival; the session columns are None where there are no sessions."""

    __slots__ = ("arrival_s", "context_tokens", "output_tokens", "session", "think_s", "turn")

    def __init__(
        self,
        arrival_s: Floats,
        context_tokens: Ints,
        output_tokens: Ints,
        session: Ints | None = None,
        turn: NDArray[np.int32] | None = None,
        think_s: Floats | None = None,
    ) -> None:
        self.arrival_s = arrival_s
        self.context_tokens = context_tokens
        self.output_tokens = output_tokens
        self.session = session
        self.turn = turn
        self.think_s = think_s
