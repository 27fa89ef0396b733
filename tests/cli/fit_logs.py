"""Step logs of known prices, in the format of ForwardPassMetrics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from equipoise.calibrate import plant
from equipoise.cost import StepCost, Term

TRUTH = StepCost("truth", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")
"""A request is worth 25,000 tokens of context."""

PREFILL = (5000.0, 0.4, 30.0)
"""Constant, per token, per 100k pairs, in microseconds."""


def write_fpm(
    path: Path, *, steps: int = 400, ranks: int = 8, prefills: int = 0, noise: float = 0.02
) -> Path:
    """Write a log of decode steps, then of prefill steps."""
    records = plant(TRUTH, steps=steps, ranks=ranks, noise=noise, context_sigma=1.2, seed=3)
    lines = []
    for i in range(len(records)):
        decode = {
            "num_decode_requests": int(records.batch[i]),
            "sum_decode_kv_tokens": int(records.context_tokens[i]),
            "var_decode_kv_tokens": float(records.context_variance[i]),
        }
        lines.append(
            _line(
                int(records.rank[i]),
                int(records.step[i]),
                records.time_s[i],
                records.clock_s[i],
                decode=decode,
            )
        )
    rng = np.random.default_rng(5)
    clock = float(records.clock_s[-1])
    constant, per_token, per_100k = PREFILL
    for k in range(prefills):
        tokens = rng.integers(200, 8000, ranks)
        cached = rng.integers(0, 60_000, ranks)
        pairs = tokens * cached + tokens * (tokens + 1) / 2
        wall = (constant + (per_token * tokens + per_100k * pairs / 1e5).max()) * 1e-6
        wall *= 1 + noise * rng.standard_normal()
        clock += wall
        for rank in range(ranks):
            prefill = {
                "num_prefill_requests": 1,
                "sum_prefill_tokens": int(tokens[rank]),
                "sum_prefill_kv_tokens": int(cached[rank]),
            }
            lines.append(_line(rank, steps + k, wall, clock, prefill=prefill))
    path.write_text("\n".join(lines) + "\n")
    return path


def _line(
    rank: int,
    step: int,
    wall_s: float,
    clock_s: float,
    decode: dict[str, float] | None = None,
    prefill: dict[str, float] | None = None,
) -> str:
    scheduled = {
        "num_prefill_requests": 0,
        "sum_prefill_tokens": 0,
        "var_prefill_length": 0.0,
        "sum_prefill_kv_tokens": 0,
        "num_decode_requests": 0,
        "sum_decode_kv_tokens": 0,
        "var_decode_kv_tokens": 0.0,
        **(decode or {}),
        **(prefill or {}),
    }
    metrics = {
        "version": 1,
        "worker_id": "w0",
        "dp_rank": rank,
        "counter_id": step,
        "wall_time": float(wall_s),
        "scheduled_requests": scheduled,
        "queued_requests": {},
    }
    return json.dumps({"received_at_ns": int((1_764_400_000 + float(clock_s)) * 1e9), "metrics": metrics})


TABLE_HEAD = "system,framework,model,op_name,batch_size,context_len,latency_ms\n"


def write_table(path: Path, prices: dict[str, tuple[float, float, float]]) -> Path:
    """Write a measured table: per layer class constant, per request and per 100k context, in microseconds."""
    lines = []
    for layer, (constant, request, context) in prices.items():
        for batch in (1, 2, 4, 8, 16, 32, 64, 128):
            for length in (1024, 4096, 16384, 65536):
                us = constant + request * batch + context * batch * length / 1e5
                lines.append(f"h200_sxm,VLLM,zai-org/GLM-5,{layer},{batch},{length},{us / 1e3}")
    path.write_text(TABLE_HEAD + "\n".join(lines) + "\n")
    return path
