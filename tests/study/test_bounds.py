"""A comparison with its oracle: refused where it cannot be, in every face where it can."""

import jsonschema
import pytest

from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.replay import Information, Pool
from equipoise.study import ComparePlan, compare, schema, summarize, to_json, verdicts
from equipoise.study.bounds import budget_of, check_plan, share_of, with_oracle
from equipoise.study.oracle import Budget

PLAN = ComparePlan(
    traces=["chat-short"],
    costs=[load("v2")],
    policies=[parse(p) for p in ("least_batch", "round_robin", "dualpath,z=1.2")],
    pool=Pool(ranks=4),
    concurrency=32,
    requests=600,
    seeds=2,
)
BUDGET = Budget(candidates=20_000)


@pytest.fixture(scope="module")
def found():
    return with_oracle(compare(PLAN, jobs=2), BUDGET)


def test_shares_run_from_the_baseline_to_the_oracle(found):
    bound = found.bounds[0]
    shares = {c.policy.name: share_of(c, bound).mean for c in found.cells}
    assert shares["round_robin"] == 0.0
    assert 0 < shares["least_batch"] <= 1
    for cell in found.cells:
        for run, best in zip(cell.runs, bound.runs, strict=True):
            assert 0 <= best.excess <= run.excess


def test_the_summary_grows_and_keeps_to_its_schema(found):
    plain = summarize(compare(PLAN, jobs=2))
    grown = summarize(found)
    jsonschema.validate(plain, schema())
    jsonschema.validate(grown, schema())
    assert "oracle" not in plain
    assert grown["oracle"][0]["baseline"] == "round_robin"
    for cell in grown["cells"]:
        assert set(cell.pop("share_of_winnable")) == {"mean", "low", "high", "method"}
    assert grown["cells"] == plain["cells"]
    assert "The oracle, which knows the future, reached" in verdicts(found)[0]


def test_with_candidates_for_a_budget_the_bytes_are_the_same(found):
    again = with_oracle(compare(PLAN, jobs=1), BUDGET, jobs=1)
    assert to_json(summarize(found)) == to_json(summarize(again))


def test_by_the_clock_all_are_counted_over_the_same_time():
    plan = ComparePlan(
        traces=["chat-short"], costs=[load("v2")], policies=[parse("least_batch")], pool=Pool(ranks=4),
        load_per_rank=6, requests=600, seeds=2, mode="timed",
    )  # fmt: skip
    found = with_oracle(compare(plan, jobs=2), BUDGET)
    for run, best in zip(found.cells[0].runs, found.bounds[0].runs, strict=True):
        assert best.excess >= 0
        assert best.counted_s == pytest.approx(run.counted_s)


def test_sessions_are_refused():
    plan = ComparePlan(
        traces=["chat-short"], costs=[load("v2")], policies=[parse("least_batch")], mode="sessions"
    )
    with pytest.raises(InputError, match="cannot play back sessions mode"):
        check_plan(plan)
    late = ComparePlan(
        traces=["chat-short"], costs=[load("v2")], policies=[parse("least_batch")],
        information=Information("ledger", 2, 1, 4),
    )  # fmt: skip
    check_plan(late)  # the oracle sees the truth, whatever routers see


@pytest.mark.parametrize("text", ["soon", "", "0", "-3s", "1.5", "nans"])
def test_what_is_no_budget(text):
    with pytest.raises(InputError, match="--oracle-budget"):
        budget_of(text)


def test_budgets():
    assert budget_of("30s") == Budget(seconds=30.0)
    assert budget_of("2_000_000") == Budget(candidates=2_000_000)
