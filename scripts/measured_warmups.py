"""What a longer warm-up changes: every preset counted from 1, 2, 4 and 8 turnovers of the pool on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import measurements as m
from equipoise import traces
from equipoise.cost import load

PRESETS = ("reasoning", "mixed-tail", "agentic-coding", "chat-long", "chat-short", "code-completion")
"""Those whose outputs have the longest tails first."""
POLICIES = ("least_batch", "dualpath,z=1.05")
REQUESTS = 40_960


def warmups(turnovers: Sequence[float] = (1, 2, 4, 8), presets: Sequence[str] = PRESETS) -> m.Rows:
    """Mean context of a rank (least_batch) and excess of both policies, DP64, 2,048 requests, V1, five seeds.

    Each preset as it is, starting in its steady state, and as a file of the same requests, which starts from an empty
    pool. The shift of the mean context is taken between the first and the last, seed by seed.
    """
    rows = []
    for preset in presets:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "trace.parquet"
            traces.write(traces.synth(preset, REQUESTS, 0), file)
            for start, trace in (("in a steady state", preset), ("empty", str(file))):
                rows.append([f"`{preset}`", start, *_row(trace, turnovers)])
    return rows


def _row(trace: str, turnovers: Sequence[float]) -> list[str]:
    contexts, excesses = [], []
    for count in turnovers:
        found = m.run(
            POLICIES, [load("v1")], traces=[trace], requests=REQUESTS, warmup_turnovers=float(count)
        )
        contexts.append([r.mean_context_tokens for r in found.cells[0].runs])
        excesses.append([m.percent(c.excess.mean) for c in found.cells])
    shift = m.over_seeds([b / a - 1 for a, b in zip(contexts[0], contexts[-1], strict=True)])
    return [
        *(f"{sum(c) / len(c) / 1000:,.1f}" for c in contexts),
        f"{100 * shift.mean:+.1f} ± {100 * (shift.high - shift.mean):.1f}",
        *(f"{excesses[0][p]} / {excesses[-1][p]}" for p in range(len(POLICIES))),
    ]
