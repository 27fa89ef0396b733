"""Local or global numbers: the probe's states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.engines import Probe


def engine(number: int, first: int, ranks: int, understands: str) -> tuple[int, str]:
    """What a node answers to a rank number."""
    low, high = (0, ranks) if understands == "local" else (first, first + ranks)
    if low <= number < high:
        return 200, ""
    return 400, f"data_parallel_rank {number} is out of range [{low}, {high})."


@given(st.integers(0, 60), st.integers(1, 64), st.sampled_from(["local", "global"]))
def test_one_request_tells(first: int, ranks: int, understands: str) -> None:
    probe = Probe(first, ranks)
    number = probe.wanted(0.0)
    if first == 0:
        assert number is None
        assert probe.numbering == "local"
        return
    assert number is not None
    assert probe.wanted(0.0) is None  # one at a time
    assert probe.answered(0.1, *engine(number, first, ranks, understands)) == understands
    assert probe.wanted(1e9) is None  # kept
    probe.lost()
    assert probe.numbering == "unknown"
    assert probe.wanted(0.0) == number


@pytest.mark.parametrize("status", [0, 401, 404, 429, 500, 503])
def test_other_answers_tell_nothing(status: int) -> None:
    probe = Probe(4, 4)
    now = 0.0
    pauses = []
    for _ in range(9):
        assert probe.wanted(now) == 7
        assert probe.answered(now, status, "no such rank") == "unknown"
        assert probe.wanted(now) is None
        start = now
        while probe.wanted(now) is None:
            now += 0.5
        probe.answered(now, 200) if len(pauses) == 8 else probe.answered(now, 0)
        pauses.append(now - start)
        now += 200.0
    assert probe.numbering == "global"
    assert pauses[0] >= 1.0


def test_a_400_about_something_else() -> None:
    probe = Probe(4, 4)
    probe.wanted(0.0)
    assert probe.answered(0.0, 400, "model not found") == "unknown"


def test_an_answer_nobody_asked_for() -> None:
    probe = Probe(4, 4)
    assert probe.answered(0.0, 200) == "unknown"
