"""What a fitted cost says about knobs that engines and routers already have.

All follow from one ratio: a linear score ``tokens + x * requests`` orders ranks as the step cost does where ``x`` is
the exchange rate, price of a request over price of a context token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from equipoise.calibrate.result import FitResult, ValueInterval
from equipoise.cost import StepCost
from equipoise.errors import InputError

if TYPE_CHECKING:
    from equipoise.study.compare import Progress

__all__ = ["BLOCK_TOKENS", "BestZ", "Knobs", "best_z", "knobs", "usual_batch"]

BLOCK_TOKENS: Final = 64
"""Tokens of a KV block, if nobody says."""

TABLE_BATCH: Final = 32
"""Requests a rank in the replays for a cost from a measured table, whose batches are a grid and nobody's load."""

BATCHES: Final = (4, 128)
"""Bounds of the requests a rank in the replays."""

SEEDS: Final = 3

GRID: Final = (0.95, 1.0, 1.02, 1.04, 1.05, 1.06, 1.08, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.7, 2.0)
"""Thresholds tried: dense where the optimum of every cost and traffic tried so far lies."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings of balancers in use, each with its 95 % interval.

    Parameters
    ----------
    request_equivalent_tokens : ValueInterval
        x of a balancer that compares ``tokens + x * requests``.
    decode_active_request_weight : ValueInterval
        w of Dynamo's KV router (``--router-decode-active-request-weight``), whose score is ``blocks + w * requests``:
        the exchange rate counted in blocks (github.com/ai-dynamo/dynamo, ``lib/kv-router``, pull request 12158).
    block_tokens : int
        Tokens of one of these blocks.
    """

    request_equivalent_tokens: ValueInterval
    decode_active_request_weight: ValueInterval
    block_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data; null where a number is not known."""
        return {
            "request_equivalent_tokens": _plain(self.request_equivalent_tokens),
            "decode_active_request_weight": _plain(self.decode_active_request_weight),
            "block_tokens": self.block_tokens,
        }


def knobs(result: FitResult, block_tokens: int = BLOCK_TOKENS) -> Knobs:
    """Work out the knobs that need no replay.

    Parameters
    ----------
    result : FitResult
    block_tokens : int
        Tokens of a KV block of the engine.

    Raises
    ------
    InputError
        A block without tokens.
    """
    if not 1 <= block_tokens <= 1_000_000:
        raise InputError(f"block_tokens = {block_tokens}", fix="a KV block has from 1 to 1,000,000 tokens")
    rate = result.exchange_rate
    weight = ValueInterval(*(v / block_tokens for v in rate))
    return Knobs(rate, weight, block_tokens)


@dataclass(frozen=True, slots=True)
class BestZ:
    """The threshold of DualPath that is cheapest under a cost, by replay.

    Parameters
    ----------
    z, default_z : float
        The best one tried, and the policy's default.
    as_good : (float, float)
        Smallest and largest z shown to be less than a tenth of a point of excess behind.
    excess, default_excess : ValueInterval
        At the best z and at the policy's default, on seeds the search has not seen; fractions.
    gain : ValueInterval
        Excess of the default less that of the best.
    curve : sequence of (float, float)
        Every z tried with its mean excess, by z.
    trace : str
    ranks, batch : int
        Ranks of the instance, requests a rank.
    """

    z: float
    default_z: float
    as_good: tuple[float, float]
    excess: ValueInterval
    default_excess: ValueInterval
    gain: ValueInterval
    curve: tuple[tuple[float, float], ...]
    trace: str
    ranks: int
    batch: int

    def within(self, share: float = 0.01) -> tuple[float, float]:
        """Smallest and largest z whose mean excess is at most so much above the least: how flat the optimum is."""
        least = min(e for _, e in self.curve)
        close = [z for z, e in self.curve if e - least <= share]
        return min(close), max(close)

    @property
    def gain_is_shown(self) -> bool:
        """Whether the best z is shown to beat the default."""
        return self.gain.low > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "z": self.z,
            "default_z": self.default_z,
            "as_good_low": self.as_good[0],
            "as_good_high": self.as_good[1],
            "excess": _plain(self.excess),
            "default_excess": _plain(self.default_excess),
            "gain_over_default": _plain(self.gain),
            "trace": self.trace,
            "ranks": self.ranks,
            "requests_a_rank": self.batch,
            "curve": [{"z": z, "excess": e} for z, e in self.curve],
        }


def usual_batch(result: FitResult) -> int:
    """Requests a rank at which to replay: those of the log, within reason."""
    if result.bootstrap.get("units") == "regions":
        return TABLE_BATCH
    return int(np.clip(round(float(np.mean(result.points.batch))), *BATCHES))


def best_z(
    cost: StepCost,
    *,
    batch: int = TABLE_BATCH,
    trace: str = "agentic-coding",
    ranks: int = 64,
    seed: int = 0,
    jobs: int = 2,
    progress: Progress | None = None,
) -> BestZ:
    """Find the z of DualPath by replaying a trace under a cost: a small study, as ``equipoise tune dualpath`` runs it.

    Parameters
    ----------
    cost : StepCost
    batch : int
        Requests a rank.
    trace : str
        A preset or a file, as `equipoise.traces.load` takes it.
    ranks : int
    seed : int
    jobs : int
        Replays at a time.
    progress : function, optional
        Called with (candidates measured, candidates in all).

    Raises
    ------
    InputError
        Optuna is not installed; no such trace; a pool that cannot be.
    """
    from equipoise.policies import parse
    from equipoise.replay import Pool
    from equipoise.study.plan import ComparePlan
    from equipoise.study.tune import Range, tune

    plan = ComparePlan(
        traces=(trace,),
        costs=(cost,),
        policies=(parse("dualpath"),),
        pool=Pool(1, ranks),
        concurrency=batch * ranks,
        seeds=SEEDS,
        first_seed=seed,
    )
    grid = Range("z", GRID, refine=False)
    (found,) = tune(plan, "dualpath", space=(grid,), refinements=0, jobs=jobs, progress=progress)
    low, high = found.flat_range("z")
    curve = sorted((float(t.cell.policy.params["z"]), float(t.cell.excess.mean)) for t in found.trials)
    return BestZ(
        z=float(found.best.policy.params["z"]),
        default_z=float(found.default.policy.params["z"]),
        as_good=(float(low), float(high)),
        excess=_of(found.best.excess),
        default_excess=_of(found.default.excess),
        gain=_of(found.gain),
        curve=tuple(curve),
        trace=trace,
        ranks=ranks,
        batch=batch,
    )


def _of(interval: Any) -> ValueInterval:
    return ValueInterval(float(interval.mean), float(interval.low), float(interval.high))


def _plain(interval: ValueInterval) -> Mapping[str, float | None]:
    names = interval._fields
    return {n: float(v) if math.isfinite(v) else None for n, v in zip(names, interval, strict=True)}
