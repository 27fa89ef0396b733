"""Coefficients that the data cannot tell: which, why, and which load to run so that they can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from equipoise.calibrate.bottleneck import BottleneckFit, Problem
from equipoise.calibrate.exchange import factors, left_open
from equipoise.calibrate.samples import Samples
from equipoise.calibrate.shapes import CONSTANT, Form
from equipoise.types import Floats, Ints

__all__ = ["Unidentified", "collinear", "probe", "typical_loads", "weak"]

SAME: Final = 1e-7
"""Share of a column's square that others leave unexplained, below which it is the same column."""

MATTERS: Final = 0.05
"""An interval whose two ends differ by less than this share of the step time hurts nobody."""

WIDE: Final = 1.5
"""An interval wider than this many times the estimate says little of it."""


@dataclass(frozen=True, slots=True)
class Unidentified:
    """A coefficient the data cannot tell.

    Parameters
    ----------
    coefficient : str
    reason : str
    probe : str
        Which batch and context to run.
    """

    coefficient: str
    reason: str
    probe: str


def collinear(problem: Problem, fit: BottleneckFit) -> tuple[Form, tuple[Unidentified, ...], frozenset[str]]:
    """Take out columns that are combinations of others at the slowest ranks.

    Columns are kept in the order constant, context, batch, the rest: of two that say the same, the later one goes,
    and its price is part of the earlier one's.

    Returns
    -------
    form : Form
    found : tuple of Unidentified
    lost : frozenset of str
        Which of the prices of a request and of context are no longer known, in the words of `exchange`.
    """
    samples, form = problem.samples, problem.form
    gram, _ = problem.normal_equations(fit.row, samples.weight / np.maximum(samples.time_us, 1e-9) ** 2)
    length = np.sqrt(np.maximum(np.diag(gram), 0.0))
    names = form.names
    order = sorted(range(len(names)), key=lambda i: (_priority(names[i]), i))
    kept: list[int] = []
    found = []
    lost: set[str] = set()
    lost_rises: set[str] = set()
    factor = factors(form, samples.extra_a_request)
    for i in order:
        loses = lost_rises if ".batch_rise" in names[i] else lost
        if length[i] == 0:
            loses |= left_open(factor, i, {})
            found.append(Unidentified(names[i], _never(samples, form, names[i]), probe(samples, names[i])))
            continue
        if kept:
            G = gram[np.ix_(kept, kept)] / np.outer(length[kept], length[kept])
            g = gram[kept, i] / (length[kept] * length[i])
            share, *_ = np.linalg.lstsq(G, g, rcond=1e-12)
            if 1 - g @ share < SAME:
                own = {
                    k: s * length[i] / length[k] for k, s in zip(kept, share, strict=True) if abs(s) > 1e-6
                }
                loses |= left_open(factor, i, own)
                with_ = [names[k] for k, s in zip(kept, share, strict=True) if abs(s) > 0.05]
                found.append(
                    Unidentified(names[i], _same(samples, names[i], with_), probe(samples, names[i]))
                )
                continue
        kept.append(i)
    for gone in found:
        form = form.without(gone.coefficient) if gone.coefficient in form.names else form
    # Rises of a table have names that change when a node goes; one that is gone with its neighbour is no loss, and
    # the others still say what a request costs, over fewer batches.
    if not any(t.batch.nodes for t in form.terms):
        lost |= lost_rises
    return form, tuple(f for f in found if f.coefficient != CONSTANT), frozenset(lost)


def _priority(name: str) -> int:
    if name == CONSTANT:
        return 0
    if name.endswith("per_100k_context"):
        return 1
    if name.endswith(".per_request") or ".batch_rise" in name:
        return 2
    return 3


def _never(samples: Samples, form: Form, name: str) -> str:
    kind = name.rpartition(".")[2]
    if kind.startswith("batch_rise"):
        return f"no slowest rank has a batch of {kind.rpartition('_')[2]} or more"
    return "its load is 0 on every slowest rank"


def _same(samples: Samples, name: str, others: list[str]) -> str:
    if (name.endswith(".per_request") or ".batch_rise" in name) and others == [CONSTANT]:
        largest = np.maximum.reduceat(samples.batch, samples.starts[:-1])
        if largest.min() == largest.max():
            return f"the batch of the slowest rank is {largest[0]} in every step; what it costs is part of the constant"
        return "the slowest rank always has the same batch; what it costs is part of the constant"
    return f"its load always moves with that of {' and '.join(others)}, which holds its price"


def weak(
    samples: Samples,
    form: Form,
    estimate: Floats,
    low: Floats,
    high: Floats,
    typical: Floats,
) -> tuple[Unidentified, ...]:
    """Coefficients whose interval leaves open what they are, by an amount that matters to the step time.

    Parameters
    ----------
    samples : Samples
    form : Form
    estimate, low, high : float64[p]
    typical : float64[p]
        Mean of each column at the slowest ranks.
    """
    mean_time = float(np.average(samples.time_us, weights=samples.weight))
    found = []
    for i, name in enumerate(form.names):
        if ".batch_rise" in name:
            continue  # one step of a table may be anything between its neighbours
        width = high[i] - low[i]
        if width * typical[i] < MATTERS * mean_time or width < WIDE * estimate[i]:
            continue
        if estimate[i] == 0:
            reason = f"fitted to 0, its bound; the data only say that it is at most {high[i]:.4g} us"
        else:
            reason = f"between {low[i]:.4g} and {high[i]:.4g} us: its load hardly varies on its own"
        found.append(Unidentified(name, reason, probe(samples, name)))
    return tuple(found)


def probe(samples: Samples, name: str) -> str:
    """Which loads would tell a coefficient, in words, in the neighbourhood of what was run."""
    batch = samples.mean(samples.batch)
    context = samples.mean(samples.context)
    B = max(1, round(float(np.median(batch))))
    C = max(1, round(float(np.median(context))))
    length = max(1, round(C / B))
    few, many = max(1, B // 4), max(4, B * 4)
    kind = name.rpartition(".")[2]
    if kind == CONSTANT:
        return f"run batch 1 a rank with contexts of {_tokens(min(length, 2048))}"
    if kind.startswith("batch_rise"):
        size = int(kind.rpartition("_")[2])
        return f"run batch {max(1, size - 1)} and batch {size} a rank with contexts of {_tokens(length)}"
    if kind == "per_extra_query":
        return f"run batch {B} a rank with 0 and with 3 speculative tokens, contexts of {_tokens(length)}"
    if kind.startswith("per_100k_saturated"):
        bound = int(kind.rpartition("_")[2])
        return (
            f"run batch {B} a rank with contexts of {_tokens(max(1, bound // 4))} and of {_tokens(4 * bound)}"
        )
    if kind == "per_100k_context":
        short, long = max(1, length // 4), 4 * length
        return f"run batch {B} a rank with contexts of {_tokens(short)} and of {_tokens(long)}"
    if name.startswith(("batch.", "attention.")) and not samples.one_rank:
        return (
            f"run steps in which one rank has batch {many} with contexts of {_tokens(max(1, length // 8))} and another "
            f"has batch {few} with contexts of {_tokens(length * 8)}"
        )
    return (
        f"run batch {few} and batch {many} a rank at the same {_tokens(C)} a rank in total, that is with contexts of "
        f"{_tokens(max(1, C // few))} and of {_tokens(max(1, C // many))}"
    )


def _tokens(count: float) -> str:
    return f"{round(count):,} tokens"


def typical_loads(problem: Problem, row: Ints) -> Floats:
    """float64[p], mean of each column at the slowest ranks (context per 100k tokens)."""
    total, weight = np.zeros(problem.form.columns), problem.samples.weight
    for steps in problem.chunks():
        total += weight[steps] @ problem.columns(row, steps)
    return np.asarray(total / weight.sum())
