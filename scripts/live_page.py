"""The page of a validation run: what was known, found again and predicted; used by live_validation.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.live.findings import analyse
from equipoise.live.findings.analysis import Agreement, Analysis
from equipoise.live.findings.gap_words import ranking_words
from equipoise.live.findings.sentences import pair_sentences

MEASURES = ("itl_ms.mean", "ttft_ms.mean", "end_to_end_ms.mean", "tpot_ms.mean")
LEVEL = 0.03
WORDS = {
    "constant": "constant, us",
    "per_request": "a request, us",
    "per_100k_context": "100k context tokens, us",
}


@dataclass(frozen=True)
class Known:
    """What was given: prices of the table in milliseconds, and the load in words."""

    base_ms: float
    request_ms: float
    token_ms: float
    load: str

    @property
    def prices_us(self) -> dict[str, float]:
        """By the end of the name that a fit gives them."""
        return {
            "constant": 1e3 * self.base_ms,
            "per_request": 1e3 * self.request_ms,
            "per_100k_context": 1e8 * self.token_ms,
        }


def page(all_files: Sequence[Any], offline: Callable[[Any], tuple[float, float]], known: Known) -> str:
    """All of it as Markdown."""
    found = [(files, analyse(files.live, measures=MEASURES)) for files in all_files]
    about = found[0][1].runs.about
    ranks = " ".join(str(f.ranks) for f, _ in found)
    lines = [
        "# Live runs against Dynamo's mocker",
        "",
        "Does a prediction hold where the truth is known? Dynamo's mocker was given a table of our own,",
        f"{known.base_ms:g} ms + {known.request_ms:g} ms a request + {1e3 * known.token_ms:g} us a context token of "
        "the slowest rank. `equipoise live` saw its answers only:",
        "it probed it, ran five policies in turns, and `equipoise live analyse` predicted them.",
        "",
        "```bash",
        "export EQUIPOISE_DYNAMO_VENV=FOLDER",
        f"python scripts/live_validation.py --ranks {ranks} --repeats {about.repeats} --keep DIR "
        "--output docs/validation/live-dynamo.md",
        "```",
        "",
        *table(
            ["", ""],
            [
                ["date", about.started_at[:10]],
                ["engine", "Dynamo mocker and frontend 1.6.1, over HTTP, streamed, pinned by header"],
                [
                    "machine",
                    f"{about.machine.cores} cores ({about.machine.cpu}), which engine and load share",
                ],
                ["trace", known.load],
                ["late", "; ".join(f"DP{f.ranks}: {late(a)}" for f, a in found)],
            ],
        ),
        "",
    ]
    lines += [*(f"- {sentence}" for sentence in results(found, known)), ""]
    lines += [
        "A router decides when a request comes, the simulator when the next step begins and what has ended meanwhile",
        "is gone. Under policies that look at one load only a few such decisions lead elsewhere, in every repeat",
        "alike, for all replay the same short trace; *other loads* holds that. How much of it was not measured.",
        "",
    ]
    for files, analysis in found:
        lines += section(files, analysis, offline(files), known)
    return "\n".join(lines).rstrip() + "\n"


def results(found: Sequence[tuple[Any, Analysis]], known: Known) -> Iterable[str]:
    """What came out, bound by bound."""
    for files, analysis in found:
        if (agreement := analysis.agreement) is None:
            continue
        rows = [x for x in agreement.levels if x.measure.name == "itl_ms.mean"]
        (order,) = (x for x in agreement.rankings if x.measure.name == "itl_ms.mean")
        decided = order.count("right") + order.count("wrong")
        near = [x for x in rows if abs(x.off[0]) <= LEVEL]
        far = ", ".join(f"`{x.policy}` {percent(x.off[0])}" for x in rows if x not in near)
        yield (
            f"DP{files.ranks}: mean ITL predicted within {100 * LEVEL:g} % for {len(near)} of {len(rows)} policies"
            f"{f'; farther off: {far}' if far else ''}. What steps cost beyond their price at the loads they had is "
            f"{price_share(agreement):.1f} % at most; the rest is loads that were others than predicted."
        )
        yield (
            f"DP{files.ranks}: pairs shown to differ: {decided}, of them in the right order: {order.count('right')}. "
            f"Kendall's tau over all policies: {order.tau:.2f}."
        )
        off = {c[0]: c[3] for c in coefficients(agreement, known)}
        yield f"DP{files.ranks}: prices found again: {', '.join(f'{n} {v}' for n, v in off.items())} (wanted: 5 %)."


def price_share(agreement: Agreement) -> float:
    """The largest part of a gap that is the price's, in percent of what was measured."""
    measured = {x.policy: x.measured for x in agreement.levels if x.measure.name == "itl_ms.mean"}
    parts = [(g.policy, g.price_ms) for g in agreement.gaps]
    return max(
        (100 * abs(p.mean) / measured[policy] for policy, p in parts if p is not None), default=math.nan
    )


def late(analysis: Analysis) -> str:
    """How late the load generator was: the machine's noise."""
    values = [r.late_p99_ms for r in analysis.runs.about.runs if r.late_p99_ms is not None]
    return (
        f"a request in a hundred {min(values):.1f} to {max(values):.1f} ms, run by run"
        if values
        else "unknown"
    )


def section(files: Any, analysis: Analysis, tpot: tuple[float, float], known: Known) -> list[str]:
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
        *table(
            ["price", "in the table", "fitted", "off", "95 % interval"], list(coefficients(agreement, known))
        ),
        "",
        own_work(agreement, known, files.ranks),
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


def coefficients(agreement: Agreement, known: Known) -> Iterable[list[str]]:
    """Prices of the table beside those of the fit."""
    fit = agreement.prediction.calibration
    assert fit is not None
    for ending, truth in known.prices_us.items():
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


def own_work(agreement: Agreement, known: Known, ranks: int) -> str:
    """What the price of a request has beyond the table's, and why."""
    fit = agreement.prediction.calibration
    assert fit is not None
    own = next(v for n, v in fit.result.coefficients.items() if n.endswith("per_request"))
    more_us = own - known.prices_us["per_request"]
    return (
        f"A request costs {more_us:+.0f} us more than in the table. The mocker writes the tokens of all {ranks} ranks "
        "before it begins the next step, so its own work for a token is a part of every step: the table does not know "
        "it, a client sees it."
    )


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
