"""What a comparison of runs says, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from equipoise.study.pairs.measured import QUANTITIES, Ending, Measured, Pair

__all__ = [
    "amount",
    "change",
    "method_words",
    "name",
    "pair_words",
    "short_verdict",
    "signed",
    "verdict_words",
]

SHORT = {
    "better": ("faster", "more", "less"),
    "worse": ("slower", "less", "more"),
}
RATES = ("tokens_per_s", "goodput_per_s")
TIMES = ("ttft_ms", "tpot_ms", "end_to_end_ms", "queue_wait_ms")


def name(m: Measured) -> str:
    """A number by its name: ``TTFT p99``."""
    plain = QUANTITIES[m.quantity].partition(",")[0]
    return f"{plain} {m.statistic}" if m.quantity in TIMES else plain


def amount(m: Measured, value: float) -> str:
    """A value as people read it: the excess in percent."""
    if not math.isfinite(value):
        return "n/a"
    if m.quantity == "excess":
        return f"{100 * value:.2f}"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def change(ratio: float) -> str:
    """A ratio as a change in percent, with its sign."""
    if not math.isfinite(ratio):
        return "n/a"
    percent = 100 * (ratio - 1)
    if abs(percent) >= 1000:
        return f"x{ratio:,.3g}"
    return (
        f"{percent:+.0f}"
        if abs(percent) >= 100
        else f"{percent:+.1f}"
        if abs(percent) >= 10
        else f"{percent:+.2f}"
    )


def short_verdict(m: Measured) -> str:
    """The verdict in a word or two: faster, slower, equal, not shown."""
    if m.verdict == "identical":
        return "identical"
    if m.verdict == "no_interval":
        return ""
    if m.verdict == "no_difference_shown":
        return "equal" if m.within_margin else "not shown"
    kind = 0 if m.quantity in TIMES else 1 if m.quantity in RATES else 2
    return SHORT[m.verdict][kind]


def verdict_words(m: Measured, a: str = "A", b: str = "B") -> str:
    """One number as a sentence without its full stop.

    "No difference shown" and "shown equal" are different findings: the first may only mean too few requests.
    """
    what = name(m)
    if m.verdict == "identical":
        return f"{what}: {a} and {b} are identical"
    if m.verdict == "no_interval":
        return f"{what}: {amount(m, m.a)} in {a}, {amount(m, m.b)} in {b}, without an interval"
    bounds = _bounds(m)
    if m.verdict == "no_difference_shown":
        if m.within_margin:
            return f"{what}: {a} and {b} are equal within {100 * (m.margin or 0):g} % ({bounds})"
        more = "" if m.margin is None else f", nor that they are equal within {100 * m.margin:g} %"
        return f"{what}: no difference shown{more} ({bounds})"
    within = f", yet equal within {100 * (m.margin or 0):g} %" if m.within_margin else ""
    verb = "is" if m.quantity in TIMES else "has"
    return f"{what}: {b} {verb} {short_verdict(m)} than {a}, by {_size(m)}{within} ({bounds})"


def _bounds(m: Measured) -> str:
    if m.quantity == "excess":
        return f"{100 * m.difference.low:+.2f} to {100 * m.difference.high:+.2f} points"
    if m.log_ratio.method == "none":
        return f"difference {signed(m, m.difference.low)} to {signed(m, m.difference.high)}"
    _, low, high = (change(r) for r in m.ratio)
    return f"{_percent(low) if low.startswith('x') != high.startswith('x') else low} to {_percent(high)}"


def signed(m: Measured, value: float) -> str:
    """A difference with its sign."""
    text = amount(m, value)
    return text if text.startswith("-") or text == "n/a" else f"+{text}"


def method_words(pair: Pair) -> str:
    """How the intervals were made."""
    if pair.pairing == "seeds":
        return "Paired over seeds."
    if not pair.requests[0]:
        return "Not paired."
    count = f"{pair.requests[0]:,} requests"
    if pair.pairing == "none":
        count = f"{count} and {pair.requests[1]:,}, not paired"
    else:
        count = f"{count} that came in the counted time and finished in both, paired"
    if not math.isfinite(pair.block_s) or not any(m.difference.method == "blocks" for m in pair.measured):
        return f"{count}."
    return f"{count}; {pair.blocks:.0f} blocks of {pair.block_s:.3g} s: {pair.block_reason}."


def pair_words(pair: Pair) -> list[str]:
    """What a pair shows, a sentence a kind of finding, then what ended differently."""
    a, b = pair.letters
    groups: dict[str, list[Measured]] = {}
    for m in pair.measured:
        key = f"equal within {100 * (m.margin or 0):g} %" if short_verdict(m) == "equal" else m.verdict
        groups.setdefault(key, []).append(m)
    titles = {
        "better": f"{b} is better than {a} in",
        "worse": f"{b} is worse than {a} in",
        "no_difference_shown": "No difference shown in",
        "identical": "Identical in",
        "no_interval": "Without an interval:",
    }
    sentences = []
    for key in ("better", "worse"):
        if key in groups:
            sentences.append(f"{titles[key]} {'; '.join(_findings(groups[key]))}.")
    equal = [k for k in groups if k.startswith("equal")]
    for key in (*equal, "no_difference_shown", "identical", "no_interval"):
        if key in groups:
            title = titles.get(key, f"Shown {key}:")
            sentences.append(f"{title} {'; '.join(_names(groups[key]))}.")
    sentences += [ending_words(e, a, b) for e in pair.endings]
    return sentences


def _findings(group: Sequence[Measured]) -> Iterator[str]:
    """Each quantity once, with all its numbers: ``TTFT (mean -3.1 %, p99 -2.0 %)``."""
    for quantity in dict.fromkeys(m.quantity for m in group):
        same = [m for m in group if m.quantity == quantity]
        plain = QUANTITIES[quantity].partition(",")[0]
        sizes = (
            f"{f'{m.statistic} ' if quantity in TIMES else ''}{_size(m)}"
            + (f", within {100 * (m.margin or 0):g} %" if m.within_margin else "")
            for m in same
        )
        yield f"{plain} ({', '.join(sizes)})"


def _names(group: Sequence[Measured]) -> Iterator[str]:
    """Each quantity once: ``TTFT mean, p50``."""
    for quantity in dict.fromkeys(m.quantity for m in group):
        statistics = ", ".join(m.statistic for m in group if m.quantity == quantity)
        plain = QUANTITIES[quantity].partition(",")[0]
        yield f"{plain} {statistics}" if quantity in TIMES else plain


def _size(m: Measured) -> str:
    """The difference with its sign and unit."""
    if m.quantity == "excess":
        return f"{100 * m.difference.mean:+.2f} points"
    if m.log_ratio.method == "none":
        return signed(m, m.difference.mean)
    return _percent(change(m.ratio[0]))


def _percent(text: str) -> str:
    return text if text.startswith("x") else f"{text} %"


def ending_words(ending: Ending, a: str, b: str) -> str:
    """Requests that ended differently."""
    rows = ", ".join(f"{r}" for r in ending.rows)
    more = ", ..." if ending.requests > len(ending.rows) else ""
    one = ending.requests == 1
    return (
        f"{ending.requests:,} request{'' if one else 's'} {_ended(ending.a)} in {a} and {_ended(ending.b)} in {b} "
        f"(row{'' if one else 's'} {rows}{more})."
    )


def _ended(status: str) -> str:
    return {
        "aborted": "was aborted",
        "rejected": "was rejected",
        "dropped": "was dropped",
        "not_ended": "had not ended",
    }.get(status, status)
