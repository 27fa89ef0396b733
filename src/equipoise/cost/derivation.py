"""`derive`: a model's shape becomes a step cost by counting multiply-adds, in the source article's two forms.

Let a layer class have ``n`` layers; one decode token of a request past every bound (top-k, window, chunk)
costs it ``G`` in projections and ``A`` in the rest, and every context token costs it ``s``. With ``T = sum n
(G + A)``:

V1, everything linear::

    weight = n (G + A) / T        per_request = 1        per_100k_context = 100000 s / (G + A)

so that one request without context that a layer would have to scan costs 1 in all. V2, where small batches
leave the projections' time constant, freezes them at ``B0`` tokens::

    constant = B0 sum n G / T     weight = n A / T       per_request = 1        per_100k_context = 100000 s /
    A

The two are equal where every batch is ``B0`` and every rank carries the same context. A class whose rest
grows only with the context (dense attention: ``A = 0``) keeps no price per request in V2; its term is written
with weight 1, per_request 0 and per_100k_context ``100000 n s / T``. Classes without a context term have the
same slowest rank, the one with the largest batch, and become one term.

Checked against the article: the GLM-5.3 shape gives its seven printed constants within 7e-5 relative, with
nothing adjusted.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal

from equipoise.cost.counting import GLM5_H200_US_PER_REQUEST, Part, merged, part_of, per_request
from equipoise.cost.prefill_derivation import derive_prefill
from equipoise.cost.step_cost import MAX_TABLE, TOKENS_PER_UNIT, Saturation, StepCost, Term
from equipoise.errors import CostError
from equipoise.models.shape import ModelShape

__all__ = ["GLM5_H200_US_PER_REQUEST", "KINDS", "Kind", "derive"]

Kind = Literal["v1", "v2"]
KINDS: Final[tuple[Kind, ...]] = ("v1", "v2")


def derive(
    shape: ModelShape,
    kind: Kind = "v1",
    b0: int = 8,
    *,
    saturate: bool = False,
    us_per_unit: float = GLM5_H200_US_PER_REQUEST,
) -> StepCost:
    """Count a model's attention work into a step cost.

    Parameters
    ----------
    shape : ModelShape
    kind : {"v1", "v2"}
        Form of the article; see the module's docstring.
    b0 : int
        Tokens at which V2 freezes the projections.
    saturate : bool
        Price bounded rows exactly, by the sum over requests of min(context, bound). False, as in the article:
        every request is taken to be past its bounds.
    us_per_unit : float
        Microseconds per request, the clock of ``timed`` replay.

    Returns
    -------
    StepCost
        Unit ``request``, barrier ``layer``; one term per layer class that can have a slowest rank of its own. Its
        ``prefill`` is what `derive_prefill` counts, the same for both kinds.

    Raises
    ------
    CostError
        An unknown kind, a senseless `b0` or `us_per_unit`, or a shape that does no work per request.

    Examples
    --------
    >>> from equipoise.models import load
    >>> derive(load("glm-5.3")).formula()
    '0.724824 * max(B) + 0.275176 * max(B + 1.30222 * C/100k)'
    >>> derive(load("glm-5.3"), "v2").formula()
    '4.32161 + 0.336007 * max(B) + 0.123792 * max(B + 2.89468 * C/100k)'
    """
    if kind not in KINDS:
        raise CostError(f"kind = {kind!r}", where=f"derivation of {shape.name}", fix="must be 'v1' or 'v2'")
    if isinstance(b0, bool) or not isinstance(b0, int) or not 1 <= b0 <= MAX_TABLE:
        fix = f"must be a whole number from 1 to {MAX_TABLE}"
        raise CostError(f"b0 = {b0}", where=f"derivation of {shape.name}", fix=fix)
    total = per_request(shape)
    frozen = kind == "v2"
    constant = Fraction(sum(c.count * c.per_request("projections") for c in shape.classes), total) * b0
    parts = merged([part_of(c, frozen, saturate) for c in shape.classes])
    terms = tuple(_term(part, total) for part in parts if part.own or part.context)
    return StepCost(
        name=f"{shape.name} {kind}",
        # A model that is all projections has nothing left in V2: a step costs the constant.
        terms=terms or (Term(parts[0].name, per_request=0.0),),
        constant=float(constant) if frozen else 0.0,
        us_per_unit=us_per_unit,
        source=_source(shape, kind, b0, us_per_unit),
        prefill=derive_prefill(shape, us_per_unit=us_per_unit),
        metadata={"model": shape.name, "kind": kind, "b0": b0, "saturate": saturate},
    )


def _term(part: Part, total: int) -> Term:
    # Dense attention under V2 has no price per request to normalise by: the term then is in units of the
    # whole.
    base = part.own or total
    per_100k = Fraction(TOKENS_PER_UNIT, base)
    return Term(
        name=part.name,
        weight=float(Fraction(part.own, total)) if part.own else 1.0,
        per_request=float(Fraction(part.fixed, base)),
        per_100k_context=float(part.context * per_100k),
        saturations=tuple(Saturation(bound, float(macs * per_100k)) for bound, macs in part.saturating),
    )


def _source(shape: ModelShape, kind: Kind, b0: int, us_per_unit: float) -> str:
    form = "all work linear" if kind == "v1" else f"projections frozen at {b0} tokens"
    clock = "; clock: GLM-5 layers on H200" if us_per_unit == GLM5_H200_US_PER_REQUEST else ""
    return f"multiply-adds counted from {shape.source or shape.name}, {form}{clock}"
