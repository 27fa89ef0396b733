"""The measured tables of docs/explain/engine-control.md: ``python scripts/engine_control_study.py [PART ...]``.

One process, part by part; each row is a comparison whose JSON is kept in the folder of ``--results`` as soon as it is
done, so a run that was stopped goes on where it was. ``--write`` puts what is there into the page; ``--again`` measures
anew. Results do not depend on time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_control_tables import TABLES, render
from equipoise.control import Acceptance, VerifyPrice
from equipoise.cost import load
from equipoise.study.control_runs import KeptRuns
from equipoise.study.engine_control import ControlPlan, compare_control, control_to_dict
from markers import DOCS, ROOT

PAGE = DOCS / "explain" / "engine-control.md"
EVERYONE = (
    "argmax", "argmax_own", "argmax_waits", "padded", "padded_filled", "fixed,2", "fixed,3", "fixed,5", "equipoise",
)  # fmt: skip
PAIR = ("argmax", "equipoise")
PLACED = ("random", "skewed,spread=0.3", "least_batch", "dualpath,z=1.05")
MEANS = ("", "+pauses", "+freezes", "+detours", "+pauses+detours")


@dataclass(frozen=True)
class Row:
    """One comparison of a part."""

    part: str
    label: str
    plan: ControlPlan

    @property
    def file(self) -> str:
        """Name of its JSON."""
        words = "".join(c if c.isalnum() else "-" for c in self.label)
        return f"{self.part}.{words}.json"


def price(reads: float = 1.0, graphs: Sequence[int] = (), **more: float) -> VerifyPrice:
    return VerifyPrice(load("h200"), tuple(graphs), reads, **more)


def plan(of: VerifyPrice, strategies: Sequence[str], **more: Any) -> ControlPlan:
    settings: dict[str, Any] = {"seeds": 4, "steps": 100, "warmup_steps": 100} | more
    return ControlPlan("agentic-coding", of, strategies=strategies, **settings)


def every(interval: int, most: int = 800) -> range:
    return range(interval, most + interval, interval)


def rows() -> list[Row]:
    """All comparisons, the most important first."""
    parts = (_headline, _bar, _placement, _survivals, _means, _batches, _prices, _reads, _long)
    return [row for part in parts for row in part()]


# Where all ranks are padded anyway, `padded` is `argmax`.
ALL_PADDED = [name for name in EVERYONE if name != "padded"]


def _headline() -> Iterator[Row]:
    more = {"seeds": 5, "steps": 160}
    yield Row("headline", "ragged", plan(price(), EVERYONE, **more))
    yield Row("headline", "padded", plan(price(graphs=every(8)), ALL_PADDED, **more))


def _bar() -> Iterator[Row]:
    for other in ("argmax", "argmax_own", "fixed,2", "fixed,3", "none"):
        yield Row("bar", other, plan(price(), ("equipoise",), slack_against=other, seeds=5, steps=160))


def _placement() -> Iterator[Row]:
    for per_rank in (112, 32):
        for policy in PLACED:
            more = {"policies": (policy,), "per_rank": per_rank, "warmup_steps": 140, "steps": 100}
            strategies = ("fixed,3", "equipoise")
            yield Row("placement", f"{per_rank}, {policy}", plan(price(), strategies, **more))


def _means() -> Iterator[Row]:
    for policy in ("dualpath,z=1.05", "random"):
        for rule in ("fixed,3", "equipoise"):
            more = {"policies": (policy,), "steps": 200}
            yield Row("means", f"{policy}, {rule}", plan(price(), [rule + m for m in MEANS], **more))
    for most, rest in ((1, 3), (2, 6), (8, 24)):
        more = {"pause_steps": most, "rest_steps": rest, "steps": 200}
        yield Row("bounds", f"{most}, {rest}", plan(price(), ("equipoise", "equipoise+pauses"), **more))


def _survivals() -> Iterator[Row]:
    yield Row("ece", "none", plan(price(), PAIR))
    for words, kind, sign in (
        ("too cautious", "shifted", -1), ("too sure", "shifted", 1), ("noisy", "noisy", 1),
    ):  # fmt: skip
        for percent in (1, 4, 8):
            more = {"acceptance": Acceptance(ece=sign * percent / 100, ece_kind=kind)}
            yield Row("ece", f"{words}, {percent}", plan(price(), PAIR, **more))
    for horizon in (1, 2, 3):
        yield Row("horizon", f"{horizon}", plan(price(), PAIR, horizon=horizon))


def _prices() -> Iterator[Row]:
    tiers: dict[str, Sequence[int]] = {f"every {i}": every(i) for i in (8, 16, 32, 64)}
    for label, graphs in (tiers | {"8, doubled": [8 << i for i in range(8)]}).items():
        yield Row("graphs", label, plan(price(graphs=graphs), ("padded", "padded_filled", "equipoise")))
    for ep, free in ((20.0, 0.0), (60.0, 0.0), (60.0, 64.0), (200.0, 64.0)):
        of = price(ep_per_query=ep, ep_free_queries=free)
        yield Row("ep", f"{ep:g} us, {free:g} free", plan(of, ("argmax", "fixed,2", "equipoise")))


def _batches() -> Iterator[Row]:
    for per_rank in (8, 16, 32, 64, 112, 256):
        more = {"per_rank": per_rank, "seeds": 3 if per_rank > 64 else 4, "steps": 80, "warmup_steps": 80}
        strategies = ("argmax", "fixed,2", "fixed,3", "equipoise")
        yield Row("batch", f"{per_rank}", plan(price(), strategies, **more))


def _reads() -> Iterator[Row]:
    yield Row("reads", "one read, ragged", plan(price(0.0), EVERYONE, seeds=3))
    yield Row("reads", "one read, padded", plan(price(0.0, every(8)), ALL_PADDED, seeds=3))


def _long() -> Iterator[Row]:
    for policy in ("random", "dualpath,z=1.05"):
        more = {"policies": (policy,), "per_rank": 112, "warmup_steps": 400, "steps": 400, "seeds": 3}
        yield Row("long", policy, plan(price(), ("fixed,3", "equipoise"), **more))


def measure(row: Row, folder: Path) -> dict[str, Any]:
    """Run a comparison and keep it; its single runs are kept too while it is under way."""
    started = time.monotonic()
    cells = compare_control(row.plan, None, KeptRuns(folder / "runs"))
    found = {
        "part": row.part,
        "label": row.label,
        "date": datetime.now(UTC).date().isoformat(),
        "wall_s": round(time.monotonic() - started, 1),
        "control": control_to_dict(row.plan, cells),
    }
    target = folder / row.file
    target.with_suffix(".part").write_text(json.dumps(found, indent=1), encoding="utf-8")
    target.with_suffix(".part").rename(target)
    return found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(TABLES)}; all by default")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "results" / "engine-control", help="folder of the JSON"
    )
    parser.add_argument("--again", action="store_true", help="measure what is there already anew")
    parser.add_argument("--write", action="store_true", help="put what is there into the page")
    chosen = parser.parse_args(arguments)
    unknown = [part for part in chosen.parts if part not in TABLES]
    if unknown:
        parser.error(f"no part named {unknown[0]!r}: {', '.join(TABLES)}")
    chosen.results.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {part: [] for part in TABLES}
    every_row = rows()
    for row in every_row:
        target, wanted = chosen.results / row.file, not chosen.parts or row.part in chosen.parts
        if target.exists() and not (chosen.again and wanted):
            found[row.part].append(json.loads(target.read_text(encoding="utf-8")))
        elif wanted:
            found[row.part].append(measure(row, chosen.results))
            print(f"{row.part}, {row.label}: {found[row.part][-1]['wall_s']} s", file=sys.stderr, flush=True)
    for part in chosen.parts or TABLES:
        print(f"\n{part}\n\n{TABLES[part](found[part])}")
    if chosen.write:
        whole = [part for part in TABLES if len(found[part]) == sum(row.part == part for row in every_row)]
        PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), found, whole), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("stopped: the same command goes on from here")
