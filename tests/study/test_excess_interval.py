"""The interval of an excess holds no value that an excess cannot have."""

from __future__ import annotations

from equipoise import study
from equipoise.cost import load
from equipoise.policies import parse
from equipoise.replay import Pool
from equipoise.study import ComparePlan
from equipoise.study.statistics import over_seeds


def test_two_seeds_do_not_show_an_excess_below_zero() -> None:
    plan = ComparePlan(
        traces=["agentic-coding"],
        costs=[load("v1")],
        policies=[parse("least_batch"), parse("dualpath")],
        pool=Pool(ranks=8),
        concurrency=256,
        requests=3000,
        seeds=2,
    )
    comparison = study.compare(plan)
    uncut = [over_seeds([r.excess for r in c.runs]) for c in comparison.cells]
    assert min(i.low for i in uncut) < 0  # else this test shows nothing
    for cell, interval in zip(comparison.cells, uncut, strict=True):
        assert cell.excess == interval.never_below(0.0)
        assert cell.excess.low >= 0
    assert all("(-" not in verdict for verdict in study.verdicts(comparison))
