"""Looks at engines become reports of the router's ranks."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.engines import EngineInstance, Observation, RankLoad, rank_reports
from equipoise.errors import EngineError


def look(*ranks: int, **more: Any) -> Observation:
    return Observation("vllm", tuple(RankLoad(r, running=10 + r, waiting=0, **more) for r in ranks))


def header(**more: Any) -> EngineInstance:
    return EngineInstance("i", "vllm", ("http://a:1",), ranks=4, **more)


PORTS = EngineInstance("i", "vllm", ("http://a:1", "http://a:2"), ranks=2, mode="port")


@pytest.mark.parametrize(
    ("instance", "seen", "expected"),
    [
        (header(), [look(0, 1, 2, 3)], {0: 10, 1: 11, 2: 12, 3: 13}),
        (header(), [look(1, 3)], {1: 11, 3: 13}),
        (header(), [look()], {}),
        (header(first_rank=4), [look(4, 5, 6, 7)], {0: 14, 1: 15, 2: 16, 3: 17}),
        (header(first_rank=4), [look(0, 1, 2, 3)], {0: 10, 1: 11, 2: 12, 3: 13}),
        (PORTS, [look(0), look(0)], {0: 10, 1: 10}),
        (PORTS, [look(4), look(5)], {0: 14, 1: 15}),
        (PORTS, [look(0), look()], {0: 10}),
    ],
)
def test_numbers(instance: EngineInstance, seen: list[Observation], expected: dict[int, int]) -> None:
    reports = rank_reports(instance, 3, seen, 100.0)
    assert {r.rank: r.running for r in reports} == expected
    assert all(r.instance == 3 and r.taken_at_s == 100.0 for r in reports)


@pytest.mark.parametrize(
    ("instance", "seen"),
    [
        (header(), [look(0, 4)]),
        (header(first_rank=4), [look(4, 8)]),
        (PORTS, [look(0, 1), look(0)]),
    ],
)
def test_ranks_that_are_not_there(instance: EngineInstance, seen: list[Observation]) -> None:
    with pytest.raises(EngineError, match=r"ranks?"):
        rank_reports(instance, 0, seen, 0.0)


def test_only_the_workers_own_ranks_and_ages() -> None:
    instance = EngineInstance("i", "dynamo", ("http://a:1",), ranks=4, worker_id="7")
    loads = (RankLoad(0, 1, 0, worker_id="7", age_s=0.5), RankLoad(0, 2, 0, worker_id="8"), RankLoad(1, 3, 0))
    reports = rank_reports(instance, 0, [Observation("dynamo", loads)], 10.0)
    assert [(r.rank, r.running, r.taken_at_s) for r in reports] == [(0, 1, 9.5), (1, 3, 10.0)]
