"""A whole analysis of runs whose truth is known: slowed, capped or dearer than priced."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from made_runs import POLICIES, STEP, mixture, write_folder
from made_steps import write_steps

from equipoise import Pool
from equipoise.cost import StepCost
from equipoise.errors import InputError
from equipoise.fleet import Deployment
from equipoise.live.about import read_about
from equipoise.live.findings import analyse, schema, summarize
from equipoise.live.findings.analysis import Agreement, Analysis
from equipoise.live.findings.numbers import Slo

STEEP = replace(STEP, terms=(replace(STEP.terms[0], per_100k_context=25_000.0),))
"""Context is dear, so policies differ."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("live")
    write_folder(found, cost=STEEP, noise=0.005)
    write_steps(found, STEEP)
    return found


@pytest.fixture(scope="module")
def analysis(folder: Path) -> Analysis:
    return analyse(folder)


def agreement(analysis: Analysis) -> Agreement:
    assert analysis.agreement is not None, analysis.no_agreement
    return analysis.agreement


def test_the_level_is_predicted(analysis: Analysis) -> None:
    rows = [x for x in agreement(analysis).levels if x.measure.name == "itl_ms.mean"]
    assert [x.policy for x in rows] == list(POLICIES)
    assert all(x.off[1] - 0.01 < 0 < x.off[2] + 0.01 for x in rows)
    assert abs(rows[1].off[0]) < 0.02  # the first, least_batch, leaves contexts to chance


def test_the_order_is_predicted(analysis: Analysis) -> None:
    (ranking,) = (r for r in agreement(analysis).rankings if r.measure.name == "itl_ms.mean")
    assert ranking.count("right") > 0
    assert ranking.count("wrong") == 0
    assert {(f.a, f.b): f.verdict for f in analysis.of("itl_ms.mean")}[POLICIES[0], POLICIES[1]] == "higher"


def test_the_cost_is_found_again(analysis: Analysis) -> None:
    fit = agreement(analysis).prediction.calibration
    assert fit is not None
    c = fit.result.coefficients
    assert c["constant"] == pytest.approx(5000, rel=0.05)
    assert next(v for n, v in c.items() if n.endswith("per_100k_context")) == pytest.approx(25_000, rel=0.05)


def test_the_document_is_what_its_schema_says(analysis: Analysis) -> None:
    document = summarize(analysis)
    jsonschema.validate(document, schema())
    jsonschema.Draft202012Validator.check_schema(schema())


def test_a_page_holds_every_sentence(analysis: Analysis) -> None:
    pytest.importorskip("plotly")
    from equipoise.live.findings.page import render

    page = render(analysis)
    assert page == render(analysis)
    assert "least_batch" in page
    assert "Kendall" in page
    assert 'src="http' not in page


# -- planted gaps -------------------------------------------------------------------------------------------------


def gaps_of(
    tmp_path: Path, engine: StepCost, deployment: Deployment | None = None, **more: object
) -> Analysis:
    """The engine costs `engine`; the prediction believes in STEP."""
    write_folder(
        tmp_path,
        policies=POLICIES[:2],
        repeats=3,
        cost=engine,
        deployment=deployment,
        noise=0.001,
        **more,  # type: ignore[arg-type]
    )
    return analyse(tmp_path, cost=STEP, measures=["itl_ms.mean"])


def test_a_dearer_step_is_found_in_the_price(tmp_path: Path) -> None:
    for gap in agreement(gaps_of(tmp_path, STEP.scaled(1.1))).gaps:
        assert gap.loads_ms is not None
        assert gap.price_ms is not None
        assert gap.price_ms.mean == pytest.approx(0.55, abs=0.08)
        assert 0 < gap.loads_ms.mean < 0.15  # slower steps hold more requests
        assert gap.itl_ms.mean == pytest.approx(gap.loads_ms.mean + gap.price_ms.mean)


def test_queues_of_the_engine_are_found_in_the_loads(tmp_path: Path) -> None:
    """The engine runs two requests a rank at most, which nobody told the prediction: shorter steps, longer waits."""
    tight = Deployment(Pool(ranks=4, max_batch=2))
    found = agreement(gaps_of(tmp_path, STEP, tight, trace=mixture(gap_s=0.02)))
    for gap in found.gaps:
        assert gap.loads_ms is not None
        assert gap.price_ms is not None
        assert gap.loads_ms.high < 0
        assert gap.ttft_ms.low > 0
        assert gap.wait_ms is None  # nobody counted who waited


def test_regions_say_where_the_cost_is_wrong(tmp_path: Path) -> None:
    found = agreement(gaps_of(tmp_path, STEEP))
    by_context = sorted(found.regions, key=lambda r: r.context_tokens[0])
    assert math.expm1(by_context[-1].log_ratio.mean) > math.expm1(by_context[0].log_ratio.mean) + 0.05


# -- what can be missing or wrong ---------------------------------------------------------------------------------


def test_without_steps_nothing_is_predicted(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "live")
    (tmp_path / "live" / "steps.parquet").unlink()
    found = analyse(tmp_path / "live", measures=["itl_ms.mean"])
    assert found.agreement is None
    assert "no step data" in found.no_agreement
    jsonschema.validate(summarize(found), schema())
    assert {f.measure.name for f in found.findings} == {"itl_ms.mean"}


def test_a_run_that_was_stopped(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "live")
    about = read_about(tmp_path / "live")
    about.state = "stopped"
    about.runs[0].state = "stopped"
    about.write(tmp_path / "live")
    found = analyse(tmp_path / "live", measures=["itl_ms.mean"], cost=STEEP)
    assert any("left out" in n for n in found.notes)
    assert any("lacks repeat 0" in n for n in found.notes)
    assert [len(f.values_a) for f in found.findings] == [3, 3, 4]
    for run in about.runs:
        run.state = "failed"
    about.write(tmp_path / "live")
    with pytest.raises(InputError, match="no run is whole"):
        analyse(tmp_path / "live")


@pytest.mark.parametrize("bad", [0.0, -1.0, 101.0, math.nan])
def test_margins(folder: Path, bad: float) -> None:
    with pytest.raises(InputError, match="margin"):
        analyse(folder, margin_percent=bad)


def test_measures_have_names(folder: Path) -> None:
    with pytest.raises(InputError, match=r"itl_ms\.mean"):
        analyse(folder, measures=["itl.mean"])


def test_goodput_counts_what_failed(folder: Path) -> None:
    found = analyse(folder, slo=Slo(ttft_ms=9.0), measures=["good_share.mean"], cost=STEEP)
    shares = [p.values["good_share.mean"] for p in found.policies]
    assert all(0 < v < 1 for values in shares for v in values)


def test_one_repeat(tmp_path: Path) -> None:
    write_folder(tmp_path, policies=POLICIES[:2], repeats=1, trace=mixture(200))
    found = analyse(tmp_path)
    assert {f.resolve for f in found.findings} == {None}
    jsonschema.validate(summarize(found), schema())
