"""What is put together for the eye, against what was planted or can be counted another way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from equipoise.policies import parse
from equipoise.replay import SnapshotPlan
from equipoise.replay.layout import SERIES
from equipoise.report.over_time import over_time
from equipoise.report.palette import NAMED, Palette
from equipoise.report.ranks import rank_map
from equipoise.report.views import cheapest, finalists, most_even, optima_words, scenes, sweeps, tied
from equipoise.study import Cell, Comparison, rerun


def planted(cell: Cell, policy: str, excess: float, context: float = 1.5) -> Cell:
    """A cell whose runs have this excess, give or take a hair a seed, and this max/mean of C."""
    runs = tuple(replace(r, excess=excess + 1e-9 * r.seed, max_over_mean_context=context) for r in cell.runs)
    return replace(cell, policy=parse(policy), runs=runs)


def test_the_cheapest_and_the_most_even_are_found_where_they_were_put(usual: Comparison) -> None:
    cell = usual.cells[0]
    cells = [
        planted(cell, "dualpath,z=1.3", 0.04, 1.4),
        planted(cell, "dualpath,z=1.0", 0.09, 1.2),
        planted(cell, "least_batch", 0.01, 1.0),
        planted(cell, "dualpath,z=1.1", 0.05, 1.1),
        planted(cell, "dualpath,z=1.2", 0.03, 1.3),
    ]
    (sweep,) = sweeps(cells)
    assert (sweep.policy, sweep.parameter, sweep.fixed) == ("dualpath", "z", "")
    assert sweep.values == [1.0, 1.1, 1.2, 1.3]
    assert cheapest(sweep)[0] == 1.2
    assert most_even(sweep)[0] == 1.1
    assert optima_words([sweep]) == "Cheapest z: 1.2 under v1; most even tokens: 1.1"


def test_a_sweep_holds_everything_else_fixed(usual: Comparison) -> None:
    cell = usual.cells[0]
    texts = [f"length_split,percentile={p},swapped={s}" for s in ("true", "false") for p in (50, 80, 95)]
    found = sweeps([planted(cell, t, 0.1) for t in texts])
    assert [s.parameter for s in found] == ["percentile", "percentile"]
    assert {s.fixed for s in found} == {"window=1000, swapped=true", "window=1000, swapped=false"} or all(
        "swapped=" in s.fixed for s in found
    )
    for s in found:
        assert len({c.policy.params["swapped"] for c in s.cells}) == 1


def test_scenes_hold_every_setting_once(grouped: Comparison, usual: Comparison) -> None:
    for comparison in (grouped, usual):
        settings = [s for scene in scenes(comparison) for s in scene.settings]
        assert sorted(map(id, settings)) == sorted(map(id, comparison.settings()))
    assert len(scenes(usual)) == 1
    assert len(scenes(grouped)) == 5


def test_finalists_hold_the_baseline_the_best_and_every_family(usual: Comparison) -> None:
    for setting in usual.settings():
        chosen = finalists(usual, setting)
        assert usual.best(setting) in chosen
        assert usual.baseline(setting) in chosen
        assert {c.policy.name for c in chosen} == {c.policy.name for c in usual.of(setting)}
        assert len(finalists(usual, setting, most=3)) == 3


def test_tied_is_what_the_difference_says(usual: Comparison) -> None:
    for setting in usual.settings():
        best = usual.best(setting)
        assert not tied(usual, best)
        for cell in usual.of(setting):
            if cell is not best:
                assert tied(usual, cell) == usual.difference(cell, best).excess.covers_zero


@pytest.mark.parametrize("points", [7, 400, 100_000])
def test_thinning_keeps_the_weighted_mean_and_the_bound(usual: Comparison, points: int) -> None:
    result = usual.cells[1].runs[0].result
    assert result is not None
    line = over_time(result, points)
    rows = result.series
    rows = rows[rows[:, SERIES.STEPS] > 0]
    assert len(line.time_s) == min(points, len(rows))
    assert (np.diff(line.time_s) > 0).all()
    # least_tokens: every point lies between the extremes of the steps it stands for
    steps = rows[:, SERIES.MAX_CONTEXT] / rows[:, SERIES.MEAN_CONTEXT]
    at = np.searchsorted(rows[:, SERIES.START_S], line.time_s)
    for i, low in enumerate(at):
        high = at[i + 1] if i + 1 < len(at) else len(rows)
        assert steps[low:high].min() - 1e-12 <= line.context[i] <= steps[low:high].max() + 1e-12


def test_rank_maps_have_mean_one_and_the_balance_of_the_run(usual: Comparison) -> None:
    for cell in usual.of(usual.settings()[0])[:2]:
        shown = rank_map(usual, cell, "baseline")
        assert shown.relative.shape == (8, len(shown.start_s))
        assert np.allclose(shown.relative.mean(axis=0), 1.0)
        first, last = cell.runs[0].counted_s
        assert (shown.start_s >= first).all()
        assert (shown.start_s < last).all()
        # v1 has no constant, so own work over the largest is what is not bubble, step by step
        busy = float(np.mean(1.0 / shown.relative.max(axis=0)))
        assert busy == pytest.approx(1.0 - cell.runs[0].bubble_share, abs=0.02)


def test_rank_maps_of_many_instances_show_the_first(grouped: Comparison) -> None:
    cell = grouped.cells[0]
    shown = rank_map(grouped, cell, "baseline", columns=50)
    assert shown.relative.shape[0] == 4
    assert 25 <= shown.relative.shape[1] <= 50
    assert (np.diff(shown.start_s) > 0).all()
    every = rerun(grouped.plan, cell, SnapshotPlan(cell.runs[0].steps)).snapshots
    assert np.isin(shown.start_s, every.start_s[every.instance == 0]).all()


MACHADO = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def lab(colour: str, sight: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of an sRGB colour as seen with a kind of sight."""
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(sight @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", MACHADO)
@pytest.mark.parametrize("dark", [False, True])
def test_named_families_stay_apart_for_every_kind_of_sight(sight: str, dark: bool) -> None:
    colours = [lab(pair[dark], MACHADO[sight]) for pair in NAMED.values()]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(colours) for b in colours[:i]]
    assert min(apart) >= 18


def test_a_colour_does_not_depend_on_what_else_is_compared() -> None:
    few, many = Palette.of(["dualpath"]), Palette.of(["mine", "least_batch", "dualpath"])
    assert few.light("dualpath") == many.light("dualpath")
    assert len(Palette.of([f"policy{i}" for i in range(40)]).colours) == 40
