"""Which form the data support: the simplest whose error on left-out regions is not clearly beaten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from equipoise.calibrate.bottleneck import fit_bottleneck
from equipoise.calibrate.holdout import held_out_errors
from equipoise.calibrate.regions import Regions, load_regions, weighted_mean
from equipoise.calibrate.robust import Loss
from equipoise.calibrate.samples import Samples
from equipoise.calibrate.shapes import BatchShape, Form, TermForm, graph_sizes
from equipoise.types import Floats

__all__ = ["BATCH_SHAPES", "SATURATIONS", "Candidate", "Choice", "choose"]

BATCH_SHAPES: Final = ("linear", "roofline", "table", "staircase")

LEAST_GAIN: Final = 0.005
"""A richer form must lower the held-out error by this share at least: less than that is not worth a coefficient."""

ROUNDING: Final = 1e-7
"""Errors this small are those of floating point."""

CHOOSE_STEPS: Final = 4000
"""Steps a choice looks at."""

MOST_NODES: Final = 16
SATURATIONS: Final = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
"""Saturation lengths tried, in tokens."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form that was tried, with its held-out error.

    Parameters
    ----------
    label : str
    mape : float
        Held-out mean absolute relative error, as a fraction.
    coefficients : int
    chosen : bool
    """

    label: str
    mape: float
    coefficients: int
    chosen: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The form taken, and what it was preferred to."""

    form: Form
    candidates: tuple[Candidate, ...]


class _Contest:
    """Compare forms on the same left-out regions; the better of each pair so far stands."""

    def __init__(self, samples: Samples, loss: Loss) -> None:
        self.samples, self.loss = samples, loss
        self.regions: Regions = load_regions(samples)
        self.tried: list[Candidate] = []
        self.form: Form | None = None
        self.label = ""
        self.errors: Floats = np.empty(0)

    def fit(self, form: Form) -> tuple[Floats, float]:
        fit = fit_bottleneck(self.samples, form, loss=self.loss, tolerance=0.01)
        return fit.coefficients, fit.loss

    def best(self, forms: Sequence[Form]) -> tuple[Form, Floats]:
        """The form that describes all steps best, of several with as many coefficients (knees, lengths)."""
        fits = [self.fit(f) for f in forms]
        i = int(np.argmin([loss for _, loss in fits]))
        return forms[i], fits[i][0]

    def challenge(self, label: str, forms: Sequence[Form]) -> bool:
        """Try a richer form; whether it wins."""
        if not forms:
            return False
        form, start = self.best(forms)
        errors = held_out_errors(self.samples, form, self.regions, start, loss=self.loss)
        mape = weighted_mean(errors, self.samples.weight)
        self.tried.append(Candidate(label, mape, form.columns))
        wins = self.form is None or self._clearly_better(errors)
        if wins:
            self.form, self.label, self.errors = form, label, errors
        return wins

    def challenge_batch(self, kind: str, shapes: Sequence[BatchShape]) -> bool:
        """Try another shape of the first term's batch price."""
        assert self.form is not None
        words = "two terms" if len(self.form.terms) > 1 else "one term"
        bent = ", saturating context" if self.form.saturation_tokens else ""
        return self.challenge(f"{words}, {kind}{bent}", [_with_batch(self.form, s) for s in shapes])

    def challenge_saturation(self, lengths: Sequence[int]) -> bool:
        """Try a context price that saturates."""
        assert self.form is not None
        form = self.form
        return self.challenge(
            f"{self.label}, saturating context", [_with_saturation(form, n) for n in lengths]
        )

    def _clearly_better(self, errors: Floats) -> bool:
        """One standard error of the paired gain, regions taken as the independent units, and a gain worth having."""
        weight = self.samples.weight
        gain = self.errors - errors
        mean = weighted_mean(gain, weight)
        of, count = self.regions.of_step, self.regions.count
        by_region = np.bincount(of, (gain - mean) * weight, count) / weight.sum()
        error = float(np.sqrt((by_region**2).sum() * count / max(count - 1, 1)))
        worth = max(LEAST_GAIN * weighted_mean(self.errors, weight), ROUNDING)
        return bool(mean > error and mean > worth)


def choose(
    samples: Samples,
    *,
    batch_shape: str = "auto",
    terms: int | Literal["auto"] = "auto",
    saturation_tokens: int | Sequence[int] | Literal["auto"] | None = "auto",
    sizes: Sequence[int] | None = None,
    loss: Loss = "huber",
    names: tuple[str, str, str] = ("decode", "batch", "attention"),
) -> Choice:
    """Choose terms, batch shape and saturation length by held-out error.

    Parameters
    ----------
    samples : Samples
    batch_shape : {"auto", "linear", "roofline", "table", "staircase"}
    terms : {"auto", 1, 2}
        One term with batch and context; or a batch-only term beside it, which waits for the largest batch.
    saturation_tokens : int, sequence of int, "auto" or None
        Lengths to try; None: no saturation.
    sizes : sequence of int, optional
        Captured graph sizes of a staircase.
    names : tuple of three str
        Names of the single term, and of the two.
    """
    samples = samples.thin(CHOOSE_STEPS)
    contest = _Contest(samples, loss)
    queries = len(samples.extra_queries) > 0
    fixed = batch_shape != "auto"
    first_shapes = _shapes(batch_shape, samples, sizes) if fixed else [BatchShape("linear")]
    one = [Form((TermForm(names[0], s, context=True, queries=queries),)) for s in first_shapes]
    two = [
        Form(
            (
                TermForm(names[1], s, queries=queries),
                TermForm(names[2], BatchShape("linear"), context=True),
            )
        )
        for s in first_shapes
    ]
    label = batch_shape if fixed else "linear"
    if terms != 2 or samples.one_rank:
        contest.challenge(f"one term, {label}", one)
    if terms != 1 and not samples.one_rank:
        contest.challenge(f"two terms, {label}", two)
    kinds = () if fixed else BATCH_SHAPES[1:]
    for kind in kinds:
        contest.challenge_batch(kind, _shapes(kind, samples, sizes))
    lengths = _lengths(saturation_tokens, samples)
    curved = contest.form is not None and contest.form.terms[0].batch.kind != "linear"
    if contest.challenge_saturation(lengths) and not curved:
        # What looked like a straight batch price beside a straight context price may not be one beside a bent one.
        for kind in kinds:
            contest.challenge_batch(kind, _shapes(kind, samples, sizes))
    assert contest.form is not None  # the first challenger always stands
    tried = tuple(replace(c, chosen=c.label == contest.label) for c in contest.tried)
    return Choice(contest.form, tried)


def _with_batch(form: Form, shape: BatchShape) -> Form:
    """The batch price of the first term in another shape."""
    return Form((replace(form.terms[0], batch=shape), *form.terms[1:]))


def _with_saturation(form: Form, tokens: int) -> Form:
    """A saturating context price in the term that has a context price."""
    return Form(tuple(replace(t, saturation_tokens=tokens) if t.context else t for t in form.terms))


def _shapes(kind: str, samples: Samples, sizes: Sequence[int] | None) -> list[BatchShape]:
    """Shapes of a kind that the batches seen can tell apart."""
    seen = np.unique(np.maximum.reduceat(samples.batch, samples.starts[:-1]))
    low, high = int(seen[0]), int(seen[-1])
    if kind == "linear":
        return [BatchShape("linear")]
    if kind == "roofline":
        inner = np.unique(np.geomspace(max(low, 1), max(high, 1), 12).round().astype(np.int64))[1:-1]
        return [BatchShape("roofline", floor=int(b)) for b in inner]
    if kind == "table":
        if len(seen) > MOST_NODES:
            # As many steps between two nodes everywhere; the range's ends are always nodes.
            every = np.sort(np.maximum.reduceat(samples.batch, samples.starts[:-1]))
            count = int(np.clip(len(samples) // 60, 3, 9))
            seen = np.unique(every[np.linspace(0, len(every) - 1, count).astype(np.int64)])
        return [BatchShape("table", nodes=tuple(int(b) for b in seen))] if len(seen) > 2 else []
    if samples.is_grid:
        return []  # between two measured batches nothing says where a step is
    known = np.asarray(sizes if sizes else graph_sizes(high), dtype=np.int64)
    used = np.unique(np.searchsorted(known, seen))
    nodes = known[used[used < len(known)]]
    return [BatchShape("staircase", nodes=tuple(int(b) for b in nodes))] if len(nodes) > 2 else []


def _lengths(wanted: int | Sequence[int] | Literal["auto"] | None, samples: Samples) -> list[int]:
    """Saturation lengths that the contexts seen can tell from none."""
    if wanted is None:
        return []
    if wanted == "auto":
        tried: Sequence[int] = SATURATIONS
    else:
        tried = [wanted] if isinstance(wanted, int) else [int(n) for n in wanted]
    busy = samples.batch > 0
    length = samples.context[busy] / samples.batch[busy]
    return [n for n in tried if 0.02 < float((length < n).mean()) < 0.98]
