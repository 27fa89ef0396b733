"""Who decides, and on what: the tables of docs/explain/information.md. ``python scripts/information_study.py``.

Timed replays of the agentic preset on 64 ranks under the measured H200 cost; dualpath at its best z for each row.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from equipoise.cost import load
from equipoise.policies import parse
from equipoise.replay import Information, Pool
from equipoise.study import ComparePlan, compare
from equipoise.study.verdicts import information_words

RATIOS = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)
OTHERS = ("least_batch", "least_tokens", "power_of_two")
ROWS = (
    Information(),
    Information("acknowledged", 1, 8, 4),
    Information("erased", 1, 8, 4),
    Information("acknowledged", 1, 16, 16),
    Information("erased", 1, 16, 16),
    *(Information("ledger", replicas, 1, late) for replicas in (2, 4, 8) for late in (0, 4, 16)),
    *(Information("acknowledged", 4, late, late) for late in (4, 16)),
    *(Information("erased", 4, late, late) for late in (4, 16)),
)
PLAN = ComparePlan(
    traces=["agentic-coding"],
    costs=[load("h200")],
    policies=[parse(p) for p in (*OTHERS, *(f"dualpath,z={z}" for z in RATIOS))],
    pool=Pool(ranks=64),
    mode="timed",
    concurrency=37 * 64,
    requests=40_000,
    seeds=5,
)


def rows(informations: Sequence[Information]) -> list[list[str]]:
    """One row a kind of information: excess of each policy, then p99 TPOT of dualpath at its best z."""
    found = []
    for information in informations:
        comparison = compare(replace(PLAN, information=information))
        (setting,) = comparison.settings()
        cells = {c.policy.label: c for c in comparison.of(setting)}
        best = min(
            (c for label, c in cells.items() if label.startswith("dualpath")), key=lambda c: c.excess.mean
        )
        shown = [cells[name] for name in OTHERS]
        found.append(
            [
                information_words(information),
                *(
                    f"{100 * c.excess.mean:.1f} ± {50 * (c.excess.high - c.excess.low):.1f}"
                    for c in (*shown, best)
                ),
                f"{best.policy.params['z']:g}",
                f"{(best.percentiles('tpot_ms') or {})['p99']:.1f}",
            ]
        )
        print("| " + " | ".join(found[-1]) + " |", flush=True)
    return found


if __name__ == "__main__":
    head = [
        "who decides, on what",
        *(f"`{n}`, %" for n in OTHERS),
        "`dualpath`, %",
        "its z",
        "its p99 TPOT, ms",
    ]
    print("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    rows(ROWS[: int(sys.argv[1])] if len(sys.argv) > 1 else ROWS)
