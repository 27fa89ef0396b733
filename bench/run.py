"""The speed bars of the README: ``make bench``. Prints a Markdown table; ``--write`` puts it into the documentation.

Every figure is taken in a fresh process, one core, several runs; median, least and greatest are shown.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "explain" / "benchmarks.md"
EQUIPOISE = Path(sys.executable).with_name("equipoise")


def pinned(command: Sequence[str]) -> str:
    """Run on one processor, where that can be asked for, and return what it printed."""
    cpu = {min(os.sched_getaffinity(0))} if hasattr(os, "sched_setaffinity") else None
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE,
        preexec_fn=(lambda: os.sched_setaffinity(0, cpu)) if cpu else None,
    )
    return done.stdout


def speed(policy: str, instances: int, requests: int, runs: int) -> dict[str, object]:
    arguments = [policy, str(instances), str(requests), str(runs)]
    return dict(json.loads(pinned([sys.executable, "replay_speed.py", *arguments])))


def spread(values: Sequence[float], unit: str, digits: int = 2) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})"


def seconds(command: Sequence[str], runs: int) -> list[float]:
    taken = []
    for run in range(runs + 1):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=HERE)
        if run:
            taken.append(time.perf_counter() - began)
    return taken


def rows() -> list[tuple[str, str, str]]:
    found = []
    for policy in ("dualpath", "least_batch", "least_tokens", "length_split"):
        result = speed(policy, 1, 1_000_000, 7)
        rates = [r / 1e6 for r in result["rates"]]
        bar = "at least 4 M/s" if policy == "dualpath" else ""
        found.append(
            (f"1,000,000 requests, 64 ranks, saturated, `{policy}`", bar, spread(rates, "M requests/s"))
        )
    for policy in ("dualpath", "least_batch"):
        result = speed(policy, 100, 1_000_000, 3)
        rates = [r / 1e3 for r in result["rates"]]
        found.append(
            (
                f"100 instances x 64 ranks, flat choice among 6,400, `{policy}`",
                "at least 150 k/s",
                spread(rates, "k requests/s", 0),
            )
        )
    result = speed("dualpath", 100, 10_000_000, 1)
    found.append(
        (
            "10,000,000 requests on 6,400 ranks: peak memory",
            "under 1,024 MiB",
            f"{result['peak_mib']:.0f} MiB",
        )
    )
    for title, kind, bar in (
        ("fleet, 64 ranks, all but the pool off, saturated", "off", ""),
        ("fleet, 64 ranks, everything on, timed", "all", "at least 500 k/s"),
    ):
        made = json.loads(pinned([sys.executable, "fleet_speed.py", kind, "1", "64", "200000", "5"]))
        found.append((title, bar, spread([r / 1e3 for r in made["rates"]], "k requests/s", 0)))
    found.append(fitting())
    loads = [float(pinned([sys.executable, "load_time.py"]).split()[0]) for _ in range(6)][1:]
    found.append(("kernel and policy loaded from the cache", "under 1 s", spread(loads, "s")))
    found.append(
        ("`equipoise --help`, whole process", "under 0.3 s", spread(seconds([EQUIPOISE, "--help"], 9), "s"))
    )
    return found


def fitting() -> tuple[str, str, str]:
    """A calibration of many rows; the peak counts the rows themselves, which are made in the same process."""
    result = json.loads(pinned([sys.executable, "fit.py"]))
    return (
        f"{result['rows']:,} step-rank rows fitted, 64 ranks, error bars included: time, peak memory",
        "under 60 s, 4 GiB",
        f"{result['seconds']:.0f} s, {result['peak_gib']:.1f} GiB",
    )


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.split(":")[1].strip() for x in lines if "model name" in x), platform.machine())


def page(table: str) -> str:
    when, cpu, cores, python = datetime.date.today(), processor(), os.cpu_count(), platform.python_version()
    return f"""# Speed

Measured on {when} by `make bench` on {cpu}, {cores} cores shared with other work,
Python {python}, one core a run. Median of the runs, least and greatest in brackets; every run in a process that had
already run the same replay once.

{table}
The fit is `equipoise.calibrate.fit` on rows already in memory (`bench/fit.py`), the choice of the form and the
bootstrap included.

A request costs one scan of the ranks and its share of the steps it takes part in (a fifth of a step at 2,048 requests
in flight). The workload is lognormal with agentic-sized contexts (`bench/workloads.py`), cost `v2`, the drain left out.
"""


def into_readme(path: Path, text: str) -> None:
    before, rest = path.read_text("utf-8").split("<!-- speed -->", 1)
    after = rest.split("<!-- end of speed -->", 1)[1]
    path.write_text(f"{before}<!-- speed -->\n{text}<!-- end of speed -->{after}", "utf-8")


def main() -> None:
    lines = ["| what | bar | measured |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows())]
    table = "\n".join(lines) + "\n"
    print(table)
    if "--write" in sys.argv:
        PAGE.write_text(page(table), "utf-8")
        today, cpu = datetime.date.today(), processor()
        into_readme(
            HERE.parent / "README.md",
            f"{table}\nMedian (least to greatest) on one of {os.cpu_count()} shared {cpu} cores, {today}, "
            "`make bench`; [how it is measured](docs/explain/benchmarks.md).\n",
        )
        into_readme(
            HERE.parent / "README.zh.md",
            f"{table}\n中位数（最小到最大），{today}，`make bench`，{os.cpu_count()} 个共享 {cpu} 核中的一个；"
            "[测量方法](docs/explain/benchmarks.md)。\n",
        )


if __name__ == "__main__":
    main()
