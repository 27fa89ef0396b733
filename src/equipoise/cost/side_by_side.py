"""Step costs side by side: what they charge, where they disagree most, and which policy question that changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import CostError
from equipoise.types import Floats

__all__ = ["BATCHES", "CONTEXTS", "SCHEMA", "SideBySide", "side_by_side"]

SCHEMA: Final = "equipoise.cost-compare/1"

BATCHES: Final = (1, 8, 32, 128)
CONTEXTS: Final = (2_000, 8_000, 32_000, 128_000)
"""Loads at which steps are priced: requests a rank, context tokens a request."""

TYPICAL: Final = (32, 32_000)
"""The load at which the fixed share is told."""

SAME_RATE: Final = 1.25
"""Exchange rates within this factor ask for the same placement: the optimum is flatter than that."""
SAME_SHARE: Final = 0.1
SAME_PRICE: Final = 1.1

Question = Literal["placement", "gain", "clock", "knee", "barrier"]


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """Two or more step costs on one grid of loads.

    Parameters
    ----------
    names : sequence of str
        One a cost, told apart.
    costs : sequence of StepCost
        In microseconds, in the order given.
    time_us : float64[costs, batches, contexts]
        Step time with that load on every rank.
    """

    names: tuple[str, ...]
    costs: tuple[StepCost, ...]
    time_us: Floats

    @property
    def rates(self) -> tuple[float, ...]:
        """Exchange rate of each, in context tokens; inf: context is free."""
        return tuple(c.request_in_context_tokens for c in self.costs)

    @property
    def fixed_shares(self) -> tuple[float, ...]:
        """What a step at the typical load pays whatever its load, as a share."""
        batch, context = TYPICAL
        return tuple(c.constant / float(c.cost([batch], [batch * context])) for c in self.costs)

    @property
    def ratio(self) -> Floats:
        """float64[batches, contexts], largest over smallest predicted time."""
        return np.asarray(self.time_us.max(axis=0) / self.time_us.min(axis=0))

    @property
    def largest(self) -> tuple[int, int, float]:
        """Batch, context and ratio where the costs are furthest apart."""
        i, j = np.unravel_index(int(np.argmax(self.ratio)), self.ratio.shape)
        return BATCHES[int(i)], CONTEXTS[int(j)], float(self.ratio[i, j])

    def totals(self) -> list[dict[str, float]]:
        """Constant, price of one more request and of 100k more context tokens of each, over all its terms."""
        return [
            {
                "constant": c.constant,
                "per_request": sum(t.weight * t.per_request for t in c.terms),
                "per_100k_context": sum(t.weight * t.per_100k_context for t in c.terms),
                "per_100k_saturated": sum(t.weight * s.per_100k for t in c.terms for s in t.saturations),
            }
            for c in self.costs
        ]

    def questions(self) -> list[tuple[Question, str]]:
        """Which questions about policies the difference changes, each with a sentence; placement comes first."""
        found: list[tuple[Question, str]] = [("placement", self._placement())]
        shares = self.fixed_shares
        if max(shares) - min(shares) > SAME_SHARE:
            found.append(("gain", self._gain()))
        if len({c.barrier for c in self.costs}) > 1:
            found.append(
                (
                    "barrier",
                    "They wait differently: with barrier = step a rank heavy in requests and another heavy in context "
                    "are one straggler, with barrier = layer they are two.",
                )
            )
        if len({_bends(c) for c in self.costs}) > 1:
            found.append(("knee", self._knee()))
        _, _, ratio = self.largest
        if ratio > SAME_PRICE:
            found.append(("clock", self._clock()))
        return found

    def _placement(self) -> str:
        low, high = min(self.rates), max(self.rates)
        if low == high or (low > 0 and high / low <= SAME_RATE):
            return (
                "Placement: they weigh a request against context alike, so expect the same policy with the same "
                "parameters to be best under each."
            )
        spans = [_span(c) for c in self.costs]
        known = [s for s in spans if s is not None]
        if len(known) == len(spans) and max(a for a, _ in known) <= min(b for _, b in known):
            return (
                f"Placement: no difference is shown. A request is worth {_tokens(low)} to {_tokens(high)}, and the "
                "intervals of the fits overlap; measure longer before you change a policy for it."
            )
        factor = f"{high / low:,.1f} times" if low > 0 and math.isfinite(high) else "without bound"
        few, many = (self.names[self.rates.index(r)] for r in (low, high))
        return (
            f"Placement: a request is worth {_tokens(low)} under {few} and {_tokens(high)} under {many}, {factor} as "
            f"much. {many} asks to even out requests more, {few} to even out tokens: expect another best policy, z or "
            "request weight, and run 'equipoise compare' under each."
        )

    def _gain(self) -> str:
        shares = self.fixed_shares
        parts = ", ".join(f"{100 * s:.0f} % under {n}" for n, s in zip(self.names, shares, strict=True))
        batch, context = TYPICAL
        return (
            f"What there is to win: the fixed part of a step of {batch} requests of {context:,} tokens a rank is "
            f"{parts}. It dilutes every gain by that share, and no placement changes it."
        )

    def _knee(self) -> str:
        parts = "; ".join(f"{n}: {_bends(c)}" for n, c in zip(self.names, self.costs, strict=True))
        return (
            f"Small loads: the prices bend at different places ({parts}). That changes how ranks with few requests or "
            "short contexts compare."
        )

    def _clock(self) -> str:
        batch, context, ratio = self.largest
        return (
            f"Times: predicted steps differ by up to {ratio:.2f} times (batch {batch}, {context:,} tokens a request). "
            "That changes timed runs, latencies and how many requests a pool can serve, not which rank is best."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data (schema ``equipoise.cost-compare/1``); null where context is free."""
        batch, context, ratio = self.largest
        return {
            "schema": SCHEMA,
            "costs": [
                {
                    "name": name,
                    "formula": cost.formula(),
                    "barrier": cost.barrier,
                    "totals": totals,
                    "request_in_context_tokens": rate if math.isfinite(rate) else None,
                    "fixed_share": share,
                }
                for name, cost, totals, rate, share in zip(
                    self.names, self.costs, self.totals(), self.rates, self.fixed_shares, strict=True
                )
            ],
            "unit": "us",
            "grid": [
                {
                    "batch": b,
                    "context_tokens": c,
                    "time_us": self.time_us[:, i, j].tolist(),
                    "ratio": float(self.ratio[i, j]),
                }
                for i, b in enumerate(BATCHES)
                for j, c in enumerate(CONTEXTS)
            ],
            "largest_ratio": {"batch": batch, "context_tokens": context, "ratio": ratio},
            "questions": [{"question": q, "words": words} for q, words in self.questions()],
        }


def side_by_side(costs: Sequence[StepCost]) -> SideBySide:
    """Price the same loads under several costs.

    Parameters
    ----------
    costs : sequence of StepCost
        Two or more, in any unit: all are brought to microseconds by their own clocks.

    Raises
    ------
    CostError
        Fewer than two costs.
    """
    if len(costs) < 2:
        raise CostError(f"{len(costs)} cost to compare", fix="give two or more")
    B = np.array(BATCHES)[:, None, None]
    C = B * np.array(CONTEXTS)[None, :, None]
    in_us = tuple(c.in_us() for c in costs)
    time_us = np.stack([c.cost(np.broadcast_to(B, C.shape), C) for c in in_us])
    return SideBySide(_told_apart([c.name for c in costs]), in_us, time_us)


def _told_apart(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(n if names.count(n) == 1 else f"{n} ({names[:i].count(n) + 1})" for i, n in enumerate(names))


def _span(cost: StepCost) -> tuple[float, float] | None:
    """Interval of the exchange rate, where a fit has left one in the file."""
    rate = cost.metadata.get("fit", {}).get("request_in_context_tokens", {})
    if not isinstance(rate, Mapping):
        return None
    low, high = rate.get("low"), rate.get("high")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return None
    return float(low), float(high)


def _bends(cost: StepCost) -> str:
    """Where prices stop being straight, in words."""
    floors = sorted({t.batch_floor for t in cost.terms if t.batch_floor})
    parts = [f"flat below batch {b}" for b in floors]
    if any(t.batch_table for t in cost.terms):
        parts.append("a table of batches")
    parts += [f"context saturates at {n:,}" for n in cost.saturation_tokens]
    return ", ".join(parts) or "straight"


def _tokens(rate: float) -> str:
    if math.isinf(rate):
        return "more than any context"
    return f"{float(f'{rate:.3g}'):,.0f} tokens"
