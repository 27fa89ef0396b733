"""The verdict of a ceiling: each answer from numbers that call for it."""

import math
from dataclasses import replace

import jsonschema
import pytest

from equipoise.cost import load
from equipoise.policies import parse
from equipoise.replay import Pool
from equipoise.study import ComparePlan
from equipoise.study.ceiling import Ceiling, ceiling, ceiling_plan
from equipoise.study.ceiling_words import ceiling_schema, decide, summarize_ceilings, words
from equipoise.study.oracle import Budget
from equipoise.study.statistics import Interval

PLAN = ComparePlan(
    traces=["chat-short"], costs=[load("v2")], policies=[parse("least_batch")], pool=Pool(ranks=4),
    concurrency=32, requests=500, seeds=2,
)  # fmt: skip


def about(mean, half=0.001):
    return Interval(mean, mean - half, mean + half, "seeds", half / 3, 2)


BASE = Ceiling(
    setting=ceiling_plan(PLAN).settings()[0],
    rows=(),
    lost=about(0.10),
    random_lost=0.15,
    simple="least_batch",
    simple_lost=about(0.04),
    best="equipoise",
    best_lost=about(0.02),
    best_over_simple=about(0.02),
    fixed=0.0,
    batch_part=0.05,
    context_part=0.04,
)


@pytest.mark.parametrize(
    ("changes", "answer", "said"),
    [
        ({}, "yes", "least_batch still leaves 4.00 %"),
        ({"lost": about(0.03)}, "yes, a little", "round_robin spends 3.00 %"),
        ({"simple_lost": about(0.005)}, "a simple rule is enough", "least_batch leaves 0.50 %"),
        ({"lost": about(0.005)}, "no", "round_robin spends 0.50 %"),
        ({"lost": about(0.03, 0.05)}, "not shown", "use more (--seeds)"),
        ({"lost": about(0.001, 0.002)}, "no", "No."),
        ({"best_over_simple": about(0.01, 0.02)}, "yes", "that equipoise is better is not shown"),
        ({"best_lost": about(0.002)}, "yes", "even the oracle wins next to nothing"),
        ({"fixed": 0.5}, "yes", "50 % of an ideal step are fixed"),
        ({"batch_part": 0.2}, "yes", "Batches matter most"),
        ({"context_part": 0.2}, "yes", "Contexts matter most"),
        ({}, "yes", "Batches and contexts both matter"),
        ({"lost": Interval(0.1, math.nan, math.nan, "none", math.nan, 0)}, "yes", "One seed shows no spread"),
    ],
)
def test_the_answer_follows_from_the_numbers(changes, answer, said):
    found = replace(BASE, **changes)
    assert decide(found) == answer
    assert said in words(found)


def test_a_ceiling_from_end_to_end():
    ticks = []
    found = ceiling(PLAN, Budget(candidates=10_000), progress=lambda done, total: ticks.append((done, total)))
    assert ticks[-1] == (28, 28)
    assert [r.label for r in found[0].rows][:4] == ["random", "round_robin", "least_batch", "least_tokens"]
    assert found[0].rows[-1].label == "oracle"
    assert min(found[0].rows, key=lambda r: r.excess.mean).label == "oracle"
    summary = summarize_ceilings(PLAN, found)
    jsonschema.validate(summary, ceiling_schema())
    assert summary["ceilings"][0]["answer"] == decide(found[0])
    assert 0 < found[0].fixed < 1
    assert found[0].batch_part > found[0].context_part  # short chats: requests are what counts


def test_one_rank_is_no_question():
    plan = replace(PLAN, pool=Pool(ranks=1), concurrency=8)
    found = ceiling(plan, Budget(candidates=100))
    assert decide(found[0]) == "no"
    assert {round(r.excess.mean, 12) for r in found[0].rows} == {0.0}
    jsonschema.validate(summarize_ceilings(plan, found), ceiling_schema())
