"""The comparison: paired, deterministic, honest about what it counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import polars as pl
import pytest

from equipoise.cost import StepCost, Term, load
from equipoise.errors import InputError, PolicyError
from equipoise.policies import parse
from equipoise.replay import Pool, SnapshotPlan
from equipoise.study import ComparePlan, Comparison, compare, rerun, schema, summarize, to_json, verdicts
from equipoise.study.folder import staged, write_data
from equipoise.study.tune import Range, tune

SMALL = ComparePlan(
    traces=["chat-short"],
    costs=[load("v1"), load("v2")],
    policies=[parse(p) for p in ("least_batch", "least_tokens", "dualpath,z=1.2", "random")],
    pool=Pool(ranks=8),
    concurrency=64,
    requests=1500,
    seeds=3,
)


@pytest.fixture(scope="module")
def small() -> Comparison:
    return compare(SMALL, jobs=2)


def test_every_cell_is_there_in_the_order_of_the_plan(small: Comparison) -> None:
    found = [(c.setting.cost.name, c.policy.label) for c in small.cells]
    assert found == [(c.name, p.label) for c in SMALL.costs for p in SMALL.policies]
    assert all(len(c.runs) == 3 for c in small.cells)


def test_policies_see_the_same_requests_and_seeds_do_not(small: Comparison) -> None:
    setting = small.settings()[0]
    means = [[r.mean_context_tokens for r in c.runs] for c in small.of(setting)]
    for others in means[1:]:
        assert others == pytest.approx(means[0], rel=0.02)  # the same work, met at other moments
    assert len(set(means[0])) == 3


def test_the_summary_keeps_its_published_schema(small: Comparison) -> None:
    for timing in (False, True):
        summary = summarize(small, timing=timing)
        jsonschema.Draft202012Validator(schema()).validate(json.loads(to_json(summary)))
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_schema_refuses_what_it_does_not_know(small: Comparison) -> None:
    summary = json.loads(to_json(summarize(small)))
    summary["cells"][0]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(summary, schema())


def test_the_same_study_gives_the_same_bytes_whatever_the_jobs(small: Comparison) -> None:
    assert to_json(summarize(compare(SMALL, jobs=1))) == to_json(summarize(small))
    assert "wall_s" not in to_json(summarize(small))


def test_excess_is_cost_over_ideal_of_the_counted_steps(small: Comparison) -> None:
    cell = small.cells[0]
    result = cell.runs[0].result
    assert result is not None
    rows = result.to_polars().filter(pl.col("counted_steps") == pl.col("steps"))
    cost, ideal = (float((rows[c] * rows["steps"]).sum()) for c in ("cost", "ideal"))
    assert cell.runs[0].excess == pytest.approx(cost / ideal - 1, rel=1e-9)
    first, last = cell.runs[0].counted_range
    assert cell.runs[0].counted_steps == rows["steps"].sum() == last - first + 1


def test_best_baseline_and_verdicts_agree_with_the_numbers(small: Comparison) -> None:
    words = verdicts(small)
    assert len(words) == 2
    for setting, text in zip(small.settings(), words, strict=True):
        best = small.best(setting)
        assert all(best.excess.mean <= c.excess.mean for c in small.of(setting))
        assert best.policy.label in text
        assert small.baseline(setting).policy.label == "least_batch"


def test_no_difference_is_said_in_words() -> None:
    """Two policies that decide alike cannot be told apart, and the summary says so."""
    plan = replace(SMALL, policies=[parse("least_batch"), parse("dualpath,z=1000000")], costs=[load("v1")])
    comparison = compare(plan)
    (row,) = [d for d in summarize(comparison)["differences"] if d["against"] == "baseline"]
    assert row["difference"]["mean"] == 0
    assert row["verdict"].startswith("no difference shown")
    assert "not told apart" in verdicts(comparison)[0]


def test_a_real_difference_is_shown_and_signed() -> None:
    plan = replace(SMALL, policies=[parse("random"), parse("least_batch")], costs=[load("v1")])
    comparison = compare(plan)
    (row,) = [d for d in summarize(comparison)["differences"] if d["against"] == "baseline"]
    assert row["difference"]["high"] < 0
    assert "less excess than random" in row["verdict"]


def test_one_seed_takes_its_interval_from_blocks() -> None:
    comparison = compare(replace(SMALL, seeds=1, requests=4000))
    cell = comparison.cells[0]
    assert cell.excess.method == "blocks"
    assert cell.excess.mean == pytest.approx(cell.runs[0].excess, rel=1e-9)
    assert cell.excess.low < cell.excess.mean < cell.excess.high


def test_one_group_has_no_group_policy_to_vary() -> None:
    plan = replace(
        SMALL,
        pool=Pool(instances=4, ranks=2),
        groups=(1, 2),
        group_policies=("least_batch", "least_tokens"),
        seeds=1,
        costs=[load("v1")],
        policies=SMALL.policies[:1],
    )
    found = [(s.pool.groups, s.group_policy) for s in plan.settings()]
    assert found == [(1, "least_batch"), (2, "least_batch"), (2, "least_tokens")]
    summary = summarize(compare(plan))
    assert [c["group_policy"] for c in summary["cells"]] == [None, "least_batch", "least_tokens"]


def test_timed_mode_scales_arrivals_to_the_wanted_load() -> None:
    # A cost with a large fixed share: only then does a rate belong to a load (see `rate_for`).
    plan = replace(
        SMALL, mode="timed", requests=3000, seeds=1, costs=[load("h200")], policies=SMALL.policies[:1]
    )
    comparison = compare(plan)
    run = comparison.cells[0].runs[0]
    # Little's law sets the rate from the ideal step; the real pool is a little slower, so a little fuller.
    assert 0.8 * 64 < run.mean_batch * 8 < 1.3 * 64
    summary = summarize(comparison)["cells"][0]
    assert summary["tpot_ms"]["p99"] >= summary["tpot_ms"]["p50"] > 0
    assert summary["queue_wait_ms"]["p50"] >= 0


def test_a_rerun_repeats_the_first_seed(small: Comparison) -> None:
    cell = small.cells[2]
    again = rerun(SMALL, cell, SnapshotPlan(count=5, first=50, every=10))
    assert again.excess == cell.runs[0].excess
    shots = again.snapshots
    assert shots.step.tolist() == [50, 60, 70, 80, 90]
    price = cell.setting.cost.cost(shots.batch, shots.context_tokens, shots.saturated_tokens)
    assert np.allclose(price * cell.setting.cost.us_per_unit * 1e-6, shots.length_s)


def test_costs_and_policies_may_not_be_given_twice() -> None:
    with pytest.raises(InputError, match="two costs are named 'v1'"):
        replace(SMALL, costs=[load("v1"), load("v1")])
    with pytest.raises(InputError, match="given twice"):
        replace(SMALL, policies=[parse("random"), parse("random")])
    with pytest.raises(InputError, match="trace 'chat-short' is given twice"):
        replace(SMALL, traces=["chat-short", "chat-short"])
    with pytest.raises(InputError, match="baseline 'round_robin' is not among"):
        replace(SMALL, baseline="round_robin")


def test_the_folder_holds_everything_and_appears_at_once(small: Comparison, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with staged(target) as stage:
        write_data(small, stage)
        assert not target.exists()
    names = {p.name for p in target.iterdir()}
    assert names == {"summary.json", "steps.parquet", "config.resolved.toml", "environment.json"}
    steps = pl.read_parquet(target / "steps.parquet")
    assert steps["policy"].unique().len() == 4
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_no_half_written_folder(small: Comparison, tmp_path: Path) -> None:
    def fail(stage: Path) -> None:
        (stage / "summary.json").write_text("{")
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError), staged(tmp_path / "out") as stage:
        fail(stage)
    assert list(tmp_path.iterdir()) == []


def test_plots_of_an_earlier_study_go_and_strangers_stay(small: Comparison, tmp_path: Path) -> None:
    own = tmp_path / "report.html"
    for name in ("groups.png", "report.html", "notes.txt"):
        (tmp_path / name).write_text("mine")
    with staged(tmp_path) as stage:
        write_data(small, stage)
    assert own.read_text() == "mine"  # no study stood here: nothing is removed
    with staged(tmp_path) as stage:
        write_data(small, stage)
    names = {p.name for p in tmp_path.iterdir()}
    assert {"groups.png", "report.html"}.isdisjoint(names)
    assert {"notes.txt", "summary.json"} <= names


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="is a file"), staged(tmp_path / "out"):
        pass


def test_tune_finds_a_planted_optimum_and_checks_it_on_fresh_seeds() -> None:
    """A price on tokens alone makes least_tokens (z = 0) best: the search must go to the low end."""
    tokens_only = StepCost("tokens", (Term("c", 1.0, per_request=0.0, per_100k_context=1.0),), constant=0.1)
    plan = replace(SMALL, costs=[tokens_only], seeds=2)
    (tuning,) = tune(plan, "dualpath", space=[Range("z", (0.0, 1.0, 2.0, 4.0))], refinements=4)
    best = tuning.best.policy.params["z"]
    assert best <= 1.0
    excess = {t.cell.policy.params["z"]: t.cell.excess.mean for t in tuning.trials}
    assert excess[4.0] > excess[0.0]
    assert {r.seed for r in tuning.best.runs}.isdisjoint(range(plan.first_seed, plan.first_seed + plan.seeds))
    low, high = tuning.flat_range("z")
    assert low <= best <= high
    assert len(tuning.trials) <= 8


def test_tune_needs_a_range_it_knows() -> None:
    with pytest.raises(PolicyError, match="no default range"):
        tune(SMALL, "random")


def test_seeds_that_give_one_run_are_one_observation(tmp_path: Path) -> None:
    """A file with a single session cannot be mixed anew: five seeds are one run, not a certainty."""
    path = tmp_path / "one.csv"
    rows = "\n".join(f"{0.01 * i:.2f},{500 + i % 97},{20 + i % 31},7" for i in range(800))
    path.write_text(f"arrival_s,context_tokens,output_tokens,session\n{rows}\n")
    plan = replace(
        SMALL, traces=[str(path)], mode="timed", concurrency=None, requests=None, costs=[load("h200")]
    )
    comparison = compare(replace(plan, policies=SMALL.policies[:2]))
    for cell in comparison.cells:
        assert not cell.replicated
        assert cell.excess.method != "seeds"
    assert summarize(comparison)["cells"][0]["concurrency"] is None
