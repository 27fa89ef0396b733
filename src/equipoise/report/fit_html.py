"""`write_fit_html`: a calibration as one file that opens without a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from equipoise.calibrate.calibration import Calibration
from equipoise.calibrate.groups import words
from equipoise.calibrate.result import FitResult, ValueInterval
from equipoise.calibrate.words import coverage_words, no_rate, quantity, share, span
from equipoise.cost.files import to_toml
from equipoise.cost.summary import barriers
from equipoise.report import fit_figures as figures
from equipoise.report.board import Board, paint
from equipoise.report.words import formula_lines

__all__ = ["render_fit", "write_fit_html"]


def write_fit_html(one: Calibration, path: Path) -> None:
    """Write the page.

    Parameters
    ----------
    one : Calibration
    path : Path

    Raises
    ------
    InputError
        The libraries of the extra `report` are missing.
    """
    path.write_text(render_fit(one), "utf-8")


def render_fit(one: Calibration) -> str:
    """The page as text: the same calibration gives the same text."""
    result, board = one.result, Board()
    context: dict[str, Any] = {
        "version": version("equipoise"),
        "title": f"Step cost: {result.cost.name}",
        "subtitle": _subtitle(result),
        "formula": formula_lines(result.cost),
        "cost_words": f"{result.form}; {result.cost.source}",
        "cards": _cards(result),
        "untold": [(u.coefficient, f"{_sentence(u.reason)} Probe: {u.probe}.") for u in result.unidentified],
        "agreement_words": (
            "Each point is a step. Dotted: 10 % off. On the right the median of measured over predicted by load: a "
            "pattern there is something the form does not know."
        ),
        "agreement": _agreement(result, board),
        "interval_words": _interval_words(result),
        "coefficients": _coefficients(result, board),
        "coefficient_table": _coefficient_table(result),
        "coverage_lead": _sentence(" ".join(coverage_words(result)))
        + " Elsewhere the cost is a guess."
        + _rings(result),
        "coverage": board.pin(figures.coverage_figure(result), alt="Loads of ranks by batch and context"),
        "extrapolation": _extrapolation(result),
        "knob_words": _knob_words(one),
        "knobs": _knobs(one),
        "z": _z(one, board),
        "prefill": _prefill(one),
        "data_words": (
            f"{result.rows:,} rows in {result.steps:,} steps of {result.ranks} rank{'s' if result.ranks > 1 else ''}, "
            f"format {result.format}: {result.source}."
        ),
        "dropped": _dropped(result),
        "candidates": _table(
            ["form", "coefficients", "held-out error, %"],
            [[c.label, str(c.coefficients), f"{100 * c.mape:.2f}"] for c in result.candidates],
            best=[c.chosen for c in result.candidates],
        ),
        "notes": [
            *result.notes,
            *([f"No prefill cost: {one.prefill_missing}."] if one.prefill_missing else []),
        ],
        "levels": _sentence(", ".join(result.levels)),
        "toml": to_toml(one.cost),
    }
    context["contents"] = [
        (anchor, text)
        for anchor, text, there in (
            ("cost", "Cost", True),
            ("untold", "Not identified", context["untold"]),
            ("agreement", "Agreement", True),
            ("coefficients", "Coefficients", True),
            ("coverage", "Coverage", True),
            ("knobs", "Knobs", True),
            ("prefill", "Prefill", context["prefill"]),
            ("data", "Data", True),
            ("file", "Cost file", True),
        )
        if there
    ]
    return paint("fit.html.j2", context, board, {})


def _subtitle(result: FitResult) -> str:
    told = ("system", "framework", "model", "layer", "op_name", "table", "architecture")  # the title has them
    group = words({k: v for k, v in result.group.items() if k not in told})
    about = f"{group}; " if group else ""
    return f"{about}fitted to {result.steps:,} steps, error bars from {result.bootstrap['replicates']:,} resamples."


def _cards(result: FitResult) -> list[dict[str, Any]]:
    rate, fixed = result.exchange_rate, result.fixed_share
    known = not no_rate(result)
    return [
        {
            "key": "one request costs as much as",
            "number": quantity(rate.value) if known else "unknown",
            "unit": "context tokens" if known else "",
            "notes": [_range(rate, quantity)] if known else [no_rate(result)],
        },
        {
            "key": "held-out error",
            "number": f"{100 * result.heldout_mape:.1f}",
            "unit": "%",
            "notes": [f"left out: {result.heldout_regions}"],
        },
        {
            "key": "fixed share of a mean step",
            "number": f"{100 * fixed.value:.1f}",
            "unit": "%",
            "notes": [_range(fixed, share), "no placement changes it"],
        },
    ]


def _range(interval: ValueInterval, shown: Any) -> str:
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return "no interval"
    return f"95 % interval {shown(interval.low)} to {shown(interval.high)}"


def _agreement(result: FitResult, board: Board) -> list[dict[str, Any]]:
    return [
        board.pin(
            figures.agreement_figure(result), title="Step time", alt="Measured against predicted step time"
        ),
        board.pin(
            figures.residual_figure(result),
            title="Residuals by load, %",
            alt="Median of measured over predicted by batch and context",
        ),
    ]


def _coefficients(result: FitResult, board: Board) -> list[dict[str, Any]]:
    found = []
    drawn = figures.coefficient_figure(result)
    if drawn is not None:
        found.append(board.pin(drawn, title="Coefficients, us", alt="Intervals of the coefficients"))
    found.append(
        board.pin(
            figures.regime_figure(result), title="Held-out error by regime", alt="Held-out error by regime"
        )
    )
    return found


def _interval_words(result: FitResult) -> str:
    boot = result.bootstrap
    length = boot["block_steps"]
    units = "single steps" if length == 1 else f"blocks of {length} steps"
    if boot["units"] == "regions":
        units = f"{boot['blocks']:g} load regions"
    return (
        f"The intervals hold for all coefficients at once (95 %); they come from resampling {units}. The error is that "
        f"of fits that have not seen the region they predict: {share(result.heldout_mape)}, against "
        f"{share(result.in_sample_mape)} on the data themselves."
    )


def _coefficient_table(result: FitResult) -> dict[str, Any]:
    rows = [
        [figures.short_name(result, n), quantity(v), span(*result.intervals[n])]
        for n, v in result.coefficients.items()
    ]
    return _table(["coefficient", "us", "95 % interval, all at once"], rows)


def _rings(result: FitResult) -> str:
    return " Rings: loads of slowest ranks, which the prices rest on." if result.ranks > 1 else ""


def _extrapolation(result: FitResult) -> dict[str, Any] | None:
    rows = [[e.beyond, f"{e.steps:,}", f"{100 * e.mape:.1f}"] for e in result.extrapolation]
    return _table(["where", "steps", "mean error, %"], rows) if rows else None


def _knob_words(one: Calibration) -> str:
    missing = no_rate(one.result)
    if missing:
        return f"None: {missing}."
    return "Settings of balancers in use that weigh requests and tokens as this cost does."


def _knobs(one: Calibration) -> dict[str, Any] | None:
    found = one.knobs
    if no_rate(one.result):
        return None
    x, w = found.request_equivalent_tokens, found.decode_active_request_weight
    rows = [
        ["x of a score tokens + x * requests", quantity(x.value), span(x.low, x.high)],
        [
            f"w of Dynamo's score blocks + w * requests (blocks of {found.block_tokens} tokens)",
            quantity(w.value),
            span(w.low, w.high),
        ],
    ]
    if one.z is not None:
        low, high = one.z.within()
        rows.append(["z of DualPath, by replay", f"{one.z.z:g}", f"{low:g} to {high:g} within a point"])
    return _table(["knob", "value", "95 % interval"], rows)


def _z(one: Calibration, board: Board) -> dict[str, Any] | None:
    z = one.z
    if z is None:
        return None
    caption = (
        f"{z.trace}, {z.ranks} ranks, {z.batch} requests a rank. On fresh seeds z = {z.z:g} has "
        f"{100 * z.excess.value:.2f} % excess, the default z = {z.default_z:g} {100 * z.default_excess.value:.2f} %."
    )
    return board.pin(
        figures.z_figure(z), title="DualPath under this cost", alt="Excess over ideal by z", caption=caption
    )


def _prefill(one: Calibration) -> dict[str, Any] | None:
    found = one.prefill
    if found is None:
        return None
    lines = "\n     + ".join(barriers(found.cost.formula()))
    untold = "".join(f" Not identified: {u.name} ({u.reason})." for u in found.unidentified)
    return {
        "formula": f"cost = {lines}",
        "words": f"{found.steps:,} prefill steps; held-out error {share(found.heldout_mape)}.{untold}",
        "table": _table(
            ["coefficient", "95 % interval, us"], [[n, span(*ends)] for n, ends in found.intervals.items()]
        ),
    }


def _dropped(result: FitResult) -> dict[str, Any] | None:
    rows = [
        [d.reason, f"{d.rows:,}", d.first.rpartition("/")[2]]
        for d in sorted(result.dropped, key=lambda d: -d.rows)
    ]
    return _table(["reason", "rows", "first at"], rows) if rows else None


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[bool] | None = None
) -> dict[str, Any]:
    """A table as the page's macro takes it: words left, numbers right."""
    return {
        "head": [{"text": h, "left": i == 0} for i, h in enumerate(head)],
        "rows": [
            {
                "best": bool(best and best[k]),
                "cells": [
                    {"text": c, "interval": "", "left": i == 0, "colour": ""} for i, c in enumerate(row)
                ],
            }
            for k, row in enumerate(rows)
        ],
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
