"""TensorRT-LLM: statistics records of every shape, and the log with its shifted device times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reader_cases import dropped, one, write

from equipoise.calibrate.readers import detect
from equipoise.calibrate.records import Flag
from equipoise.errors import CalibrationError


def record(
    step: int, rank: int = 0, *, batch: int = 32, context: int | None = 262144, **more: Any
) -> dict[str, Any]:
    stats = {
        "numScheduledRequests": batch,
        "numContextRequests": 0,
        "numGenRequests": batch,
        "numPausedRequests": 0,
        "numCtxTokens": 0,
        "numCtxKvTokens": 0,
        "avgNumDecodedTokensPerIter": 1.0,
    }
    if context is not None:
        stats["numGenKvTokens"] = context
    stats.update({k: more.pop(k) for k in list(more) if k in stats})
    return {
        "timestamp": f"11-29-2026 12:00:{step % 60:02d}.250000",
        "iter": step,
        "iterLatencyMS": 60.2,
        "numActiveRequests": batch,
        "kvCacheStats": {"usedNumBlocks": 5000, "maxNumBlocks": 9000, "tokensPerBlock": 64},
        "inflightBatchingStats": stats,
        "attentionDpRank": rank,
    } | more


RECORDS = [record(i, r, batch=30 + r) for i in range(4) for r in (0, 1)]


def test_ranks_that_write_their_own_records(tmp_path: Path) -> None:
    """With TLLM_METRICS_ALL_RANKS every rank calls itself attentionDpRank 0, and `rank` tells them apart."""
    own = [record(i, 0, batch=30 + r) | {"rank": r} for i in range(4) for r in (0, 1)]
    records = one(write(tmp_path / "m.json", json.dumps(own)))
    assert records.rank.tolist() == [0, 1] * 4
    assert records.batch.tolist() == [30, 31] * 4


@pytest.mark.parametrize("shape", ["list", "pretty list", "records", "lists"])
def test_every_shape_of_the_recording(tmp_path: Path, shape: str) -> None:
    text = {
        "list": json.dumps(RECORDS),
        "pretty list": json.dumps(RECORDS, indent=1),
        "records": "".join(json.dumps(r) + "\n" for r in RECORDS),
        "lists": json.dumps(RECORDS[:5]) + "\n[]\n" + json.dumps(RECORDS[5:]) + "\n",
    }[shape]
    path = write(tmp_path / "m.json", text)
    assert detect(path) == "trtllm_metrics"
    records = one(path)
    assert records.step.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert records.rank.tolist() == [0, 1] * 4
    assert records.batch.tolist() == [30, 31] * 4
    assert records.context_tokens.tolist() == [262144] * 8
    assert records.time_s.tolist() == pytest.approx([0.0602] * 8)
    assert records.flags.tolist() == [Flag.FIRST] * 2 + [0] * 6
    assert any("iterLatencyMS" in n for n in records.notes)
    assert np.diff(records.clock_s[::2]).tolist() == [1, 1, 1]


def test_the_time_of_the_host_loop_is_better(tmp_path: Path) -> None:
    text = "".join(json.dumps(record(i, hostStepTimeMS=30.1)) + "\n" for i in range(3))
    assert one(write(tmp_path / "m", text)).time_s.tolist() == pytest.approx([0.0301] * 3)


def test_prefill_and_older_records(tmp_path: Path) -> None:
    mixed = record(1, numContextRequests=1, numCtxTokens=100, numCtxKvTokens=50)
    records = one(write(tmp_path / "m", json.dumps([record(0), mixed])))
    assert records.prefill_pairs[1] == sum(range(51, 151))
    assert records.flags[1] == Flag.MIXED
    older = one(write(tmp_path / "o", json.dumps([record(0, context=None)])))
    assert older.context_tokens.tolist() == [5000 * 64]
    assert any("shared prefixes" in n for n in older.notes)
    none = write(tmp_path / "n", json.dumps([record(0, context=None, kvCacheStats={})]))
    with pytest.raises(CalibrationError, match="a log without context lengths"):
        one(none)


def test_a_record_that_is_none_is_named(tmp_path: Path) -> None:
    text = json.dumps(record(1)) + '\n{"iter": 2}\n' + json.dumps(record(3)) + "\n"
    path = write(tmp_path / "m", text)
    with pytest.raises(
        CalibrationError, match=r"m:2: the record is none \(there is no inflightBatchingStats\)"
    ):
        one(path)
    assert one(path, skip_bad=1).step.tolist() == [1, 3]


def line(
    step: int,
    rank: int = 0,
    *,
    scheduled: int = 32,
    device: float | None = 30.1,
    host: float = 30.4,
    cached: int | None = 262144,
    old: bool = False,
    prompts: int = 0,
) -> str:
    time = "N/A" if device is None else f"{device}ms"
    states = {"num_ctx_requests": prompts, "num_ctx_tokens": 100 * prompts, "num_generation_tokens": 32}
    if cached is not None and old:
        states["cached_kv_tokens"] = cached
    before = "" if old else f"num_scheduled_requests = {scheduled}, kv_cache_util = 0.41, "
    after = f"num_scheduled_requests: {scheduled}, " if old else ""
    after += f"cached_kv_len = {cached}, " if cached is not None and not old else ""
    return (
        f"[TRT-LLM] [I] [_torch][RANK {rank}] iter = {step}, global_rank = {rank}, rank = {rank}, {before}"
        f"currank_total_requests = 0/32, host_step_time = {host}ms, prev_device_step_time = {time}, "
        f"timestamp = 11-29-2026 12:00:05, {after}states = {states}\n"
    )


@pytest.mark.parametrize("old", [False, True])
def test_device_times_belong_to_the_iteration_before(tmp_path: Path, old: bool) -> None:
    text = "noise\n" + "".join(line(i, device=None if i == 0 else 30.0 + i - 1, old=old) for i in range(5))
    path = write(tmp_path / "t.log", text)
    assert detect(path) == "trtllm_log"
    records = one(path)
    assert records.step.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(records.time_s, [0.030, 0.031, 0.032, 0.033])
    assert records.batch.tolist() == [32] * 4
    assert records.context_tokens.tolist() == [262144] * 4
    assert dropped(records) == {"the device time of the iteration stands in a line that is missing": 1}


def test_a_gap_in_the_log_and_an_empty_iteration(tmp_path: Path) -> None:
    steps = [1, 2, 5, 6, 7, 8]
    times = [
        30.0,
        31.0,
        99.0,
        32.0,
        1456.7,
        33.0,
    ]  # the wait of the empty iteration 6 stands in the line of 7
    text = "".join(
        line(i, device=t, scheduled=0 if i == 6 else 32) for i, t in zip(steps, times, strict=True)
    )
    records = one(write(tmp_path / "t.log", text))
    assert records.step.tolist() == [1, 5, 7]
    np.testing.assert_allclose(records.time_s, [0.031, 0.032, 0.033])
    assert records.flags.tolist() == [Flag.FIRST] * 3
    assert dropped(records) == {
        "the device time of the iteration stands in a line that is missing": 2,
        "empty iteration: its device time is a wait": 1,
    }


def test_a_rank_without_work_in_a_step_of_others_is_idle(tmp_path: Path) -> None:
    text = "".join(line(i, r, scheduled=0 if (i, r) == (2, 1) else 32) for i in range(5) for r in (0, 1))
    records = one(write(tmp_path / "t.log", text))
    idle = (records.flags & Flag.IDLE) > 0
    assert list(zip(records.step[idle].tolist(), records.rank[idle].tolist(), strict=True)) == [(2, 1)]


def test_lines_without_device_times_or_contexts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.log", "".join(line(i, device=None, cached=None) for i in range(3)))
    with pytest.raises(
        CalibrationError, match=r"t\.log:1: a log without context lengths.*--kv-capacity-tokens"
    ):
        one(path)
    records = one(path, kv_capacity_tokens=1000)
    assert records.context_tokens.tolist() == [410] * 3
    assert records.time_s.tolist() == pytest.approx([0.0304] * 3)
    assert one(path, without_context=True).context_tokens.tolist() == [-1] * 3
    mixed = one(write(tmp_path / "p.log", line(0) + line(1, prompts=2) + line(2)))
    assert mixed.batch.tolist() == [32, 30]
    assert mixed.flags.tolist() == [Flag.FIRST, Flag.MIXED]
