"""Write the measured tables of the documentation: every number in them comes from a run of this script.

Usage: ``python scripts/measured_tables.py`` rewrites the pages (two minutes on two cores), ``--check`` says which are
out of date, ``--list`` names the tables; names behind it restrict the work to those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import measurements as m
from markers import DOCS, replace
from measured_warmups import warmups

SCRIPT = Path(__file__).name


class Part(NamedTuple):
    """A table of a page, and how to measure it."""

    page: str
    head: list[str]
    rows: Callable[[], m.Rows]


SCREENS = {"demo": m.demo, "two-models": m.two_models}
"""Parts of the tutorial, in both languages: what the terminal shows."""
TUTORIAL = ("tutorial/first-study.md", "tutorial/first-study.zh.md")
PICTURE = DOCS / "assets" / "first-study.png"

TABLES = {
    "article": Part(
        "explain/policies.md",
        ["policy", "excess V1, %", "excess V2, %", "max/mean B", "max/mean C"],
        m.article,
    ),
    "readings": Part(
        "explain/policies.md",
        ["z", "V1, projected", "V1, current", "V2, projected", "V2, current"],
        m.readings,
    ),
    "correlation": Part(
        "explain/policies.md", ["policy", "CV of B", "CV of C", "correlation of B and C"], m.correlation
    ),
    "scale": Part(
        "explain/policies.md", ["ranks", "`least_batch`", "`least_tokens`", "`dualpath z=1.05`"], m.scale
    ),
    "models": Part(
        "howto/choose-a-policy.md",
        ["traffic", "model", "one request, in tokens", "A", "B", "C swapped", "best D", "z"],
        m.by_model,
    ),
    "dilution": Part(
        "explain/step-cost.md",
        ["cost", "fixed part, %", "`least_batch`", "`least_tokens`", "`dualpath z=1.05`"],
        m.dilution,
    ),
    "groups": Part(
        "howto/study-groups.md", ["groups", "chosen by", "`dualpath z=1.2`", "`dualpath z=1.05`"], m.groups
    ),
    "load": Part(
        "howto/timed-mode.md",
        [
            "aimed at, a rank",
            "policy",
            "mean batch",
            "excess, %",
            "TPOT p50, ms",
            "TPOT p99, ms",
            "wait p50, ms",
            "wait p99, ms",
        ],
        m.load_levels,
    ),
    "counted": Part(
        "explain/replay.md",
        ["policy", "pool starts", "counted", "with warm-up", "with warm-up and drain"],
        m.counted,
    ),
    "warmups": Part(
        "explain/replay.md",
        [
            "traffic",
            "pool starts",
            "1",
            "2",
            "4",
            "8",
            "1 to 8, %",
            "`least_batch`, %",
            "`dualpath z=1.05`, %",
        ],
        warmups,
    ),
    "intervals": Part(
        "explain/statistics.md",
        ["interval", "mean half width, points", "holds the mean of 40 seeds"],
        m.intervals,
    ),
    "blocking": Part(
        "explain/replay.md",
        [
            "capacity of a rank, tokens",
            "policy",
            "blocked at first, %",
            "mean batch",
            "excess, %",
            "rank-steps over capacity",
        ],
        m.blocking,
    ),
}


def body(name: str) -> str:
    """A part in Markdown."""
    if name in SCREENS:
        return SCREENS[name]()
    table = TABLES[name]
    lines = [table.head, ["---"] * len(table.head), *table.rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pages_of(name: str) -> list[Path]:
    """The pages a part stands on."""
    return [DOCS / page for page in (TUTORIAL if name in SCREENS else (TABLES[name].page,))]


def draw(path: Path) -> None:
    """The picture of the tutorial: ``excess.png`` of the demo, with few colours so that it stays small."""
    from tempfile import TemporaryDirectory

    from PIL import Image

    from equipoise.report import write_plots

    with TemporaryDirectory() as folder:
        (drawn, *_) = write_plots(m.article_study(), Path(folder))
        image = Image.open(drawn).convert("RGB")
        image.thumbnail((1400, 1400))
        image.quantize(48).save(path, optimize=True)


def main() -> int:
    """Measure, then rewrite the pages or compare with them."""
    flags = {a for a in sys.argv[1:] if a.startswith("--")}
    known = [*SCREENS, *TABLES, "picture"]
    names = [a for a in sys.argv[1:] if not a.startswith("--")] or known
    if "--list" in flags:
        print("\n".join(known))
        return 0
    stale = 0
    for name in names:
        if name == "picture":
            if "--check" not in flags:
                draw(PICTURE)
            continue
        fresh_body = body(name)
        for path in pages_of(name):
            text = path.read_text("utf-8")
            fresh = replace(text, f"measured {name}", SCRIPT, fresh_body)
            if fresh == text:
                continue
            stale += 1
            if "--check" in flags:
                print(f"{path.name}, {name}: out of date", file=sys.stderr)
            else:
                path.write_text(fresh, "utf-8")
    return int("--check" in flags and stale > 0)


if __name__ == "__main__":
    raise SystemExit(main())
