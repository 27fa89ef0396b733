#!/usr/bin/env python3
"""A live run against an engine whose step cost is known: Dynamo's mocker, four and eight ranks, prices of our own.

    EQUIPOISE_DYNAMO_VENV=FOLDER python scripts/live_validation.py [--ranks 4 8] [--repeats 3] [--requests 160]
        [--keep FOLDER] [--from FOLDER] [--output docs/validation/live-dynamo.md]

`scripts/install-dynamo-mocker FOLDER` makes the environment. For every number of ranks the mocker is started with a
table that says what a step costs; `equipoise live` probes it and runs five policies in turns; `equipoise live analyse`
predicts. Then: are the table's coefficients found again, is the mean ITL predicted, is the order right? Dynamo's own
offline replay of the same requests and table, round robin, is held against our simulator, too. Takes about 20 minutes
for each number of ranks. `--from` writes the page from a folder that was kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "engines"))  # the processes that the tests use

BASE_MS, REQUEST_MS, TOKEN_MS = 60.0, 0.4, 1.6e-3
"""Slow steps: what a busy machine does to a client's clock is small beside them."""
POLICIES = ("least_batch", "least_tokens", "length_split", "dualpath", "equipoise")
LONG, SHORT = 4000, 300
PER_RANK_S = 0.7
"""Requests that come for each rank in a second: about eight run there at a time."""
BOUND_LEVEL, BOUND_COEFFICIENT, BOUND_OFFLINE = 0.03, 0.05, 0.03
OFFLINE = """
import json, sys
from dynamo.replay import run_trace_replay
trace, table, ranks, out = sys.argv[1:]
engine = {"num_gpu_blocks": 16384, "block_size": 64, "max_num_seqs": 64}
engine["timing_model"] = {"type": "external", "provider": "dynamo_profile", "config": {"path": table}}
report = run_trace_replay(
    trace, extra_engine_args={"dp_size": int(ranks), "engine": engine}, num_workers=1, router_mode="round_robin",
    trace_block_size=64,
)
json.dump(report if isinstance(report, dict) else report.to_dict(), open(out, "w"), default=str)
"""


@dataclass(frozen=True)
class Files:
    """What one number of ranks needs and leaves."""

    folder: Path
    ranks: int

    @property
    def live(self) -> Path:
        """The folder of the live run."""
        return self.folder / f"dp{self.ranks}"

    def of(self, name: str) -> Path:
        """A file beside it."""
        return self.folder / f"dp{self.ranks}-{name}"


def write_trace(path: Path, ranks: int, requests: int) -> None:
    """A quarter long prompts, the rest short ones."""
    rng = np.random.default_rng(7)
    at_s = np.round(np.sort(rng.uniform(0, requests / (PER_RANK_S * ranks), requests)), 3)
    prompts = np.where(rng.random(requests) < 0.25, LONG, SHORT) + rng.integers(0, 200, requests)
    columns = zip(at_s.tolist(), prompts.tolist(), rng.integers(80, 160, requests).tolist(), strict=True)
    rows = [{"arrival_s": t, "context_tokens": n, "output_tokens": o} for t, n, o in columns]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")


def write_mooncake(path: Path, trace: Path) -> None:
    """The trace as Dynamo's replay reads it; no two prompts share a block."""
    lines, block = [], 0
    for row in map(json.loads, trace.read_text("utf-8").splitlines()):
        blocks = -(-row["context_tokens"] // 64)
        one = {"timestamp": round(1000 * row["arrival_s"]), "input_length": row["context_tokens"]}
        one |= {"output_length": row["output_tokens"], "hash_ids": list(range(block, block + blocks))}
        lines.append(json.dumps(one) + "\n")
        block += blocks
    path.write_text("".join(lines), "utf-8")


async def run(files: Files, repeats: int, requests: int) -> None:
    """One number of ranks: start, probe, run, replay offline."""
    import aiohttp
    from dynamo_processes import dynamo, environment, write_cost, write_table

    files.folder.mkdir(parents=True, exist_ok=True)
    table, cost, trace = files.of("cost.npz"), files.of("known.toml"), files.of("mixture.jsonl")
    write_table(table, BASE_MS, REQUEST_MS, TOKEN_MS, (0.1, 0.2))
    write_cost(cost, BASE_MS, REQUEST_MS, TOKEN_MS)
    write_trace(trace, files.ranks, requests)
    processes = Path(tempfile.mkdtemp(dir=files.folder))
    options = ("--planner-profile-data", str(table))
    async with (
        aiohttp.ClientSession() as session,
        dynamo(processes, files.ranks, session, *options) as (url, system),
    ):
        await gauges(session, url, system)
        arguments = ["live", "--url", f"{url} metrics_url={system}", "--engine", "dynamo"]
        arguments += ["--dp-size", str(files.ranks), "--trace", str(trace), "--policies", ",".join(POLICIES)]
        arguments += ["--repeats", str(repeats), "--cost", str(cost), "--output-dir", str(files.live)]
        arguments += ["--token-ids", "10:900", "--max-batch", "64", "--on-failure", "degrade"]
        await command(sys.executable, "-m", "equipoise", *arguments)
    write_mooncake(files.of("mooncake.jsonl"), trace)
    python = str(environment() / "bin" / "python")
    given = (str(files.of("mooncake.jsonl")), str(table), str(files.ranks), str(files.of("offline.json")))
    await command(python, "-c", OFFLINE, *given)


async def gauges(session: Any, url: str, system: str) -> None:
    """Wait until the mocker shows its loads: a moment after its first request."""
    body = {"model": "tiny", "prompt": [10], "max_tokens": 1}
    async with session.post(url + "/v1/completions", json=body) as response:
        await response.read()
    for _ in range(300):
        async with session.get(system + "/metrics") as response:
            if "vllm:num_requests_running{" in await response.text():
                return
        await asyncio.sleep(0.1)
    raise SystemExit("the mocker shows no loads")


async def command(*arguments: str) -> None:
    """Run a command; what it prints is shown."""
    process = await asyncio.create_subprocess_exec(*arguments, env={**os.environ, "COLUMNS": "100"})
    if await process.wait():
        raise SystemExit(f"{' '.join(arguments[:4])} ... ended with {process.returncode}")


def offline(files: Files) -> tuple[float, float]:
    """Mean TPOT, ms: Dynamo's offline replay, and our simulator of the same requests, table and round robin."""
    from equipoise import Pool, simulate, traces
    from equipoise.cost import load

    theirs = json.loads(files.of("offline.json").read_text("utf-8"))["summary"]["mean_tpot_ms"]
    trace = traces.read(files.of("mixture.jsonl"))
    pool, cost = Pool(ranks=files.ranks, max_batch=64), load(str(files.of("known.toml")))
    result = simulate(trace, pool, "round_robin", cost, warmup_turnovers=0.0)
    frame = result.requests_frame()
    spent = (frame["ended_s"] - frame["first_token_s"]).to_numpy()
    return float(theirs), float(np.mean(1000 * spent / (frame["tokens"].to_numpy() - 1)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--keep", type=Path, help="folder for everything that is measured")
    parser.add_argument("--from", dest="kept", type=Path, help="write the page from such a folder")
    parser.add_argument("--output", type=Path, help="Markdown page")
    options = parser.parse_args()
    folder = (options.kept or options.keep or Path(tempfile.mkdtemp())).resolve()
    all_files = [Files(folder, ranks) for ranks in options.ranks]
    if options.kept is None:
        for files in all_files:
            asyncio.run(run(files, options.repeats, options.requests))
    from live_page import page

    text = page(all_files, offline)
    if options.output:
        options.output.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
