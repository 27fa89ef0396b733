"""`derive_prefill`: a model's shape becomes a prefill cost, by the multiply-adds that decode is counted with.

The token at position p of a prompt does what a decode token of a request with p tokens of context does: it meets the
weights once (projections, recurrent state: per token), its core and scan read the p rows behind it (per pair), or at
most a bound of them (per saturated pair). A compressed row stands for several tokens, so a pair costs its share of it,
as a context token does in decode. With ``T`` the multiply-adds of one decode token past every bound, the unit
``request`` of `derive`::

    per_token = n (projections + state) / T       per_100k_pairs = 100000 n s / T
    saturation of L tokens: per_100k = 100000 n a / T

for a class of n layers with s multiply-adds per unbounded context token, and a per token up to the bound L. These are
the prices of ``derive(shape, "v1", saturate=True)``, each multiplied by its term's weight: decode is prefill one token
at a time. Nothing is frozen, whatever the kind of the decode cost: chunks are large.

One kind of work is done otherwise in chunks: dense latent attention (DeepSeek V3, Kimi K2). A decode token attends in
the latent; the queries of a chunk share its rows, so engines expand those to keys and values of every head, for the
same up-projection a token and about 0.3 of the multiply-adds a pair. ``latent="absorbed"`` counts it as decode does.

As in decode, FFN and experts are not counted: they come after the barrier, and follow the tokens of all ranks.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from equipoise.cost.counting import GLM5_H200_US_PER_REQUEST, merged, part_of, per_request
from equipoise.cost.prefill import PrefillCost, PrefillTerm
from equipoise.cost.step_cost import TOKENS_PER_UNIT, Saturation
from equipoise.errors import CostError
from equipoise.models.shape import ModelShape

__all__ = ["derive_prefill"]


def derive_prefill(
    shape: ModelShape,
    *,
    latent: Literal["expanded", "absorbed"] = "expanded",
    us_per_unit: float = GLM5_H200_US_PER_REQUEST,
) -> PrefillCost:
    """Count a model's attention work into a prefill cost; bounded reads are always priced exactly.

    Parameters
    ----------
    shape : ModelShape
    latent : {"expanded", "absorbed"}
        How dense latent attention is computed: to heads, as engines run prompts, or in the latent, as in decode.
    us_per_unit : float
        Microseconds per request, the clock of `derive`.

    Returns
    -------
    PrefillCost
        Unit ``request``, barrier ``layer``, no constant; one term per layer class that can have a slowest rank of
        its own.

    Raises
    ------
    CostError
        A senseless `latent` or `us_per_unit`, or a shape that does no work per request.

    Examples
    --------
    >>> from equipoise.models import load
    >>> derive_prefill(load("kimi-k2")).formula()
    'max(T + 20.2528 * P/100k)'
    >>> derive_prefill(load("kimi-k2"), latent="absorbed").formula()
    'max(T + 68.8594 * P/100k)'
    >>> derive_prefill(load("glm-5.3")).formula()
    'max(0.388817 * T + 16.4066 * S2048/100k) + max(0.151384 * T + 0.358339 * P/100k + 6.04454 * S2048/100k)'
    """
    if latent not in ("expanded", "absorbed"):
        fix = "must be 'expanded' or 'absorbed'"
        raise CostError(f"latent = {latent!r}", where=f"derivation of {shape.name}", fix=fix)
    price = Fraction(1, per_request(shape))
    terms = tuple(
        PrefillTerm(
            part.name,
            per_token=float(part.fixed * price),
            per_100k_pairs=float(part.context * price * TOKENS_PER_UNIT),
            saturations=tuple(
                Saturation(bound, float(macs * price * TOKENS_PER_UNIT)) for bound, macs in part.saturating
            ),
        )
        for part in merged([part_of(c, False, True, in_chunks=latent == "expanded") for c in shape.classes])
        if part.own or part.context
    )
    return PrefillCost(
        terms,
        us_per_unit=us_per_unit,
        source=f"multiply-adds counted from {shape.source or shape.name}",
    )
