"""A window of time becomes a plan of steps, and a second run keeps exactly these."""

from __future__ import annotations

import fleet_runs as runs
import numpy as np
import pytest

from equipoise.errors import InputError
from equipoise.fleet import window as windows
from equipoise.fleet import window_plan
from equipoise.replay.layout import ENDED, SERIES


@pytest.mark.parametrize(
    ("first_s", "last_s"), [(0.2, 0.3), (0.0, 0.05), (0.3001, 0.3001 + 1e-2), (0.5, 99.0)]
)
def test_a_second_run_keeps_the_steps_of_the_window(first_s: float, last_s: float) -> None:
    result = runs.known("stormy")
    plan = window_plan(result, first_s, last_s)
    again = runs.run(runs.DEPLOYMENTS["stormy"], snapshots=plan)
    assert again.outcome.totals.tolist() == result.outcome.totals.tolist()
    kept = again.snapshots
    starts = result.series[:, SERIES.START_S]
    inside = np.flatnonzero((starts >= first_s) & (starts < last_s))
    assert len(inside) > 0
    assert kept.step.tolist() == inside.tolist()
    assert kept.start_s.tolist() == starts[inside].tolist()


def test_the_begin_is_inside_and_the_end_is_not() -> None:
    starts = runs.known("plain").series[:, SERIES.START_S]
    plan = window_plan(runs.known("plain"), float(starts[10]), float(starts[20]))
    assert (plan.first, plan.count) == (10, 10)


def test_merged_rows_make_the_window_wider_and_never_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = runs.known("plain")
    monkeypatch.setattr("equipoise.fleet.engine.SERIES_ROWS", 16)
    merged = runs.run(runs.DEPLOYMENTS["plain"])
    several = int(merged.outcome.ended[ENDED.SERIES_STEPS])
    assert several > 1
    for first_s, last_s in np.random.default_rng(0).uniform(0.0, 0.7, (50, 2)):
        low, high = min(first_s, last_s), max(first_s, last_s) + 0.02
        wanted, found = window_plan(exact, low, high), window_plan(merged, low, high)
        assert found.first <= wanted.first
        assert found.first + found.count >= wanted.first + wanted.count
        assert found.count <= wanted.count + 3 * several


@pytest.mark.parametrize(
    ("first_s", "last_s", "says"),
    [
        (1.0, 1.0, "its end must be after its beginning"),
        (2.0, 1.0, "its end must be after its beginning"),
        (float("nan"), 1.0, "its end must be after its beginning"),
        (1e6, 2e6, "no step starts"),
        (-2.0, -1.0, "no step starts"),
    ],
)
def test_windows_that_are_none(first_s: float, last_s: float, says: str) -> None:
    with pytest.raises(InputError, match=says):
        window_plan(runs.known("plain"), first_s, last_s)


def test_a_window_of_too_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_CELLS", 40)
    with pytest.raises(InputError, match="up to 10 steps"):
        window_plan(runs.known("plain"), 0.0, 1.0)
