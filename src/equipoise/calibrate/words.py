"""What a calibration found, in a few words and in numbers of few digits; the same in every face."""

from __future__ import annotations

import math

from equipoise.calibrate.result import FitResult

__all__ = ["coverage_words", "no_rate", "quantity", "share", "span", "tokens"]

MISSING = "n/a"


def quantity(value: float) -> str:
    """Four digits, never an exponent: ``90,540``, ``26.56``, ``0.0821``."""
    if not math.isfinite(value):
        return MISSING
    value = float(f"{value:.4g}")
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 3 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 9)}f}"


def span(low: float, high: float) -> str:
    """The two ends of an interval; the upper one may be open."""
    if math.isfinite(low) and high == math.inf:
        return f"{quantity(low)} or more"
    if not (math.isfinite(low) and math.isfinite(high)):
        return MISSING
    return f"{quantity(low)} to {quantity(high)}"


def share(value: float) -> str:
    """A fraction in percent."""
    return f"{100 * value:.1f} %" if math.isfinite(value) else MISSING


def tokens(count: float) -> str:
    """Tokens in thousands or millions: ``4k``, ``1.2M``."""
    if count >= 1e6:
        return f"{count / 1e6:.3g}M"
    return f"{count / 1e3:.3g}k" if count >= 1e3 else f"{count:.0f}"


def no_rate(result: FitResult) -> str:
    """Why a request cannot be said in context tokens; empty where it can."""
    if result.exchange_rate_is == "known":
        return ""
    if result.lost:
        return "these data cannot weigh a request against context"
    if result.exchange_rate_is == "infinite":
        return "context costs nothing that these data show"
    return "neither a request nor context costs anything that these data show"


def coverage_words(result: FitResult) -> list[str]:
    """Which loads stand behind a fit."""
    loads, cells = result.range, result.coverage
    filled = int((cells.rows > 0).sum())
    decisive = f", {int((cells.slowest > 0).sum())} of them with slowest ranks" if result.ranks > 1 else ""
    if not result.contexts_are_logged:
        return [f"batch {loads['batch_low']:,} to {loads['batch_high']:,} a rank; contexts are not logged"]
    return [
        f"batch {loads['batch_low']:,} to {loads['batch_high']:,} a rank, "
        f"{tokens(loads['context_tokens_low'])} to {tokens(loads['context_tokens_high'])} context tokens a rank,",
        f"{tokens(loads['context_a_request_low'])} to {tokens(loads['context_a_request_high'])} a request; "
        f"{filled} cells of an octave each way{decisive}",
    ]
