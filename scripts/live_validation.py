#!/usr/bin/env python3
"""A live run against an engine whose step cost is known: Dynamo's mocker, four and eight ranks, prices of our own.

    EQUIPOISE_DYNAMO_VENV=FOLDER python scripts/live_validation.py [--ranks 4 8] [--repeats 6] [--seconds 11]
        [--keep FOLDER] [--from FOLDER] [--output docs/validation/live-dynamo.md]

`scripts/install-dynamo-mocker FOLDER` makes the environment. For every number of ranks the mocker is started with a
table that says what a step costs; `equipoise live` probes it and runs five policies in turns; `equipoise live analyse`
predicts. Then: are the table's coefficients found again, is the mean ITL predicted, is the order right? Dynamo's own
offline replay of the same requests and table, round robin, is held against our simulator, too. Takes about 15 minutes
for each number of ranks; nothing else should run, for the engine and the load share the machine. `--from` writes the
page from a folder that was kept.
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

BASE_MS, REQUEST_MS, TOKEN_MS = 30.0, 2.0, 2.5e-3
"""Slow steps and dear requests: what the mocker's own work for a token adds to a step is small beside them."""
POLICIES = ("least_batch", "least_tokens", "length_split", "dualpath", "equipoise")
LONG, SHORT, LONG_SHARE = 8000, 300, 0.2
"""Prompt tokens: a long one costs a step as much as ten requests do, so that counting either alone goes wrong."""
OUTPUTS = 30, 60
SEED = 10
"""Of the requests. Of seeds 8 to 12, the one under which simulated policies differ most beside what chance does: which
arrival meets which step moves least_batch by up to a tenth under some."""
PER_RANK_S = 1.6
"""Requests that come for each rank in a second: about eight run there at a time."""
LOAD = (
    f"{100 * LONG_SHARE:.0f} % of the prompts {LONG:,} tokens long, the rest {SHORT}; {OUTPUTS[0]} to {OUTPUTS[1] - 1} "
    f"tokens of output; {PER_RANK_S:g} requests a second and rank, open loop"
)
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


def write_trace(path: Path, ranks: int, seconds: float) -> None:
    """Some long prompts, the rest short ones."""
    rng = np.random.default_rng(SEED)
    requests = round(PER_RANK_S * ranks * seconds)
    at_s = np.round(np.sort(rng.uniform(0, seconds, requests)), 3)
    prompts = np.where(rng.random(requests) < LONG_SHARE, LONG, SHORT) + rng.integers(0, 200, requests)
    columns = zip(at_s.tolist(), prompts.tolist(), rng.integers(*OUTPUTS, requests).tolist(), strict=True)
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


async def run(files: Files, repeats: int, seconds: float) -> None:
    """One number of ranks: start, probe, run, replay offline."""
    import aiohttp
    from dynamo_processes import dynamo, environment, write_cost, write_table

    files.folder.mkdir(parents=True, exist_ok=True)
    table, cost, trace = files.of("cost.npz"), files.of("known.toml"), files.of("mixture.jsonl")
    write_table(table, BASE_MS, REQUEST_MS, TOKEN_MS, (0.1, 0.2))
    write_cost(cost, BASE_MS, REQUEST_MS, TOKEN_MS)
    write_trace(trace, files.ranks, seconds)
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
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=11.0, help="in which the requests come")
    parser.add_argument("--keep", type=Path, help="folder for everything that is measured")
    parser.add_argument("--from", dest="kept", type=Path, help="write the page from such a folder")
    parser.add_argument("--output", type=Path, help="Markdown page")
    options = parser.parse_args()
    folder = (options.kept or options.keep or Path(tempfile.mkdtemp())).resolve()
    all_files = [Files(folder, ranks) for ranks in options.ranks]
    if options.kept is None:
        for files in all_files:
            asyncio.run(run(files, options.repeats, options.seconds))
    from live_page import Known, page

    text = page(all_files, offline, Known(BASE_MS, REQUEST_MS, TOKEN_MS, LOAD))
    if options.output:
        options.output.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
