"""SGLang's decode lines: all shapes, means over windows, steadiness, alignment of the ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reader_cases import dropped, one, sglang, sglang_prefill, write

from equipoise.calibrate.readers import detect
from equipoise.calibrate.readers.sglang_windows import verify_width
from equipoise.calibrate.records import Flag
from equipoise.errors import CalibrationError

NOISE = "[2026-11-29 11:59:00] server_args=ServerArgs(model_path='x')\nINFO: started\n"


@pytest.mark.parametrize("shape", ["plain", "hybrid", "mamba", "pd"])
@pytest.mark.parametrize("spec", [None, (2.47, 0.82), (2.77, 0.59)])
@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("iterations", [False, True])
def test_every_shape(
    tmp_path: Path, shape: str, spec: tuple[float, float] | None, rank: int | None, iterations: bool
) -> None:
    accepted, rate = spec or (None, None)
    text = NOISE + "".join(
        sglang(
            i * 1.2,
            rank,
            shape=shape,
            tokens=262144 + 1280 * i,
            accepted=accepted,
            rate=rate,
            iteration=40 * i if iterations else None,
        )
        for i in range(5)
    )
    path = write(tmp_path / "s.log", text)
    assert detect(path) == "sglang_log"
    records = one(path)
    assert len(records) == 4
    assert records.batch.tolist() == [32] * 4
    assert records.context_tokens.tolist() == [262144 + 640 + 1280 * i for i in range(4)]
    np.testing.assert_allclose(records.time_s, 0.03, rtol=1e-4)
    width = {None: 1, (2.47, 0.82): 3, (2.77, 0.59): 4}[spec]
    assert records.query_tokens.tolist() == [32 * width] * 4
    assert records.rank.tolist() == [rank or 0] * 4
    assert records.steps.tolist() == [40.0] * 4
    assert all(f & Flag.AVERAGED for f in records.flags.tolist())
    assert records.line.tolist() == [4, 5, 6, 7]
    assert list(dropped(records)) == ["first line of a rank: the beginning of its window is unknown"]


def test_the_first_form_of_the_line(tmp_path: Path) -> None:
    line = (
        "[gpu=0] Decode batch. #running-req: 233, #token: 370959, token usage: 0.82, "
        "gen throughput (token/s): 4594.01, #queue-req: 317\n"
    )
    records = one(write(tmp_path / "s.log", line * 3))
    assert records.batch.tolist() == [233, 233]
    np.testing.assert_allclose(records.time_s, 233 / 4594.01)
    assert np.isnan(records.clock_s).all()


def test_windows_in_which_the_batch_moves_are_dropped(tmp_path: Path) -> None:
    batches = [100, 104, 104, 60, 60, 61, 0, 0, 60]
    path = write(tmp_path / "s.log", "".join(sglang(i, running=b) for i, b in enumerate(batches)))
    records = one(path)
    assert records.batch.tolist() == [102, 104, 60, 60]
    moved = "the number of requests moved by more than 10% in the window"
    assert dropped(records)[moved] == 3
    assert next(d.first for d in records.dropped if d.reason == moved) == f"{path}:4"
    assert dropped(records)["idle heartbeat"] == 1
    # a window that was dropped took place; one that stood still did not
    assert [bool(f & Flag.FIRST) for f in records.flags.tolist()] == [False] * 4


def test_a_window_with_a_prefill_is_mixed(tmp_path: Path) -> None:
    text = sglang(0) + sglang(1) + sglang_prefill(1, sequences=2, tokens=4096) + sglang_prefill(2) + sglang(3)
    records = one(write(tmp_path / "s.log", text + sglang(4)))
    assert records.prefill_requests.tolist() == [0, 3, 0]
    assert records.prefill_tokens.tolist() == [0, 8192, 0]
    assert [bool(f & Flag.MIXED) for f in records.flags.tolist()] == [False, True, False]
    assert np.isnan(records.prefill_pairs).tolist() == [False, True, False]


def test_a_window_with_a_wait_is_flagged(tmp_path: Path) -> None:
    steps = [0.03] * 20 + [0.5] + [0.03] * 20
    records = one(write(tmp_path / "s.log", "".join(sglang(i, step_s=s) for i, s in enumerate(steps))))
    waits = np.flatnonzero(records.flags & Flag.FIRST)
    assert waits.tolist() == [19]
    assert records.time_s[19] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("how", ["one file", "a file a rank", "iterations"])
def test_ranks_are_aligned(tmp_path: Path, how: str) -> None:
    """40 steps of 30 ms: 1.2 s a window; rank 2 is silent in the middle."""
    lines: dict[int, list[str]] = {r: [] for r in range(4)}
    merged = []
    for i in range(30):
        for r in range(4):
            if r == 2 and 10 <= i < 20:
                continue
            count = 1000 + 40 * i if how == "iterations" else None
            text = sglang(i * 1.2, r, running=32 + r, tokens=200000 + i, iteration=count)
            lines[r].append(text)
            merged.append(text)
    if how == "a file a rank":
        records = one([write(tmp_path / f"r{r}.log", "".join(t)) for r, t in lines.items()])
    else:
        records = one(write(tmp_path / "s.log", "".join(merged)))
    assert records.instance.max() == 0
    starts = records.step_starts()
    assert len(starts) - 1 == 29
    sizes = np.diff(starts)
    assert sizes.tolist() == [4] * 9 + [3] * 10 + [4] * 10
    assert np.unique(records.rank).tolist() == [0, 1, 2, 3]
    what = "iteration number" if how == "iterations" else "time stamps"
    assert any(what in n for n in records.notes)


def test_files_with_the_same_ranks_at_the_same_time_are_instances(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{k}.log", "".join(sglang(i, 0) for i in range(5))) for k in "ab"]
    later = write(tmp_path / "c.log", "".join(sglang(100 + i, 0) for i in range(5)))
    records = one([*paths, later])
    assert np.bincount(records.instance).tolist() == [8 + 1, 4]
    assert any("2 instances" in n for n in records.notes)


def test_another_interval_is_noticed(tmp_path: Path) -> None:
    text = "".join(sglang(3 * i) for i in range(30))  # 3 s apart, 30 ms a step: 100 steps
    path = write(tmp_path / "s.log", text)
    assert any("100 mean steps apart" in n for n in one(path).notes)
    records = one(path, decode_log_interval=100)
    assert not any("mean steps apart" in n for n in records.notes)
    assert records.steps[0] == 100


def test_a_line_of_another_shape_is_named(tmp_path: Path) -> None:
    text = sglang(0) + sglang(1) + "[2026-11-29 12:00:02] Decode batch, #running-req: many\n" + sglang(3)
    path = write(tmp_path / "s.log", text)
    with pytest.raises(CalibrationError, match=r"s\.log:3: .*another shape"):
        one(path)
    assert len(one(path, skip_bad=1)) == 2


@pytest.mark.parametrize(
    ("accepted", "rate", "width"),
    [
        ([2.47, 2.2], [0.82, 0.73], 3),
        ([2.77, 3.1], [0.69, 0.78], 4),
        ([2.77, 3.1], [0.59, 0.70], 4),
        ([2.7, 3.1], [0.1, 0.9], None),
    ],
)
def test_verify_width(accepted: list[float], rate: list[float], width: int | None) -> None:
    assert verify_width(np.array(accepted), np.array(rate)) == width
