"""Small files in every format, and traces drawn by Hypothesis."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import zstandard
from hypothesis import strategies as st

from equipoise.traces import PrefixBlocks, Trace

WEKA = {
    "id": "trace_0042",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {
            "t": 0.0,
            "type": "n",
            "in": 1000,
            "out": 50,
            "hash_ids": [1, 2],
            "api_time": 2.0,
            "think_time": 0.0,
        },
        # ended at 30 s after 20 s: it began at 10 s
        {
            "t": 30.0,
            "type": "subagent",
            "duration_ms": 20000,
            "requests": [
                {"t": 0.0, "type": "s", "in": 300, "out": 20, "hash_ids": [7], "think_time": 0.0},
                {"t": 4.5, "type": "s", "in": 400, "out": 30, "hash_ids": [7, 8], "think_time": 1.5},
            ],
        },
        {"t": 40.0, "type": "n", "in": 1200, "out": 0, "hash_ids": [1, 2, 3], "think_time": 3.0},
        {"t": 50.0, "type": "n", "in": 1500, "out": 60, "hash_ids": [1, 2, 3], "think_time": 9.0},
    ],
}

FILES: dict[str, tuple[str, str]] = {
    "mooncake": (
        "m.jsonl",
        '{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
        '{"timestamp": 1000, "input_length": 700, "output_length": 6, "hash_ids": [0, 2]}\n'
        '{"timestamp": 4000, "input_length": 80, "output_length": 7, "hash_ids": []}\n',
    ),
    "bailian": (
        "b.jsonl",
        '{"chat_id": 10, "parent_chat_id": -1, "timestamp": 2.0, "input_length": 32, "output_length": 40, '
        '"type": "text", "turn": 1, "hash_ids": [5, 6]}\n'
        '{"chat_id": 11, "parent_chat_id": 3, "timestamp": 2.5, "input_length": 20, "output_length": 4, '
        '"type": "text", "turn": 4, "hash_ids": [9]}\n'
        '{"chat_id": 12, "parent_chat_id": 10, "timestamp": 9.0, "input_length": 64, "output_length": 8, '
        '"type": "text", "turn": 2, "hash_ids": [5, 6, 7, 8]}\n'
        '{"chat_id": 13, "parent_chat_id": 12, "timestamp": 12.0, "input_length": 90, "output_length": 9, '
        '"type": "text", "turn": 3, "hash_ids": [5, 6, 7, 8, 1]}\n',
    ),
    "azure": (
        "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-16 18:17:04.0319601,3180,8\r\n",
    ),
    "burstgpt": (
        "bg.csv",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "100.0,abc,4,GPT-4,900,120,1020,Conversation log\n"
        "101.0,,2,ChatGPT,30,0,30,API log\n"
        "102.5,,2,ChatGPT,40,11,51,API log\n"
        "110.0,abc,3,GPT-4,1100,7,1107,Conversation log\n",
    ),
    "vidur": ("v.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,591,140\n0.625,547,248\n"),
    "claude-sessions": (
        "c.csv",
        "session,thread,t,input_tokens,output_tokens,cached_prefix_tokens,api_time,ttft,think_time,model_family\n"
        "7,0,0.0,1000,100,0,6.0,,0.0,opus\n"
        "7,1001,0.0,200,20,0,1.0,,0.0,haiku\n"
        "7,1001,3.0,250,21,0,1.0,,2.0,haiku\n"
        "7,0,20.0,1200,110,0,,,14.0,opus\n"
        "9,0,0.0,500,0,0,5.0,,0.0,opus\n"
        "9,0,8.0,600,50,0,5.0,,3.0,opus\n",
    ),
    "weka": ("w.json", json.dumps(WEKA)),
    "csv": (
        "g.csv",
        "arrival_s,context_tokens,output_tokens,session,turn,think_s\n0.25,10,5,3,0,0.0\n1.5,12,6,3,1,1.0\n",
    ),
    "jsonl": (
        "g.jsonl",
        '{"arrival_ms": 250, "prompt_tokens": 10, "completion_tokens": 5}\n'
        '{"arrival_ms": 1500, "prompt_tokens": 12, "completion_tokens": 6}\n',
    ),
}

POOL_ARRIVAL = (
    "client,t_start_s,rate_rps,iat_cv,pattern,shape,scale\n"
    "0,0,0.5,1.0,Gamma,1.0,2.0\n"
    "0,600,0.25,1.0,Gamma,1.0,4.0\n"
    "1,0,0.1,3.0,Weibull,0.5,1.0\n"
    "2,600,0.1,3.0,Gamma,1.0,10.0\n"
)
LEVELS = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.9, 100)


def pool_lengths() -> str:
    """Client 0: inputs 100 ... 200, outputs 10 ... 20, both uniform; client 1: constants; client 2 has no tables."""
    header = "client,t_start_s,field,mean," + ",".join(f"q{p:g}" for p in LEVELS) + "\n"

    def row(client: int, field: str, low: float, high: float) -> str:
        values = ",".join(f"{low + (high - low) * p / 100:g}" for p in LEVELS)
        return f"{client},0,{field},{(low + high) / 2:g},{values}\n"

    return (
        header
        + row(0, "input_tokens", 100, 200)
        + row(0, "output_tokens", 10, 20)
        + row(0, "reason_ratio", 0, 1)
        + row(1, "input_tokens", 7, 7)
        + row(1, "output_tokens", 0, 0)
    )


def write_pool(folder: Path) -> Path:
    (folder / "toy_clients_arrival.csv").write_text(POOL_ARRIVAL)
    (folder / "toy_clients_lengths_quantiles.csv").write_text(pool_lengths())
    return folder


def pack(data: bytes, packing: str) -> bytes:
    if packing == ".gz":
        return gzip.compress(data, mtime=0)
    return zstandard.compress(data) if packing == ".zst" else data


def write_example(folder: Path, name: str, packing: str = "") -> Path:
    filename, text = FILES[name]
    path = folder / (filename + packing)
    path.write_bytes(pack(text.encode(), packing))
    return path


@st.composite
def traces(draw: st.DrawFn, *, prefix: bool = True, max_size: int = 30) -> Trace:
    """Any lawful trace."""
    n = draw(st.integers(1, max_size))

    def column(elements: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(elements, min_size=n, max_size=n))

    gaps = column(st.one_of(st.just(0.0), st.floats(0, 100, allow_subnormal=False)))
    arrival_s = np.cumsum(np.array(gaps, dtype=np.float64))
    session = np.array(column(st.integers(-1, 4)), dtype=np.int64)
    turn = np.array(
        [int((session[:i] == s).sum()) if s >= 0 else 0 for i, s in enumerate(session)], dtype=np.int32
    )
    blocks = None
    if prefix and draw(st.booleans()):
        lists = column(st.lists(st.integers(-5, 5), max_size=4))
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in lists])]).astype(np.int64)
        ids = np.array([i for ids in lists for i in ids], dtype=np.int64)
        blocks = PrefixBlocks(offsets, ids, draw(st.sampled_from([16, 64, 512])))
    return Trace.from_columns(
        draw(st.text(max_size=5)),
        arrival_s - arrival_s[0],
        np.array(column(st.integers(1, 10**8)), dtype=np.int64),
        np.array(column(st.integers(1, 10**8)), dtype=np.int64),
        session=session,
        turn=turn,
        think_s=np.array(column(st.floats(0, 1e6, allow_subnormal=False)), dtype=np.float64),
        arrivals_known=draw(st.booleans()),
        prefix=blocks,
        source=draw(st.text(max_size=5)),
    )


def blocks_of(trace: Trace) -> list[list[int]] | None:
    if trace.prefix is None:
        return None
    offsets = trace.prefix.offsets
    return [trace.prefix.ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def assert_same(a: Trace, b: Trace) -> None:
    """Equal in every column and flag."""
    for name in ("arrival_s", "context_tokens", "output_tokens", "session", "turn", "think_s"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert (a.name, a.arrivals_known, a.source) == (b.name, b.arrivals_known, b.source)
    assert blocks_of(a) == blocks_of(b)
    if a.prefix is not None and b.prefix is not None:
        assert a.prefix.block_tokens == b.prefix.block_tokens
