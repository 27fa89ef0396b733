"""vLLM's iteration lines: both shapes, contexts from the use of the cache, idle ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reader_cases import dropped, one, vllm, write

from equipoise.calibrate.readers import detect
from equipoise.calibrate.records import Flag
from equipoise.errors import CalibrationError


def test_the_line_of_the_server(tmp_path: Path) -> None:
    text = (
        "INFO: starting\n"
        + vllm(41)
        + vllm(42, queries=64)
        + vllm(43, prompts=3, prompt_tokens=6144, batch=0)
    )
    path = write(tmp_path / "v.log", text)
    assert detect(path) == "vllm_log"
    records = one(path, kv_capacity_tokens=1_000_000)
    assert records.step.tolist() == [41, 42, 43]
    assert records.batch.tolist() == [32, 32, 0]
    assert records.query_tokens.tolist() == [32, 64, 0]
    assert records.context_tokens.tolist() == [412000, 412000, 0]
    assert records.prefill_requests.tolist() == [0, 0, 3]
    assert records.prefill_tokens.tolist() == [0, 0, 6144]
    assert records.time_s.tolist() == pytest.approx([0.0301] * 3)
    assert records.flags.tolist() == [Flag.FIRST, 0, Flag.PREFILL]
    assert records.line.tolist() == [2, 3, 4]
    assert records.time_is == "step"


def test_the_line_of_the_engine_has_no_contexts(tmp_path: Path) -> None:
    path = write(tmp_path / "v.log", vllm(1, usage=None) + vllm(2, usage=None))
    for options in ({}, {"kv_capacity_tokens": 10**6}):
        with pytest.raises(CalibrationError, match=r"v\.log:1: a log without context lengths: this version"):
            one(path, **options)
    records = one(path, without_context=True)
    assert records.context_tokens.tolist() == [-1, -1]
    assert any("Context lengths are unknown" in n for n in records.notes)


def test_percent_needs_the_capacity(tmp_path: Path) -> None:
    path = write(tmp_path / "v.log", vllm(1) + vllm(2))
    with pytest.raises(
        CalibrationError, match=r"only in percent; give the tokens that fit.*--kv-capacity-tokens"
    ):
        one(path)
    told = write(
        tmp_path / "w.log", "INFO [kv_cache_utils.py:1] GPU KV cache size: 2,000,000 tokens\n" + vllm(1)
    )
    assert one(told).context_tokens.tolist() == [824000]
    assert one(told, kv_capacity_tokens=1000).context_tokens.tolist() == [412]


@pytest.mark.parametrize("usage", [41.2, None])
def test_a_missing_index_is_an_idle_rank(tmp_path: Path, usage: float | None) -> None:
    there = {0: [1, 2, 3, 4, 5, 6], 1: [2, 3, 6], 2: [1]}
    text = "".join(
        vllm(i, r, usage=usage, ms=30 + i) for i in range(1, 7) for r in (0, 1, 2) if i in there[r]
    )
    records = one(write(tmp_path / "v.log", text), kv_capacity_tokens=10**6, without_context=True)
    idle = (records.flags & Flag.IDLE) > 0
    found = list(zip(records.step[idle].tolist(), records.rank[idle].tolist(), strict=True))
    assert found == [(1, 1), (4, 1), (5, 1)]
    np.testing.assert_allclose(records.time_s, (30 + records.step) / 1e3)
    assert (records.context_tokens[idle] == 0).all()
    assert (records.line[idle] == 0).all()
    one_rank = records.rank == 1
    assert [bool(f & Flag.FIRST) for f in records.flags[one_rank].tolist()] == [0, 1, 0, 0, 0, 1]
    assert any(n.startswith("Rank 2 has no rows from step 2 on") for n in records.notes)
    assert any("3 steps that 1 ranks did not print" in n for n in records.notes)


def test_dummy_lines_are_idle(tmp_path: Path) -> None:
    text = "".join(vllm(i, 0) + vllm(i, 1, dummy=True, batch=1) for i in range(3))
    records = one(write(tmp_path / "v.log", text), kv_capacity_tokens=10**6)
    assert (records.batch[records.rank == 1] == 0).all()
    assert ((records.flags[records.rank == 1] & Flag.IDLE) > 0).all()


def test_one_file_a_rank(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{r}.log", "".join(vllm(i, r) for i in range(9))) for r in range(3)]
    records = one(paths, kv_capacity_tokens=10**6)
    assert records.instance.max() == 0
    assert len(records.step_starts()) == 10
    again = one(
        [*paths, write(tmp_path / "b.log", "".join(vllm(i, 0) for i in range(9)))], kv_capacity_tokens=9
    )
    assert np.bincount(again.instance).tolist() == [27, 9]


def test_steps_twice_and_times_that_are_none(tmp_path: Path) -> None:
    text = vllm(1) + vllm(2, ms=-3.0) + vllm(2, ms=4.0) + vllm(3, ms="nan") + vllm(4)
    records = one(write(tmp_path / "v.log", text), kv_capacity_tokens=10**6)
    assert records.step.tolist() == [1, 4]
    assert sum(dropped(records).values()) == 3


def test_ids_that_lie_anywhere_do_not_fill_the_memory(tmp_path: Path) -> None:
    text = "".join(vllm(i * 10**9, i) for i in range(300))
    records = one(write(tmp_path / "v.log", text), kv_capacity_tokens=10**6)
    assert len(records) == 300
    assert any("idle ranks are left out" in n for n in records.notes)


def test_a_line_of_another_shape_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "v.log", vllm(1) + vllm(2).replace("context tokens", "tokens") + vllm(3))
    with pytest.raises(CalibrationError, match=r"v\.log:2: .*another shape"):
        one(path, kv_capacity_tokens=10**6)
    assert one(path, kv_capacity_tokens=10**6, skip_bad=1).step.tolist() == [1, 3]
