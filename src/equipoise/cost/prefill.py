"""`PrefillCost`: what one prefill step of an instance costs, in the same form as a decode step.

    cost(step) = constant + sum over terms of  max over ranks of
                 ( per_token * T + per_100k_pairs * P / 100000
                   + sum over saturations of per_100k * S / 100000 )

T is the number of prompt tokens that a rank computes in the step, P the (query, key) pairs they attend to, S the same
with no query reading more than a saturation's length (`equipoise.cost.attended`). A term is one barrier; ``barrier =
"step"`` takes the maximum over the whole step, as in `StepCost`. One token of decode at context c attends to c pairs,
so a price per 100k pairs here and a price per 100k context tokens there are the same thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from equipoise.cost.attended import MAX_POSITION, counts, pairs, saturated_pairs
from equipoise.cost.step_cost import TOKENS_PER_UNIT, Barrier, Saturation, Unit
from equipoise.errors import CostError
from equipoise.models.reader import LARGEST_PRICE
from equipoise.types import Floats, Floats2D, Ints

__all__ = ["PrefillCost", "PrefillPrices", "PrefillTerm"]


@dataclass(frozen=True, slots=True)
class PrefillTerm:
    """One barrier of a prefill step.

    Parameters
    ----------
    name : str
        Layer class: ``shared``, ``full``, ...
    per_token : float
        Price of one more prompt token.
    per_100k_pairs : float
        Price of 100,000 more attended pairs.
    saturations : sequence of Saturation
        Prices of 100,000 pairs where a query reads at most ``tokens`` keys.
    """

    name: str
    per_token: float = 0.0
    per_100k_pairs: float = 0.0
    saturations: tuple[Saturation, ...] = ()


class PrefillPrices(NamedTuple):
    """A prefill cost as arrays, for compiled code: T terms, S saturation lengths."""

    constant: float
    """Price every step pays."""
    barrier_step: int
    """1: one barrier a step; 0: one a term."""
    token: Floats
    """float64[T], price of one prompt token."""
    pair: Floats
    """float64[T], price of one attended pair."""
    saturated: Floats2D
    """float64[T, S], price of one saturated pair."""
    saturation_tokens: Ints
    """int64[S], the saturation lengths, ascending."""


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """What one prefill step costs.

    Parameters
    ----------
    terms : sequence of PrefillTerm
        The barriers.
    constant : float
        Price every step pays whatever the load.
    unit : {"request", "us"}
        As in `StepCost`: ``request`` is what one short request costs a decode step.
    us_per_unit : float
        Microseconds per unit.
    barrier : {"layer", "step"}
        ``layer``: sum over terms of the slowest rank; ``step``: the slowest sum.
    source : str
        Where the numbers come from.

    Raises
    ------
    CostError
        NaN, negative, infinite or absurd prices; no term; nothing that costs anything.
    """

    terms: tuple[PrefillTerm, ...]
    constant: float = 0.0
    unit: Unit = "request"
    us_per_unit: float = 1.0
    barrier: Barrier = "layer"
    source: str = ""

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def saturation_tokens(self) -> tuple[int, ...]:
        """Distinct saturation lengths over all terms, ascending, in tokens."""
        return tuple(sorted({s.tokens for t in self.terms for s in t.saturations}))

    @property
    def crossover_tokens(self) -> int | None:
        """Length of the shortest prompt, alone and from its start, whose pairs cost as much as all else per token.

        Shorter prompts cost about linearly in their length, longer ones about quadratically. The constant is left
        out; bounded reads count as linear. None where no prompt of up to 2**31 - 1 tokens gets there.
        """
        prices = self.prices()
        token, pair = float(prices.token.sum()), float(prices.pair.sum())
        saturated = prices.saturated.sum(axis=0)

        def quadratic(tokens: int) -> bool:
            reads = saturated_pairs(0, tokens, prices.saturation_tokens)
            return pair * int(pairs(0, tokens)) >= token * tokens + float(reads @ saturated)

        # Pairs grow by p at position p, all else by less and less of p: once ahead, they stay ahead.
        low, high = 0, MAX_POSITION
        if pair == 0 or not quadratic(high):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if quadratic(middle) else (middle, high)
        return high

    def prices(self) -> PrefillPrices:
        """The model as arrays."""
        lengths = self.saturation_tokens
        saturated = np.zeros((len(self.terms), len(lengths)))
        for i, term in enumerate(self.terms):
            for s in term.saturations:
                saturated[i, lengths.index(s.tokens)] += s.per_100k / TOKENS_PER_UNIT
        return PrefillPrices(
            constant=float(self.constant),
            barrier_step=int(self.barrier == "step"),
            token=np.array([float(t.per_token) for t in self.terms]),
            pair=np.array([t.per_100k_pairs / TOKENS_PER_UNIT for t in self.terms]),
            saturated=saturated,
            saturation_tokens=np.array(lengths, dtype=np.int64),
        )

    def sums(self, offset_tokens: ArrayLike, chunk_tokens: ArrayLike) -> tuple[Ints, Ints, Ints]:
        """T, P and S of each rank from the chunks it computes in a step.

        Parameters
        ----------
        offset_tokens, chunk_tokens : int64[..., ranks, chunks]
            Each chunk's tokens of the same prompt before it, and its own. A chunk of 0 tokens is no chunk: pad with
            them where ranks have different numbers.

        Returns
        -------
        tokens, pairs : int64[..., ranks]
        saturated_pairs : int64[..., ranks, saturations]

        Raises
        ------
        CostError
            Shapes that do not match, senseless counts, or a rank with more pairs than int64 holds.
        """
        offset, tokens = counts("offset_tokens", offset_tokens), counts("chunk_tokens", chunk_tokens)
        if offset.shape != tokens.shape or offset.ndim < 2 or offset.shape[-2] == 0:
            raise CostError(
                f"offset_tokens has shape {offset.shape} and chunk_tokens {tokens.shape}",
                fix="both must be [..., ranks, chunks] with at least one rank",
            )
        lengths = np.array(self.saturation_tokens, dtype=np.int64)
        P = pairs(offset, tokens)
        if P.size and float(P.sum(axis=-1, dtype=np.float64).max()) > 2.0**62:
            raise CostError("a rank attends to more than 2**62 pairs in a step", fix="give fewer chunks")
        S = saturated_pairs(offset[..., None], tokens[..., None], lengths)  # never more than P
        return tokens.sum(axis=-1), P.sum(axis=-1), S.sum(axis=-2)

    def work(self, offset_tokens: ArrayLike, chunk_tokens: ArrayLike) -> Floats:
        """Price of each rank's own chunks, per term, before any waiting.

        Takes int64[..., ranks, chunks] as `sums` does and returns float64[terms, ..., ranks] in `unit`.
        """
        return self.work_of_sums(*self.sums(offset_tokens, chunk_tokens))

    def cost(self, offset_tokens: ArrayLike, chunk_tokens: ArrayLike) -> Floats:
        """Price of each step: the slowest rank of every barrier.

        Takes int64[..., ranks, chunks] as `sums` does and returns float64[...] in `unit`.

        Examples
        --------
        Two ranks; the second computes 2 tokens behind 4 others, and so 11 pairs to the first one's 10:

        >>> prefill = PrefillCost((PrefillTerm("all", per_token=1.0, per_100k_pairs=100_000.0),))
        >>> prefill.work([[0], [4]], [[4], [2]]).tolist()
        [[14.0, 13.0]]
        >>> float(prefill.cost([[0], [4]], [[4], [2]]))
        14.0
        """
        return self.cost_of_work(self.work(offset_tokens, chunk_tokens))

    def work_of_sums(self, tokens: ArrayLike, pair_count: ArrayLike, saturated: ArrayLike) -> Floats:
        """Price of each rank's share from its T, P and S, as `sums` or an engine's log gives them.

        Parameters
        ----------
        tokens, pair_count : [..., ranks]
        saturated : [..., ranks, saturations]

        Returns
        -------
        float64[terms, ..., ranks]
        """
        T, P, S = np.asarray(tokens), np.asarray(pair_count), np.asarray(saturated)
        lengths = len(self.saturation_tokens)
        if T.shape != P.shape or T.ndim == 0 or T.shape[-1] == 0 or S.shape != (*T.shape, lengths):
            raise CostError(
                f"tokens, pairs and saturated pairs have shapes {T.shape}, {P.shape} and {S.shape}",
                fix=f"they must be [..., ranks], [..., ranks] and [..., ranks, {lengths}]",
            )
        prices = self.prices()
        work = np.empty((len(self.terms), *T.shape))
        for t in range(len(self.terms)):
            work[t] = prices.token[t] * T + prices.pair[t] * P
            for s in range(lengths):
                work[t] += prices.saturated[t, s] * S[..., s]
        return work

    def cost_of_work(self, work: Floats) -> Floats:
        """Price of each step from float64[terms, ..., ranks]: the slowest rank of every barrier."""
        if self.barrier == "step":
            return np.asarray(self.constant + work.sum(axis=0).max(axis=-1))
        return np.asarray(self.constant + work.max(axis=-1).sum(axis=0))

    def ideal(self, offset_tokens: ArrayLike, chunk_tokens: ArrayLike) -> Floats:
        """Price of each step if the same work were spread perfectly evenly; never above `cost`."""
        work = self.work(offset_tokens, chunk_tokens)
        return np.asarray(self.constant + work.mean(axis=-1).sum(axis=0))

    def scaled(self, factor: float) -> PrefillCost:
        """The same model with every price multiplied; the clock per unit stays."""
        terms = tuple(
            replace(
                t,
                per_token=t.per_token * factor,
                per_100k_pairs=t.per_100k_pairs * factor,
                saturations=tuple(Saturation(s.tokens, s.per_100k * factor) for s in t.saturations),
            )
            for t in self.terms
        )
        return replace(self, terms=terms, constant=self.constant * factor)

    def in_us(self) -> PrefillCost:
        """The same model priced in microseconds."""
        return replace(self.scaled(self.us_per_unit), unit="us", us_per_unit=1.0)

    def formula(self) -> str:
        """The model as one line: T tokens, P attended pairs, S2048 pairs of at most 2,048 keys a query.

        Examples
        --------
        >>> sparse = PrefillTerm("sparse", 0.4, saturations=(Saturation(2048, 16.4),))
        >>> PrefillCost((sparse, PrefillTerm("scan", 0.1, 0.358)), constant=9.0).formula()
        '9 + max(0.4 * T + 16.4 * S2048/100k) + max(0.1 * T + 0.358 * P/100k)'
        """
        parts = [f"{self.constant:.6g}"] if self.constant else []
        bodies = [" + ".join(_pieces(t)) or "0" for t in self.terms]
        if self.barrier == "step":
            bodies = [" + ".join(bodies)]
        return " + ".join([*parts, *(f"max({body})" for body in bodies)])


def _pieces(term: PrefillTerm) -> Iterator[str]:
    if term.per_token:
        yield "T" if term.per_token == 1 else f"{term.per_token:.6g} * T"
    if term.per_100k_pairs:
        yield f"{term.per_100k_pairs:.6g} * P/100k"
    for s in term.saturations:
        yield f"{s.per_100k:.6g} * S{s.tokens}/100k"


def _validate(cost: PrefillCost) -> None:
    def bad(what: str, fix: str) -> CostError:
        return CostError(what, where="prefill", fix=fix)

    if not cost.terms:
        raise bad("no term", "give at least one [[prefill.terms]] table")
    if cost.unit not in ("request", "us"):
        raise bad(f"unit = {cost.unit!r}", "use 'request' or 'us'")
    if cost.barrier not in ("layer", "step"):
        raise bad(f"barrier = {cost.barrier!r}", "use 'layer' or 'step'")
    if not 0 < cost.us_per_unit <= LARGEST_PRICE:  # NaN is not
        raise bad(f"us_per_unit = {cost.us_per_unit}", f"must be above 0 and at most {LARGEST_PRICE:g}")
    numbers = [("constant", cost.constant)]
    for t in cost.terms:
        numbers += [
            (f"{t.name}.per_token", t.per_token),
            (f"{t.name}.per_100k_pairs", t.per_100k_pairs),
            *((f"{t.name}.saturations.per_100k", s.per_100k) for s in t.saturations),
        ]
    for label, value in numbers:
        if not 0 <= value <= LARGEST_PRICE:
            raise bad(f"{label} = {value}", f"prices must be numbers from 0 to {LARGEST_PRICE:g}")
    for t in cost.terms:
        for s in t.saturations:
            if not 1 <= s.tokens <= MAX_POSITION:
                raise bad(f"{t.name}.saturations.tokens = {s.tokens}", f"must be from 1 to {MAX_POSITION}")
    if not any(value > 0 for _, value in numbers):
        raise bad("every price is 0", "leave prefill out where it is free")
