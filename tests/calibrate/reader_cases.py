"""Small step logs in the formats' own words, for the reader tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from equipoise.calibrate.readers import read
from equipoise.calibrate.records import StepRecords


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def one(paths: Any, **options: Any) -> StepRecords:
    """The single table of a log."""
    (records,) = read(paths, **options)
    return records


def dropped(records: StepRecords) -> dict[str, int]:
    return {d.reason: d.rows for d in records.dropped}


def fpm(
    counter: int,
    rank: int = 0,
    *,
    batch: int = 8,
    context: int = 8000,
    wall: float = 0.03,
    worker: str = "w0",
    at_s: float | None = None,
    **scheduled: float,
) -> str:
    """One ForwardPassMetrics line, as the recorder writes it if there is a time of receipt."""
    metrics = {
        "version": 1,
        "worker_id": worker,
        "dp_rank": rank,
        "counter_id": counter,
        "wall_time": wall,
        "scheduled_requests": {
            "num_prefill_requests": 0,
            "sum_prefill_tokens": 0,
            "var_prefill_length": 0.0,
            "sum_prefill_kv_tokens": 0,
            "num_decode_requests": batch,
            "sum_decode_kv_tokens": context,
            "var_decode_kv_tokens": 100.0 if batch > 1 else 0.0,
            **scheduled,
        },
        "queued_requests": {
            "num_prefill_requests": 0,
            "sum_prefill_tokens": 0,
            "var_prefill_length": 0.0,
            "num_decode_requests": 0,
            "sum_decode_kv_tokens": 0,
            "var_decode_kv_tokens": 0.0,
        },
    }
    if at_s is None:
        return json.dumps(metrics) + "\n"
    return json.dumps({"received_at_ns": 1764400000_000000000 + round(at_s * 1e9), "metrics": metrics}) + "\n"


def sglang(
    second: float,
    rank: int | None = None,
    *,
    running: int = 32,
    tokens: int = 262144,
    step_s: float = 0.03,
    shape: str = "plain",
    accepted: float | None = None,
    rate: float | None = None,
    iteration: int | None = None,
) -> str:
    """One decode line; the throughput is that of steps of ``step_s``."""
    minute, rest = divmod(int(second), 60)
    where = "" if rank is None else f" DP{rank} TP{rank} EP{rank}"
    count = "" if iteration is None else f" [{iteration}]"
    held = {
        "plain": f"#token: {tokens}, token usage: 0.41, ",
        "hybrid": f"#full token: {tokens}, full token usage: 0.41, #swa token: 4096, swa token usage: 0.02, ",
        "mamba": f"#full token: {tokens}, full token usage: 0.49, mamba num: 12, mamba usage: 0.67, ",
        "pd": f"#token: {tokens}, token usage: 0.41, ",
    }[shape]
    spec = "" if accepted is None else f"accept len: {accepted:.2f}, accept rate: {rate:.2f}, "
    pd = (
        "pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 1, #retracted-req: 0, "
        if shape == "pd"
        else ""
    )
    throughput = running * (accepted or 1.0) / step_s
    return (
        f"[2026-11-29 12:{minute:02d}:{rest:02d}{where}] Decode batch{count}, #running-req: {running}, {held}{spec}{pd}"
        f"cuda graph: True, gen throughput (token/s): {throughput:.2f}, #queue-req: 0\n"
    )


def sglang_prefill(second: float, rank: int | None = None, *, sequences: int = 1, tokens: int = 4096) -> str:
    minute, rest = divmod(int(second), 60)
    where = "" if rank is None else f" DP{rank} TP{rank} EP{rank}"
    return (
        f"[2026-11-29 12:{minute:02d}:{rest:02d}{where}] Prefill batch, #new-seq: {sequences}, #new-token: {tokens}, "
        f"#cached-token: 0, token usage: 0.49, #running-req: 4, #queue-req: 2, #pending-token: 118201, "
        f"cuda graph: False, input throughput (token/s): 13874.93\n"
    )


def vllm(
    index: int,
    rank: int | None = 0,
    *,
    batch: int = 32,
    queries: int | None = None,
    prompts: int = 0,
    prompt_tokens: int = 0,
    ms: float | str = 30.1,
    usage: float | None = 41.2,
    dummy: bool = False,
    second: float | None = None,
) -> str:
    """One iteration line: from the API server with the use of the KV cache, else from the engine."""
    at = index * 0.03 if second is None else second
    stamp = f"11-29 12:{int(at) // 60:02d}:{int(at) % 60:02d}"
    if usage is None:
        name = "EngineCore" if rank is None else f"EngineCore_DP{rank}"
        prefix = f"({name} pid=2498766) INFO {stamp} [core.py:359] "
    else:
        prefix = f"(APIServer pid=7) INFO {stamp} [loggers.py:259] " + (
            "" if rank is None else f"Engine {rank:03d}: "
        )
    tail = "" if usage is None else f", GPU KV cache usage: {usage:.1f}%"
    return (
        f"{prefix}Iteration({index}): {prompts} context requests, {prompt_tokens} context tokens, {batch} generation "
        f"requests, {batch if queries is None else queries} generation tokens, iteration elapsed time: {ms} ms"
        f"{' (dummy)' if dummy else ''}{tail}\n"
    )
