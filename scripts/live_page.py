"""The page of a validation run: what was known, found again and predicted; used by live_validation.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from equipoise.live.findings import analyse
from equipoise.live.findings.analysis import Agreement, Analysis
from equipoise.live.findings.gap_words import ranking_words
from equipoise.live.findings.sentences import pair_sentences

MEASURES = ("itl_ms.mean", "ttft_ms.mean", "end_to_end_ms.mean", "tpot_ms.mean")
KNOWN = {"constant": 60_000.0, "per_request": 400.0, "per_100k_context": 160_000.0}
"""Microseconds; as live_validation.py writes them into the table."""
WORDS = {
    "constant": "constant, us",
    "per_request": "a request, us",
    "per_100k_context": "100k context tokens, us",
}


def page(all_files: Sequence[Any], offline: Callable[[Any], tuple[float, float]]) -> str:
    """All of it as Markdown."""
    found = [(files, analyse(files.live, measures=MEASURES)) for files in all_files]
    about = found[0][1].runs.about
    lines = [
        "# Live runs against Dynamo's mocker",
        "",
        "Does a prediction hold where the truth is known? Dynamo's mocker was given a table of our own,",
        "60 ms + 0.4 ms a request + 1.6 us a context token of the slowest rank. `equipoise live` saw its answers only:",
        "it probed it, ran five policies in turns, and `equipoise live analyse` predicted them.",
        "",
        "```bash",
        "export EQUIPOISE_DYNAMO_VENV=FOLDER",
        "python scripts/live_validation.py --keep DIR --output docs/validation/live-dynamo.md",
        "```",
        "",
        *table(
            ["", ""],
            [
                ["date", about.started_at[:10]],
                ["engine", "Dynamo mocker and frontend 1.6.1, over HTTP, streamed, pinned by header"],
                ["machine", f"{about.machine.cores} cores ({about.machine.cpu}), which others used, too"],
                [
                    "trace",
                    "a quarter of the prompts 4,000 tokens long, the rest 300; 80 to 159 tokens of output; open loop",
                ],
                ["late", "; ".join(f"DP{f.ranks}: {late(a)}" for f, a in found)],
            ],
        ),
        "",
    ]
    lines += [*(f"- {sentence}" for sentence in results(found)), ""]
    for files, analysis in found:
        lines += section(files, analysis, offline(files))
    return "\n".join(lines).rstrip() + "\n"


def results(found: Sequence[tuple[Any, Analysis]]) -> Iterable[str]:
    """What came out, bound by bound."""
    for files, analysis in found:
        if (agreement := analysis.agreement) is None:
            continue
        rows = [x for x in agreement.levels if x.measure.name == "itl_ms.mean"]
        worst = max(rows, key=lambda x: abs(x.off[0]))
        (order,) = (x for x in agreement.rankings if x.measure.name == "itl_ms.mean")
        decided = order.count("right") + order.count("wrong")
        yield (
            f"DP{files.ranks}: mean ITL predicted within {100 * abs(worst.off[0]):.1f} % for every policy "
            f"(the most for `{worst.policy}`; wanted: 3 %); pairs shown to differ: {decided}, "
            f"of them in the right order: {order.count('right')}."
        )
        off = {c[0]: c[3] for c in coefficients(agreement)}
        yield f"DP{files.ranks}: prices found again: {', '.join(f'{n} {v}' for n, v in off.items())} (wanted: 5 %)."


def late(analysis: Analysis) -> str:
    """How late the load generator was: the machine's noise."""
    values = [r.late_p99_ms for r in analysis.runs.about.runs if r.late_p99_ms is not None]
    return (
        f"a request in a hundred {min(values):.1f} to {max(values):.1f} ms, run by run"
        if values
        else "unknown"
    )


def section(files: Any, analysis: Analysis, tpot: tuple[float, float]) -> list[str]:
    """One number of ranks."""
    agreement = analysis.agreement
    runs = analysis.runs
    head = f"## DP{files.ranks}: {runs.about.trace.requests} requests, {runs.about.repeats} repeats"
    if agreement is None:
        return [head, "", f"Nothing is predicted: {analysis.no_agreement}.", ""]
    theirs, ours = tpot
    return [
        head,
        "",
        f"The table found again, {agreement.prediction.source}:",
        "",
        *table(["price", "in the table", "fitted", "off", "95 % interval"], list(coefficients(agreement))),
        "",
        "A request is a twentieth of such a step, so its price is the least certain.",
        "",
        "Mean ITL, predicted and measured:",
        "",
        *table(
            [
                "policy",
                "predicted, ms",
                "measured, ms",
                "off",
                "interval over repeats",
                "late p99 of its runs, ms",
            ],
            list(levels(agreement, analysis)),
        ),
        "",
        *(ranking_words(r) for r in agreement.rankings if r.measure.name == "itl_ms.mean"),
        "",
        "Measured less predicted mean ITL, ms (`*`: not zero with 95 % confidence):",
        "",
        *table(["policy", "gap", "other loads", "price", "of it prompts"], list(gaps(agreement))),
        "",
        "What was shown of the policies:",
        "",
        *(f"- {sentence}" for sentence in pair_sentences(analysis.of("itl_ms.mean"))),
        "",
        f"Dynamo's own offline replay of the same requests and table, round robin: mean TPOT {theirs:.2f} ms; our "
        f"simulator {ours:.2f} ms, {100 * (ours / theirs - 1):+.1f} %.",
        "",
    ]


def coefficients(agreement: Agreement) -> Iterable[list[str]]:
    """Prices of the table beside those of the fit."""
    fit = agreement.prediction.calibration
    assert fit is not None
    for ending, truth in KNOWN.items():
        for name, value in fit.result.coefficients.items():
            if name.endswith(ending):
                low, high = fit.result.intervals[name]
                yield [
                    WORDS[ending],
                    f"{truth:,.0f}",
                    f"{value:,.0f}",
                    percent(value / truth - 1),
                    f"{low:,.0f} to {high:,.0f}",
                ]


def levels(agreement: Agreement, analysis: Analysis) -> Iterable[list[str]]:
    """Predicted and measured mean ITL, and how much the machine was in the way."""
    about = analysis.runs.about
    for x in agreement.levels:
        if x.measure.name == "itl_ms.mean":
            off, low, high = x.off
            ends = f"{percent(low)} to {percent(high)}" if math.isfinite(low) else "n/a"
            late_ms = [r.late_p99_ms for r in about.runs if r.policy == x.policy and r.state == "done"]
            told = ", ".join("?" if v is None else f"{v:.0f}" for v in late_ms)
            yield [f"`{x.policy}`", f"{x.predicted:.2f}", f"{x.measured:.2f}", percent(off), ends, told]


def gaps(agreement: Agreement) -> Iterable[list[str]]:
    """Parts of the gap."""
    for g in agreement.gaps:
        parts = (g.itl_ms, g.loads_ms, g.price_ms, g.prompts_ms)
        yield [
            f"`{g.policy}`",
            *(
                "?" if i is None else f"{i.mean:+.2f}{'' if i.covers_zero or i.method == 'none' else '*'}"
                for i in parts
            ),
        ]


def percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return [line.replace("| |  |", "| | |") for line in lines]
