#!/usr/bin/env python3
"""A live run against an engine whose step cost is known: Dynamo's mocker, four and eight ranks, prices of our own.

    EQUIPOISE_DYNAMO_VENV=FOLDER python scripts/live_validation.py [--ranks 4 8] [--repeats 3] [--requests 160]
        [--keep FOLDER] [--output docs/validation/live-dynamo.md]

`scripts/install-dynamo-mocker FOLDER` makes the environment. For every number of ranks the mocker is started with a
table that says what a step costs; `equipoise live` probes it and runs five policies in turns; `equipoise live analyse`
predicts. Then: are the table's coefficients found again, is the mean ITL predicted, is the order right? Takes about
five minutes for each number of ranks, and wants two cores for itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests" / "engines"))  # the processes that the tests use

BASE_MS, REQUEST_MS, TOKEN_MS = 15.0, 0.1, 4e-4
POLICIES = ("least_batch", "least_tokens", "length_split", "dualpath", "equipoise")
LONG, SHORT = 8000, 300
BOUND_LEVEL, BOUND_COEFFICIENT = 0.03, 0.05


def table(folder: Path, venv: Path) -> Path:
    """What a step costs, as the mocker takes it: by resident tokens and mean length, on a grid fine enough to read."""
    code = f"""
import numpy as np, sys
kv = np.concatenate([[0], np.geomspace(50, 2e6, 500)]); ctx = np.geomspace(1, 2e4, 800)
itl = {BASE_MS} + {REQUEST_MS} * kv[:, None] / ctx[None, :] + {TOKEN_MS} * kv[:, None]
np.savez(sys.argv[1], prefill_isl=np.array([1.0, 1e5]), prefill_ttft_ms=np.array([0.1, 0.2]),
         decode_active_kv_tokens=kv, decode_context_length=ctx, decode_itl=itl)
"""
    path = folder / "cost.npz"
    subprocess.run([str(venv / "bin" / "python"), "-c", code, str(path)], check=True)
    return path


def known_cost(folder: Path) -> Path:
    """The same as a cost file: what the policies decide by."""
    path = folder / "known.toml"
    path.write_text(
        f"""schema = "equipoise.step-cost/1"
name = "known"
unit = "us"
barrier = "step"
source = "the table the mocker was given"
constant = {1000 * BASE_MS}
[[terms]]
name = "decode"
per_request = {1000 * REQUEST_MS}
per_100k_context = {1e8 * TOKEN_MS}
""",
        "utf-8",
    )
    return path


def trace(folder: Path, ranks: int, requests: int) -> Path:
    """A quarter long prompts, the rest short ones; about eight requests a rank at a time."""
    rng = np.random.default_rng(7)
    per_s = 2.8 * ranks
    at_s = np.sort(rng.uniform(0, requests / per_s, requests))
    long = rng.random(requests) < 0.25
    rows = [
        {"timestamp": float(t), "prompt_tokens": int(n), "output_tokens": int(o)}
        for t, n, o in zip(
            at_s, np.where(long, LONG, SHORT) + rng.integers(0, 200, requests), rng.integers(80, 160, requests), strict=True
        )
    ]
    path = folder / "mixture.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    return path


async def run(ranks: int, repeats: int, requests: int, folder: Path) -> dict[str, Any]:
    """One number of ranks: start, probe, run, analyse."""
    import aiohttp
    from dynamo_processes import dynamo, environment

    folder.mkdir(parents=True, exist_ok=True)
    live = folder / f"dp{ranks}"
    processes = Path(tempfile.mkdtemp(dir=folder))
    async with (
        aiohttp.ClientSession() as session,
        dynamo(processes, ranks, session, "--planner-profile-data", str(table(processes, environment()))) as (url, system),
    ):
        arguments = ["live", "--url", f"{url};metrics={system}", "--engine", "dynamo", "--dp-size", str(ranks)]
        arguments += ["--trace", str(trace(processes, ranks, requests)), "--policies", ",".join(POLICIES)]
        arguments += ["--repeats", str(repeats), "--cost", str(known_cost(processes)), "--output-dir", str(live)]
        arguments += ["--token-ids", "10:900", "--max-batch", "64", "--on-failure", "degrade"]
        await command(*arguments)
    await command("live", "analyse", str(live), "--measure", "itl_ms.mean,ttft_ms.mean,end_to_end_ms.mean,tpot_ms.mean")
    return json.loads((live / "analysis.json").read_text("utf-8"))


async def command(*arguments: str) -> None:
    """Run one command of the package; what it prints is shown."""
    env = {**os.environ, "COLUMNS": "100"}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "equipoise", *arguments, env=env)
    if await process.wait():
        raise SystemExit(f"equipoise {arguments[0]} ended with {process.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    for ranks in options.ranks:
        asyncio.run(run(ranks, options.repeats, options.requests, folder))


if __name__ == "__main__":
    main()
