"""`fit.html` and `fit.png`: complete, offline, safe against foreign text, the same for the same calibration."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from equipoise.calibrate import fit, plant
from equipoise.calibrate.calibration import Calibration, complete
from equipoise.calibrate.knobs import BestZ
from equipoise.calibrate.result import ValueInterval
from equipoise.cost import StepCost, Term
from equipoise.cost.files import to_toml

pytest.importorskip("plotly")
pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from equipoise.report.fit_cells import residual_cells
from equipoise.report.fit_figures import agreement_figure, coefficient_figure, coverage_figure, ticks
from equipoise.report.fit_html import render_fit, write_fit_html
from equipoise.report.fit_plot import write_fit_plot

TRUTH = StepCost("t", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")


@cache
def one() -> Calibration:
    result = fit(plant(TRUTH, steps=200, ranks=4, noise=0.02), name="small", replicates=200)
    interval = ValueInterval(0.02, 0.019, 0.021)
    z = BestZ(
        1.05, 1.2, (1.05, 1.06), interval, interval, interval, ((1.0, 0.04), (1.05, 0.02)), "chat", 4, 8
    )
    return replace(complete(result), z=z)


def test_the_page_is_whole_and_loads_nothing() -> None:
    page = render_fit(one())
    assert page == render_fit(one())
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    for section in ("cost", "agreement", "coefficients", "coverage", "knobs", "data", "file"):
        assert f'<section id="{section}">' in page
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert set(figures) == set(re.findall(r'class="figure" id="(figure-\d+)"', page))
    assert len(figures) == 6
    assert "[[terms]]" in page
    for value in one().result.coefficients.values():
        assert f"{value!r}" in page  # in the cost file at its end


def test_foreign_text_cannot_act() -> None:
    evil = "<script>alert(1)</script>"
    result = replace(one().result, source=evil, notes=(evil,), cost=replace(one().result.cost, name=evil))
    page = render_fit(replace(one(), result=result))
    assert evil not in page
    assert page.count("&lt;script&gt;alert(1)") >= 3


def test_files(tmp_path: Path) -> None:
    write_fit_html(one(), tmp_path / "fit.html")
    write_fit_plot(one(), tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes()[:4] == b"\x89PNG"
    assert to_toml(one().cost).splitlines()[0] in (tmp_path / "fit.html").read_text("utf-8").replace(
        "&#34;", '"'
    )


def test_residual_cells_hold_every_step() -> None:
    points = one().result.points
    cells = residual_cells(points)
    assert cells.steps.sum() == len(points.observed_us)
    assert (np.isfinite(cells.residual) == (cells.steps > 0)).all()
    assert np.abs(cells.residual[cells.steps > 5]).max() < 0.03


def test_figures_show_what_was_fitted() -> None:
    result = one().result
    points = agreement_figure(result)["data"][-1]
    assert len(points["x"]) == len(result.points.observed_us)
    assert np.allclose(points["y"], result.points.observed_us / 1000, rtol=1e-5)
    heat = coverage_figure(result)["data"][0]
    assert [len(r) for r in heat["z"]] == [len(result.coverage.context_from)] * len(
        result.coverage.batch_from
    )
    drawn = coefficient_figure(result)
    assert drawn is not None
    assert len(drawn["data"][0]["y"]) == 3


def test_ticks() -> None:
    assert ticks(150, 2500) == [200, 500, 1000, 2000]
