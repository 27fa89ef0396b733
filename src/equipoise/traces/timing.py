"""How long a server is taken to work where a trace does not say."""

from __future__ import annotations

import numpy as np

from equipoise.types import Floats, Ints

__all__ = ["SERVER_TPOT_S", "service_s"]

SERVER_TPOT_S = 0.025
"""Seconds a generated token: a middling decode speed (40 tokens/s a request; agent logs show 17 to 25 ms).

Used to place the turns of synthetic sessions in time, and to split the gap between two recorded turns into
answer and think time where the file holds only arrivals. It never enters a replay, which has its own clock.
"""


def service_s(output_tokens: Ints) -> Floats:
    """Seconds from a request's arrival to its last token, prefill and queueing left out."""
    seconds: Floats = output_tokens * np.float64(SERVER_TPOT_S)
    return seconds
