"""Exact batches of vllm bench forward, samples of SGLang's loads, DeepInfer's lines."""

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


def case(name: str, requests: list[dict[str, Any]], us: float) -> dict[str, Any]:
    return {"case": name, "requests": requests, "median_us": us, "ranks": 8}


CASES = [
    case(
        "d", [{"query_len": 1, "kv_len": 8192, "num_draft_tokens": 0, "chunked": False, "count": 32}], 30100.0
    ),
    case(
        "two",
        [
            {"query_len": 3, "kv_len": 100, "num_draft_tokens": 2},
            {"query_len": 3, "kv_len": 300, "num_draft_tokens": 2},
        ],
        9.5,
    ),
    case("p", [{"query_len": 10, "kv_len": 14}], 50.0),
]


@pytest.mark.parametrize("indent", [None, 2])
def test_cases_of_the_bench(tmp_path: Path, indent: int | None) -> None:
    path = write(tmp_path / "b.json", json.dumps(CASES, indent=indent))
    assert detect(path) == "vllm_bench_forward"
    records = one(path)
    assert records.batch.tolist() == [32, 2, 0]
    assert records.context_tokens.tolist() == [32 * 8192, 400, 0]
    assert records.query_tokens.tolist() == [32, 6, 0]
    assert records.context_variance[1] == 100.0**2
    assert np.isnan(records.context_variance[0])  # the bench spreads the lengths unless told not to
    assert records.prefill_tokens.tolist() == [0, 0, 10]
    assert records.prefill_pairs[2] == sum(range(5, 15))
    np.testing.assert_allclose(records.time_s, [0.0301, 9.5e-6, 50e-6])
    assert records.flags.tolist() == [0, 0, Flag.PREFILL]
    assert records.labels["ranks"] == [8]
    assert records.labels["cases"] == ["d", "two", "p"]


def test_a_case_that_is_none(tmp_path: Path) -> None:
    bad = [*CASES, {"case": "x", "requests": [{"query_len": 5, "kv_len": 3}], "median_us": 1}]
    path = write(tmp_path / "b.json", json.dumps(bad))
    with pytest.raises(CalibrationError, match="query_len = 5, kv_len = 3"):
        one(path)
    assert len(one(path, skip_bad=1)) == 3


def sample(second: float, ranks: dict[int, tuple[list[int] | None, int]]) -> str:
    loads = [
        {
            "dp_rank": r,
            "timestamp": 1764417600.0 + second,
            "num_running_reqs": 32,
            "num_used_tokens": 1,
            "num_active_tokens": held,
            "decode_moments": moments,
        }
        for r, (moments, held) in ranks.items()
    ]
    return json.dumps({"timestamp": "2026-11-29T12:00:00", "version": "0.5.23", "loads": loads}) + "\n"


def test_differences_of_samples(tmp_path: Path) -> None:
    # rank 0: 10 steps of 32 requests at 30 ms, then nothing new, then 5 steps at 40 ms; rank 1 starts again
    text = (
        sample(0, {0: ([100, 3000, 1000, 9, 9, 9], 1000), 1: ([50, 500, 500, 9, 9, 9], 10)})
        + sample(1, {0: ([110, 3320, 301000, 9, 9, 9], 2000), 1: ([60, 620, 100500, 9, 9, 9], 20)})
        + sample(2, {0: ([110, 3320, 301000, 9, 9, 9], 2000), 1: ([2, 20, 20000, 9, 9, 9], 5)})
        + sample(3, {0: ([115, 3480, 501000, 9, 9, 9], 3000), 1: ([4, 40, 40000, 9, 9, 9], 7)})
    )
    path = write(tmp_path / "l.jsonl", text)
    assert detect(path) == "sglang_loads"
    records = one(path)
    assert records.rank.tolist() == [0, 1, 0, 1]
    assert records.batch.tolist() == [32, 12, 32, 10]
    np.testing.assert_allclose(records.time_s, [0.03, 0.01, 0.04, 0.01])
    assert records.context_tokens.tolist() == [1500, 15, 2500, 6]
    assert records.steps.tolist() == [10, 10, 5, 2]
    assert all(f & Flag.AVERAGED for f in records.flags.tolist())
    assert dropped(records) == {
        "first sample of a rank: its sums began before": 2,
        "the same snapshot again: the server had not written a new one": 1,
        "the sums fell: the server was started again": 1,
    }


def test_samples_without_moments(tmp_path: Path) -> None:
    path = write(tmp_path / "l", sample(0, {0: (None, 5)}) + sample(1, {0: (None, 5)}))
    with pytest.raises(CalibrationError, match=r"no decode_moments.*include=core"):
        one(path)


def stats(
    step: int, rank: int = 0, *, prompt: bool = False, running: int = 32, width: int = 2, sps: float = 33.0
) -> str:
    tokens = running * width
    return (
        f"RANK {rank}, GPU {rank}, step {step}, [stats] (is_prompt {prompt} | cur_SPS {sps} | avg_SPS 33.1 | "
        f"running {running} | pending 0 | num_batched_tokens {tokens}[50.0%] | KV_cache_usage 41.2% | preempted 0 | "
        f"sum_seqlen_qxk {tokens * 8192} | max_seqlen_k 16384 | min_seqlen_k 512 | attn_TFLOPs 1.0 | moe_lb 1.1)\n"
    )


def test_lines_of_deepinfer(tmp_path: Path) -> None:
    text = "start\n" + "".join(stats(100 * i, r, sps=20.0 + r) for i in range(1, 4) for r in (0, 1))
    path = write(tmp_path / "d.log", text + stats(400, prompt=True))
    assert detect(path) == "deepinfer_log"
    records = one(path)
    assert records.batch.tolist() == [32] * 6 + [0]
    assert records.query_tokens.tolist() == [64] * 6 + [0]
    assert records.context_tokens.tolist() == [32 * 8192] * 6 + [0]
    np.testing.assert_allclose(records.time_s[:2], [1 / 20, 1 / 21])
    assert records.steps.tolist() == [1, 1, 100, 100, 100, 100, 100]
    averaged = int(Flag.AVERAGED)
    assert records.flags.tolist() == [averaged | Flag.FIRST] * 2 + [averaged] * 4 + [averaged | Flag.PREFILL]


@pytest.mark.parametrize("indent", [None, 1])
def test_the_cache_of_deepinfer(tmp_path: Path, indent: int | None) -> None:
    path = write(tmp_path / "c.json", json.dumps([[1, 10.5], [2, 10.75], [4, 11]], indent=indent))
    assert detect(path) == "deepinfer_log"
    with pytest.raises(CalibrationError, match="the cache knows the batch only"):
        one(path)
    records = one(path, without_context=True)
    assert records.batch.tolist() == [1, 2, 4]
    assert records.time_s.tolist() == [0.0105, 0.01075, 0.011]
    assert records.context_tokens.tolist() == [-1] * 3
