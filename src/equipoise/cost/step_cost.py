"""`StepCost`: what one decode step of an instance costs, in the one form every model shares.

    cost(step) = constant + sum over terms of  max over ranks of
                 weight * ( per_request * batch_shape(B) + per_100k_context * C / 100000
                            + sum over saturations of per_100k * K / 100000 )

B is the batch of a rank, C the sum of its context lengths, K the sum of min(context, saturation length). A term
is one barrier: the layers that wait together. ``barrier = "step"`` takes the maximum over the whole step instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from equipoise.cost.envelope import lower_convex_envelope
from equipoise.errors import CostError
from equipoise.models.reader import LARGEST_PRICE
from equipoise.types import Floats, Ints, Prices

if TYPE_CHECKING:
    from equipoise.cost.prefill import PrefillCost

__all__ = ["Saturation", "StepCost", "Term"]

TOKENS_PER_UNIT = 100_000
"""Context prices are quoted per 100k tokens, as the source article does."""

Unit = Literal["request", "us"]
Barrier = Literal["layer", "step"]


@dataclass(frozen=True, slots=True)
class Saturation:
    """A price on context that stops growing: sparse cores at top-k, windows, candidate scans.

    Parameters
    ----------
    tokens : int
        Context length from which a request pays no more.
    per_100k : float
        Price of 100,000 saturated tokens, before the term's weight.
    """

    tokens: int
    per_100k: float


@dataclass(frozen=True, slots=True)
class Term:
    """One barrier: the layers that wait together, and what a rank's share of them costs.

    Parameters
    ----------
    name : str
        Layer class: ``shared``, ``full``, ...
    weight : float
        Factor on the whole term.
    per_request : float
        Price of one more request.
    per_100k_context : float
        Price of 100,000 more context tokens.
    batch_floor : int
        Roofline knee B0: a batch below it costs as much as B0 (0 = linear from the first request).
    batch_table : sequence of float
        Price of a batch of 0, 1, 2, ... requests where it is a staircase or measured; beyond its end
        ``per_request`` is the slope. Replaces ``batch_floor``.
    saturations : sequence of Saturation
        Context prices that stop growing.
    """

    name: str
    weight: float = 1.0
    per_request: float = 1.0
    per_100k_context: float = 0.0
    batch_floor: int = 0
    batch_table: tuple[float, ...] = ()
    saturations: tuple[Saturation, ...] = ()


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one decode step costs.

    Parameters
    ----------
    name : str
        Name in tables and files.
    terms : sequence of Term
        The barriers.
    constant : float
        Price every step pays whatever the load.
    unit : {"request", "us"}
        ``request``: the price of one short request; ``us``: microseconds.
    barrier : {"layer", "step"}
        ``layer``: sum over terms of the slowest rank; ``step``: the slowest sum.
    us_per_unit : float
        Microseconds per unit, the clock of ``timed`` replay.
    source : str
        Where the numbers come from.
    prefill : PrefillCost, optional
        What a prefill step of the same model costs, in the same unit and on the same clock; None: not known.

    Raises
    ------
    CostError
        NaN, negative, infinite or absurd prices; no term; a falling batch table; a prefill cost in another unit.
    """

    name: str
    terms: tuple[Term, ...]
    constant: float = 0.0
    unit: Unit = "request"
    barrier: Barrier = "layer"
    us_per_unit: float = 1.0
    source: str = ""
    prefill: PrefillCost | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def saturation_tokens(self) -> tuple[int, ...]:
        """Distinct saturation lengths over all terms, ascending, in tokens."""
        return tuple(sorted({s.tokens for t in self.terms for s in t.saturations}))

    @property
    def request_in_context_tokens(self) -> float:
        """The exchange rate: context tokens that cost as much as one more request (inf: context is free).

        The request is one past every saturation length: what it pays up to there is a price per request.
        """
        request = sum(
            t.weight * (t.per_request + sum(s.per_100k * s.tokens / TOKENS_PER_UNIT for s in t.saturations))
            for t in self.terms
        )
        context = sum(t.weight * t.per_100k_context for t in self.terms)
        return math.inf if context == 0 else request / context * TOKENS_PER_UNIT

    def prices(self) -> Prices:
        """The model as arrays, the form that the replay kernel, its twin and the policies share."""
        saturations = self.saturation_tokens
        columns = max(len(_batch_shape(t)) for t in self.terms)
        batch = np.zeros((len(self.terms), columns))
        envelope = np.zeros_like(batch)
        tail = np.zeros(len(self.terms))
        envelope_tail = np.zeros_like(tail)
        saturated = np.zeros((len(self.terms), len(saturations)))
        for i, term in enumerate(self.terms):
            shape = np.asarray(_batch_shape(term))
            tail[i] = term.weight * term.per_request
            extra = columns - len(shape)
            shape = np.concatenate([shape, shape[-1] + term.per_request * np.arange(1, extra + 1)])
            batch[i] = term.weight * shape
            envelope[i], envelope_tail[i] = lower_convex_envelope(batch[i], tail[i])
            for s in term.saturations:
                saturated[i, saturations.index(s.tokens)] += term.weight * s.per_100k / TOKENS_PER_UNIT
        return Prices(
            constant=float(self.constant),
            barrier_step=int(self.barrier == "step"),
            batch=batch,
            batch_tail=tail,
            envelope=envelope,
            envelope_tail=envelope_tail,
            context=np.array([t.weight * t.per_100k_context / TOKENS_PER_UNIT for t in self.terms]),
            saturated=saturated,
            saturation_tokens=np.array(saturations, dtype=np.int64),
        )

    def work(
        self, batch: ArrayLike, context_tokens: ArrayLike, saturated_tokens: ArrayLike | None = None
    ) -> Floats:
        """Price of each rank's own share, per term, before any waiting.

        Parameters
        ----------
        batch, context_tokens : int64[..., ranks]
            B and C.
        saturated_tokens : int64[..., ranks, saturations], optional
            K for each of `saturation_tokens`; without it every request is taken to be past saturation.

        Returns
        -------
        float64[terms, ..., ranks]
        """
        B, C, K = self._loads(batch, context_tokens, saturated_tokens)
        prices = self.prices()
        last = prices.batch.shape[1] - 1
        work = np.empty((len(self.terms), *B.shape))
        for t in range(len(self.terms)):
            inside = prices.batch[t][np.minimum(B, last)]
            work[t] = inside + prices.batch_tail[t] * np.maximum(B - last, 0) + prices.context[t] * C
            for s in range(K.shape[-1]):
                work[t] += prices.saturated[t, s] * K[..., s]
        return work

    def cost(
        self, batch: ArrayLike, context_tokens: ArrayLike, saturated_tokens: ArrayLike | None = None
    ) -> Floats:
        """Price of each step: the slowest rank of every barrier.

        Takes arrays ``[..., ranks]`` as `work` does and returns float64[...] in `unit`.
        """
        work = self.work(batch, context_tokens, saturated_tokens)
        if self.barrier == "step":
            return np.asarray(self.constant + work.sum(axis=0).max(axis=-1))
        return np.asarray(self.constant + work.max(axis=-1).sum(axis=0))

    def ideal(
        self, batch: ArrayLike, context_tokens: ArrayLike, saturated_tokens: ArrayLike | None = None
    ) -> Floats:
        """Price of each step if the same totals were spread perfectly evenly; never above `cost`.

        The batch price is taken on its lower convex envelope: on a staircase an uneven state could otherwise
        cost less than the even one.
        """
        B, C, K = self._loads(batch, context_tokens, saturated_tokens)
        prices = self.prices()
        mean_batch, mean_context, mean_saturated = B.mean(axis=-1), C.mean(axis=-1), K.mean(axis=-2)
        last = prices.envelope.shape[1] - 1
        low = np.minimum(np.floor(mean_batch), last).astype(np.int64)
        total = np.full(mean_batch.shape, float(self.constant))
        for t in range(len(self.terms)):
            table = prices.envelope[t]
            slope = np.where(
                low < last, table[np.minimum(low + 1, last)] - table[low], prices.envelope_tail[t]
            )
            total = total + (table[low] + slope * (mean_batch - low) + prices.context[t] * mean_context)
            for s in range(K.shape[-1]):
                total = total + prices.saturated[t, s] * mean_saturated[..., s]
        return np.asarray(total)

    def scaled(self, factor: float) -> StepCost:
        """The same model with every price multiplied; the clock per unit stays."""
        terms = tuple(replace(t, weight=t.weight * factor) for t in self.terms)
        prefill = None if self.prefill is None else self.prefill.scaled(factor)
        return replace(self, terms=terms, constant=self.constant * factor, prefill=prefill)

    def in_us(self) -> StepCost:
        """The same model priced in microseconds."""
        prefill = None if self.prefill is None else self.prefill.in_us()
        whole = replace(self, prefill=None).scaled(self.us_per_unit)
        return replace(whole, unit="us", us_per_unit=1.0, prefill=prefill)

    def formula(self) -> str:
        """The model as one line, the way the source article prints it.

        Examples
        --------
        >>> StepCost("v", (Term("a", 0.7), Term("b", 0.3, per_100k_context=1.3))).formula()
        '0.7 * max(B) + 0.3 * max(B + 1.3 * C/100k)'
        """
        parts = [_number(self.constant)] if self.constant else []
        bodies = [(t.weight, _body(t)) for t in self.terms]
        if self.barrier == "step":
            parts.append("max(" + " + ".join(f"{_number(w)} * ({body})" for w, body in bodies) + ")")
        else:
            parts += [f"{_number(w)} * max({body})" for w, body in bodies]
        return " + ".join(parts)

    def _loads(
        self, batch: ArrayLike, context: ArrayLike, saturated: ArrayLike | None
    ) -> tuple[Ints, Ints, Ints]:
        B = np.asarray(batch, dtype=np.int64)
        C = np.asarray(context, dtype=np.int64)
        if B.shape != C.shape or B.ndim == 0 or B.shape[-1] == 0:
            raise CostError(
                f"batch has shape {B.shape} and context_tokens {C.shape}",
                fix="both must be [..., ranks] with at least one rank",
            )
        if (B < 0).any() or (C < 0).any():
            raise CostError("a negative batch or context", fix="loads are counts: 0 or more")
        lengths = np.array(self.saturation_tokens, dtype=np.int64)
        if saturated is None:
            K = np.minimum(B[..., None] * lengths, C[..., None])
        else:
            K = np.asarray(saturated, dtype=np.int64)
            if K.shape != (*B.shape, len(lengths)):
                raise CostError(
                    f"saturated_tokens has shape {K.shape}", fix=f"expected {(*B.shape, len(lengths))}"
                )
        return B, C, K


def _batch_shape(term: Term) -> Sequence[float]:
    """Price of a batch of 0 ... N requests before the weight; beyond N ``per_request`` is the slope."""
    if term.batch_table:
        return term.batch_table
    return [term.per_request * max(b, term.batch_floor) for b in range(term.batch_floor + 1)]


def _number(value: float) -> str:
    return f"{value:.6g}"


def _body(term: Term) -> str:
    parts = []
    if term.batch_table:
        parts.append(f"table[{len(term.batch_table)}](B)")
    elif term.per_request:
        batch = f"max(B, {term.batch_floor})" if term.batch_floor else "B"
        parts.append(batch if term.per_request == 1 else f"{_number(term.per_request)} * {batch}")
    if term.per_100k_context:
        parts.append(f"{_number(term.per_100k_context)} * C/100k")
    parts += [f"{_number(s.per_100k)} * K{s.tokens}/100k" for s in term.saturations]
    return " + ".join(parts) or "0"


def _validate(cost: StepCost) -> None:
    def bad(what: str, fix: str) -> CostError:
        return CostError(what, where=f"cost {cost.name!r}", fix=fix)

    if not cost.terms:
        raise bad("no term", "give at least one [[terms]] table")
    if cost.unit not in ("request", "us"):
        raise bad(f"unit = {cost.unit!r}", "use 'request' or 'us'")
    if cost.barrier not in ("layer", "step"):
        raise bad(f"barrier = {cost.barrier!r}", "use 'layer' or 'step'")
    if not 0 < cost.us_per_unit <= LARGEST_PRICE:  # NaN is not
        raise bad(f"us_per_unit = {cost.us_per_unit}", f"must be above 0 and at most {LARGEST_PRICE:g}")
    if cost.prefill is not None and (cost.prefill.unit, cost.prefill.us_per_unit) != (
        cost.unit,
        cost.us_per_unit,
    ):
        raise bad(
            f"prefill is in {cost.prefill.unit} of {cost.prefill.us_per_unit:g} us, "
            f"decode in {cost.unit} of {cost.us_per_unit:g} us",
            "bring both to microseconds with in_us()",
        )
    numbers = [("constant", cost.constant)]
    for t in cost.terms:
        numbers += [
            (f"{t.name}.weight", t.weight),
            (f"{t.name}.per_request", t.per_request),
            (f"{t.name}.per_100k_context", t.per_100k_context),
            (f"{t.name}.batch_floor", t.batch_floor),
            *((f"{t.name}.batch_table", v) for v in t.batch_table),
            *((f"{t.name}.saturations.per_100k", s.per_100k) for s in t.saturations),
        ]
    for label, value in numbers:
        if not 0 <= value <= LARGEST_PRICE:
            raise bad(f"{label} = {value}", f"prices must be numbers from 0 to {LARGEST_PRICE:g}")
    for t in cost.terms:
        if any(b < a for a, b in zip(t.batch_table, t.batch_table[1:], strict=False)):
            raise bad(
                f"{t.name}.batch_table falls", "a larger batch may not cost less; sort or smooth the table"
            )
        if len(t.batch_table) > MAX_TABLE or t.batch_floor > MAX_TABLE:
            raise bad(f"{t.name} has a batch table beyond {MAX_TABLE} requests", "shorten it")
        for s in t.saturations:
            if s.tokens < 1:
                raise bad(f"{t.name}.saturations.tokens = {s.tokens}", "must be 1 or more")
    priced = any(
        t.weight > 0
        and (
            t.per_request
            or t.per_100k_context
            or any(t.batch_table)
            or any(s.per_100k for s in t.saturations)
        )
        for t in cost.terms
    )
    if not (cost.constant > 0 or priced):
        raise bad("every price is 0", "a step that costs nothing has no ideal to compare with")


MAX_TABLE = 65_536
"""Longest batch table: far beyond any rank's batch, small enough to build at once."""
