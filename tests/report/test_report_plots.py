"""The PNG plots: right size, not blank, the same every time, and the user's matplotlib left alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_comparisons as small

from equipoise.cost import load
from equipoise.report.plots import write_plots
from equipoise.study import Comparison

matplotlib = pytest.importorskip("matplotlib")


def pixels(path: Path) -> np.ndarray:
    from matplotlib import image

    return np.asarray(image.imread(path))[:, :, :3]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("usual", ["excess", "z_curve", "balance_over_time", "ranks"]),
        ("brief", ["excess", "balance_over_time", "ranks"]),
        ("grouped", ["excess", "balance_over_time", "ranks", "groups"]),
    ],
)
def test_pictures(name: str, expected: list[str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    written = write_plots(request.getfixturevalue(name), tmp_path)
    assert [p.stem for p in written] == expected
    for path in written:
        picture = pixels(path)
        assert picture.shape == (1800, 3200, 3)
        ink = (picture < 0.9).any(axis=2)
        assert 0.003 < ink.mean() < 0.9
        border = np.concatenate(
            [ink[:12].ravel(), ink[-12:].ravel(), ink[:, :12].ravel(), ink[:, -12:].ravel()]
        )
        assert not border.any(), "something is cut off at the edge"


def test_bars_are_in_the_colours_of_their_families(usual: Comparison, tmp_path: Path) -> None:
    from equipoise.report.palette import NAMED

    write_plots(usual, tmp_path)
    seen = {
        tuple(c) for c in np.round(pixels(tmp_path / "excess.png")[::3, ::3].reshape(-1, 3) * 255).astype(int)
    }
    for name in {c.policy.name for c in usual.cells}:
        colour = NAMED[name][0]
        assert tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) in seen


def test_the_same_bytes_and_nothing_left_behind(single: Comparison, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        write_plots(single, folder)
        matplotlib.rcParams["axes.facecolor"] = "black"  # a user's taste must not change the second
    matplotlib.rcParams["axes.facecolor"] = before["axes.facecolor"]
    assert dict(matplotlib.rcParams) == before
    names = [p.name for p in sorted(folders[0].iterdir())]
    assert all((folders[0] / n).read_bytes() == (folders[1] / n).read_bytes() for n in names)


def test_names_with_dollars_and_several_traces(tmp_path: Path) -> None:
    traces = [small.trace_file(tmp_path, name) for name in ("a$b$.csv", "plain.csv")]
    cost = replace(load("v1"), name=r"$\frac{v}$ <1>")
    comparison = small.run(traces=traces, costs=[cost], requests=40, concurrency=8, seeds=2)
    names = [p.name for p in write_plots(comparison, tmp_path)]
    assert "excess.png" in names
    assert "excess-2.png" in names


def test_no_pyplot_and_no_library_before_it_is_needed() -> None:
    code = (
        "import sys, equipoise.report\n"
        "heavy = {'matplotlib', 'plotly', 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from equipoise.report.plot_style import sheet, style\n"
        "with style():\n"
        "    sheet('a', 'b')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
