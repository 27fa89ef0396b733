"""From step records to a step cost with error bars: the whole of a calibration, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from equipoise.calibrate.assemble import Evidence, Found, assemble
from equipoise.calibrate.bootstrap import bootstrap
from equipoise.calibrate.bottleneck import Problem, fit_bottleneck
from equipoise.calibrate.choose import BATCH_SHAPES, SATURATIONS, choose
from equipoise.calibrate.clean import TABLE_FORMATS, clean
from equipoise.calibrate.exchange import PRICES
from equipoise.calibrate.identify import Unidentified, collinear
from equipoise.calibrate.pauses import without_pauses
from equipoise.calibrate.records import StepRecords
from equipoise.calibrate.regions import load_regions
from equipoise.calibrate.result import FitResult
from equipoise.calibrate.robust import Loss
from equipoise.calibrate.samples import Samples
from equipoise.calibrate.shapes import Form
from equipoise.errors import CalibrationError, nearest

if TYPE_CHECKING:
    from equipoise.models.shape import ModelShape

__all__ = ["TABLE_MAX_BATCH", "TABLE_MIN_CONTEXT", "fit", "own_lengths"]

TABLE_MAX_BATCH: Final = 512
TABLE_MIN_CONTEXT: Final = 2048
"""Range of a table of AIConfigurator that is fitted by default: batches of decode pools, contexts past top-k."""

LEAST_STEPS: Final = 8


def fit(
    records: StepRecords | Sequence[StepRecords],
    *,
    model: str | ModelShape | None = None,
    barrier: Literal["layer", "step"] = "layer",
    terms: int | Literal["auto"] = "auto",
    batch_shape: str = "auto",
    saturation_tokens: int | Sequence[int] | Literal["auto"] | None = "auto",
    graph_sizes: Sequence[int] | None = None,
    max_batch: int | Literal["auto"] | None = "auto",
    min_context: int | Literal["auto"] | None = "auto",
    warmup_steps: int = 0,
    missing_ranks_are_idle: bool = False,
    loss: Loss = "huber",
    replicates: int = 2000,
    seed: int = 0,
    name: str | None = None,
) -> FitResult:
    """Fit what a decode step costs to what an engine logged, or to a measured table.

    Parameters
    ----------
    records : StepRecords or sequence of them
        Several files of one deployment are fitted together. Where no row has a context length, context gets no
        price, and the result says so.
    model : str or ModelShape, optional
        The model that ran: its own saturation lengths (top-k, windows) are tried besides the usual ones.
    barrier : {"layer", "step"}
        ``layer``: layer classes wait for each other one by one, the sum of maxima; ``step``: one wait a step.
    terms : {"auto", 1, 2}
        One term of batch and context, or a term that waits for the largest batch beside one of batch and context.
    batch_shape : {"auto", "linear", "roofline", "table", "staircase"}
        ``auto``: the simplest that the held-out error supports.
    saturation_tokens : int, sequence of int, "auto" or None
        Context lengths from which a second context price may stop growing; None: none.
    graph_sizes : sequence of int, optional
        Batches for which the engine captured graphs; vLLM's default list otherwise.
    max_batch, min_context : int, "auto" or None
        Range to fit: requests a rank, context tokens a request. ``auto``: 512 and 2,048 for a table of
        AIConfigurator, no bounds otherwise.
    warmup_steps : int
        Decode steps to leave out at the start of every instance.
    missing_ranks_are_idle : bool
        Keep steps in which ranks are missing, as if those had been idle.
    loss : {"huber", "tukey", "squares"}
    replicates : int
        Bootstrap replicates.
    seed : int
    name : str, optional
        Name of the cost.

    Returns
    -------
    FitResult

    Raises
    ------
    CalibrationError
        No decode steps, or too few to fit; one load only, of which nothing but a mean time could be told; an unknown
        option.

    Examples
    --------
    >>> import numpy as np
    >>> from equipoise.calibrate import StepRecords
    >>> batch, context = np.meshgrid([1, 2, 4, 8, 16, 32], [4096, 8192, 16384, 65536])
    >>> time_us = 200 + 2.0 * batch + 4.0 * batch * context / 100_000
    >>> columns = {"batch": batch.ravel(), "context_tokens": (batch * context).ravel(), "time_s": time_us.ravel() / 1e6}
    >>> fit(StepRecords.build(columns)).cost.formula()
    '200 + 1 * max(2 * B + 4 * C/100k)'
    """
    _check(batch_shape, barrier, terms, loss)
    records = records if isinstance(records, StepRecords) else _joined(records)
    table = records.format in TABLE_FORMATS
    cleaned = clean(
        records,
        max_batch=(TABLE_MAX_BATCH if table else None) if max_batch == "auto" else max_batch,
        min_context=(TABLE_MIN_CONTEXT if table else None) if min_context == "auto" else min_context,
        warmup_steps=warmup_steps,
        missing_ranks_are_idle=missing_ranks_are_idle,
    )
    samples, pauses = without_pauses(cleaned.samples, loss)
    if len(samples) < LEAST_STEPS:
        raise CalibrationError(
            f"holds {len(samples)} decode steps in range",
            where=records.source or None,
            fix=f"a fit needs {LEAST_STEPS} or more, with different batches and contexts",
        )
    label = str(records.labels.get("layer") or "decode")
    choice = choose(
        samples,
        batch_shape=batch_shape,
        terms=1 if barrier == "step" else terms,
        saturation_tokens=_lengths(saturation_tokens, model),
        sizes=graph_sizes,
        loss=loss,
        names=(label, "batch", "attention"),
    )
    found = _fit_identified(samples, choice.form, loss, records.source)
    regions = load_regions(samples) if samples.is_grid else None
    errors = bootstrap(found.problem, found.fit, regions, loss=loss, replicates=replicates, seed=seed)
    evidence = Evidence(records, cleaned, samples, pauses, choice, found, errors, loss, barrier)
    return assemble(evidence, name or _name(records), seed)


def _fit_identified(samples: Samples, form: Form, loss: Loss, source: str) -> Found:
    """Fit, and leave out columns that say the same as others until none does."""
    gone: list[Unidentified] = []
    lost: set[str] = set()
    while True:
        problem = Problem(samples, form)
        found = fit_bottleneck(samples, form, loss=loss, problem=problem)
        smaller, new, open_ = collinear(problem, found)
        gone += new
        lost |= open_
        if not smaller.terms:
            raise CalibrationError(
                "holds one load only: nothing but a mean step time is known",
                where=source or None,
                fix=_probes(gone),
            )
        if smaller == form:
            return Found(problem, found, tuple(gone), tuple(p for p in PRICES if p in lost))
        form = smaller


def _probes(gone: Sequence[Unidentified]) -> str:
    """What to run so that a request and context get a price."""
    return "; ".join(dict.fromkeys(u.probe for u in gone if u.coefficient.endswith(("request", "context"))))


def _name(records: StepRecords) -> str:
    words = [
        str(records.labels[k]) for k in ("system", "framework", "model", "layer") if records.labels.get(k)
    ]
    return " ".join(words) or "fitted"


def _lengths(
    wanted: int | Sequence[int] | Literal["auto"] | None, model: str | ModelShape | None
) -> int | Sequence[int] | Literal["auto"] | None:
    if wanted != "auto" or model is None:
        return wanted
    return sorted({*SATURATIONS, *own_lengths(model)})


def own_lengths(model: str | ModelShape) -> tuple[int, ...]:
    """Context lengths from which on parts of a model's work stop growing: top-k, windows."""
    from equipoise import models

    shape = models.load(model) if isinstance(model, str) else model
    return tuple(sorted({w.saturation_tokens for c in shape.classes for w in c.work if w.saturation_tokens}))


def _joined(records: Sequence[StepRecords]) -> StepRecords:
    parts = list(records)
    if not parts:
        raise CalibrationError("no step records", fix="give at least one log")
    formats = sorted({p.format for p in parts})
    if len(formats) > 1:
        raise CalibrationError(
            f"logs of several formats ({', '.join(formats)})",
            fix="fit each on its own: their times mean different things",
        )
    return parts[0] if len(parts) == 1 else StepRecords.concatenate(parts)


def _check(batch_shape: str, barrier: str, terms: int | str, loss: str) -> None:
    for option, value, known in (
        ("batch_shape", batch_shape, ("auto", *BATCH_SHAPES)),
        ("barrier", barrier, ("layer", "step")),
        ("loss", loss, ("huber", "tukey", "squares")),
    ):
        if value not in known:
            raise CalibrationError(f"{option} = {value!r}", fix=nearest(value, known))
    if terms not in ("auto", 1, 2):
        raise CalibrationError(f"terms = {terms!r}", fix="use 'auto', 1 or 2")
