"""How far two shortcuts around the maximum are off, on logs of known prices: the table of docs/explain/calibration.md.

Usage: ``python scripts/shortcut_errors.py`` rewrites the table, ``--check`` only says whether it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from equipoise.calibrate.bottleneck import fit_bottleneck
from equipoise.calibrate.clean import clean
from equipoise.calibrate.planted import plant
from equipoise.calibrate.samples import Samples
from equipoise.calibrate.shapes import Form, TermForm
from equipoise.calibrate.shortcuts import feature_maxima, rank_by_rank
from equipoise.cost import StepCost, Term
from equipoise.types import Floats
from markers import DOCS, replace

SCRIPT = Path(__file__).name
PAGE = DOCS / "explain" / "calibration.md"
TRUTH = StepCost("t", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")
FORM = Form((TermForm("decode", context=True),))
LOADS = {"steady": 0.1, "wandering by half": 0.5}
SEEDS = 5


def slowest_rank(samples: Samples, form: Form) -> Floats:
    """What `equipoise.calibrate.fit` does at its core."""
    return fit_bottleneck(samples, form).coefficients


METHODS = {"slowest rank": slowest_rank, "rank by rank": rank_by_rank, "largest loads": feature_maxima}


def rows() -> list[list[str]]:
    """Mean coefficients over the seeds, by load and method."""
    found = []
    for load, swing in LOADS.items():
        logs = [
            clean(plant(TRUTH, steps=1000, noise=0.0, context_sigma=1.5, batch_swing=swing, seed=s)).samples
            for s in range(SEEDS)
        ]
        for name, method in METHODS.items():
            constant, request, context = np.mean([method(s, FORM) for s in logs], axis=0)
            rate = request / context * 1e5
            found.append([load, name, f"{constant:,.0f}", f"{request:.1f}", f"{context:.1f}", f"{rate:,.0f}"])
    return found


def table() -> str:
    """The table in Markdown; the truth in its first row."""
    head = ["load", "method", "constant", "a request", "100k context", "a request in tokens"]
    lines = [head, ["---"] * len(head), ["", "the truth", "4,000", "20.0", "80.0", "25,000"], *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Rewrite the table, or compare with it."""
    text = PAGE.read_text("utf-8")
    fresh = replace(text, "shortcuts", SCRIPT, table())
    if "--check" in sys.argv[1:]:
        return int(fresh != text)
    PAGE.write_text(fresh, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
