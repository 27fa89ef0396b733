"""Small comparisons that several tests look at."""

from __future__ import annotations

from pathlib import Path

from equipoise.cost import load
from equipoise.policies import parse
from equipoise.replay import Pool
from equipoise.study import ComparePlan, Comparison, compare

POLICIES = (
    "least_batch",
    "least_tokens",
    "length_split,swapped=true",
    "dualpath,z=1.05",
    "dualpath,z=1.2",
    "dualpath,z=1.4",
)


def run(**changes: object) -> Comparison:
    """Compare with a small pool, anything replaced by `changes`."""
    settings: dict[str, object] = {
        "traces": ["agentic-coding"],
        "costs": [load("v1"), load("v2")],
        "policies": [parse(p) for p in POLICIES],
        "pool": Pool(ranks=8),
        "concurrency": 128,
        "requests": 1500,
        "seeds": 3,
    }
    return compare(ComparePlan(**{**settings, **changes}))  # type: ignore[arg-type]


def trace_file(folder: Path, name: str = "tiny.csv") -> str:
    """Forty requests of one token each: a run of a few steps."""
    path = folder / name
    rows = "".join(f"{i},{100 + 7 * i},1\n" for i in range(40))
    path.write_text("arrival_s,context_tokens,output_tokens\n" + rows)
    return str(path)
