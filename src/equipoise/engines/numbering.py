"""Which number a vLLM node understands: that of its own ranks, or that of the whole deployment.

With ``--data-parallel-hybrid-lb`` every node has a front-end. The Python one checks the header against its own ranks,
the Rust one (``VLLM_USE_RUST_FRONTEND=1``) resolves the global number; sending the wrong one gets half the requests
refused (vllm-project/router PR 210). One request with a number that is valid in only one of the two tells; the answer
holds until the node is lost.
"""

from __future__ import annotations

import math

from equipoise.engines.types import EngineInstance, Numbering

__all__ = ["Probe", "numbered"]

RETRY_S = 1.0, 60.0
"""First and longest pause between probes that told nothing."""


def numbered(instance: EngineInstance, rank: int) -> int:
    """The number to send for a rank of this instance; local while nobody knows better."""
    return instance.first_rank + rank if instance.numbering == "global" else rank


class Probe:
    """Finds the numbering of one node; sans I/O.

    ::

        unknown --sent--> asking --200--> global
           ^                 |----400--> local
           |---anything else-|            (lost: back to unknown)

    Parameters
    ----------
    first_rank, ranks : int
        Of the node. A node that starts at rank 0 needs no probe: both numberings are the same.
    """

    __slots__ = ("_asking", "_first", "_number", "_pause_s", "_retry_at_s", "numbering")

    def __init__(self, first_rank: int, ranks: int) -> None:
        # The last global number: at least `ranks` where first_rank is above 0, so never a local one.
        self._number = first_rank + ranks - 1
        self._first = first_rank
        self.numbering: Numbering
        self._asking: bool
        self._pause_s: float
        self._retry_at_s: float
        self.lost()

    def wanted(self, now_s: float) -> int | None:
        """The rank number to send in a small request now, or None; counts as sent."""
        if self.numbering != "unknown" or self._asking or now_s < self._retry_at_s:
            return None
        self._asking = True
        return self._number

    def answered(self, now_s: float, status: int, text: str = "") -> Numbering:
        """What the engine said to it: 2xx, or 400 and why; status 0 where it did not answer."""
        if not self._asking:
            return self.numbering
        self._asking = False
        if 200 <= status < 300:
            self.numbering = "global"
        elif status == 400 and "rank" in text.lower():
            self.numbering = "local"
        else:  # overloaded, starting, or a 400 about something else: says nothing of ranks
            self._retry_at_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, RETRY_S[1])
        return self.numbering

    def lost(self) -> None:
        """The node went away: what comes back may be another front-end."""
        self.numbering = "unknown" if self._first > 0 else "local"
        self._asking = False
        self._pause_s = RETRY_S[0]
        self._retry_at_s = -math.inf
