"""The tables of docs/explain/engine-control.md: ``python scripts/engine_control_study.py [PART ...]``, one process.

Parts: headline, ece, horizon, graphs, ep, batch, placement, pauses. Prints Markdown rows as they are done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from equipoise.control import Acceptance, VerifyPrice
from equipoise.cost import load
from equipoise.study.engine_control import ControlCell, ControlPlan, compare_control

ALL = ("argmax", "argmax_own", "argmax_waits", "fixed,2", "fixed,3", "fixed,5", "equipoise")
PAIR = ("argmax", "equipoise")


def price(reads: float = 1.0, interval: int = 0, most: int = 800, **more: float) -> VerifyPrice:
    sizes = tuple(range(interval, most, interval)) if interval else ()
    return VerifyPrice(load("h200"), sizes, reads, **more)


def plan(of: VerifyPrice, strategies: Sequence[str] = PAIR, **more: Any) -> ControlPlan:
    settings: dict[str, Any] = {"seeds": 4, "steps": 120, "warmup_steps": 120} | more
    return ControlPlan("agentic-coding", of, strategies=strategies, **settings)


def parts() -> Iterator[tuple[str, str, ControlPlan]]:
    for reads in (1.0, 0.0):
        for interval in (0, 8):
            words = f"reads {reads:g}, {'padded' if interval else 'ragged'}"
            yield "headline", words, plan(price(reads, interval), ALL, seeds=5, steps=160)
    for policy in ("round_robin", "least_batch", "least_tokens", "dualpath,z=1.05", "equipoise"):
        for load_per_rank in (32, 112):
            more = {"policies": (policy,), "per_rank": load_per_rank, "seeds": 3, "steps": 80}
            strategies = ("fixed,3", "argmax", "equipoise")
            yield "placement", f"{policy}, {load_per_rank} a rank", plan(price(), strategies, **more)
    for ece in (-0.08, -0.04, -0.01, 0.01, 0.04, 0.08):
        yield "ece", f"{100 * ece:+.0f} %", plan(price(), acceptance=Acceptance(ece=ece))
    for horizon in (1, 2, 3):
        yield "horizon", f"{horizon}", plan(price(), horizon=horizon)
    for interval in (16, 64):
        yield "graphs", f"{interval}", plan(price(interval=interval))
    for ep, free in ((20.0, 0.0), (60.0, 0.0), (60.0, 64.0)):
        words = f"{ep:g} us, {free:g} free"
        yield "ep", words, plan(price(ep_per_query=ep, ep_free_queries=free))
    for load_per_rank in (8, 64, 128, 256):
        yield "batch", f"{load_per_rank}", plan(price(), per_rank=load_per_rank, seeds=3, steps=80)
    yield "pauses", "with pauses", plan(price(), pauses=True)


def row(words: str, cell: ControlCell, requests: int) -> str:
    tokens, turned = cell.over(lambda r: r.tokens_per_s), cell.over(lambda r: r.slack_turned)
    bubble = cell.over(lambda r: r.bubble_share)
    verified = cell.over(lambda r: r.drafts_verified / r.steps / requests).mean
    accepted = cell.over(lambda r: r.drafts_accepted / r.steps / requests).mean
    paused = max(run.longest_pause_steps for run in cell.runs)
    return (
        f"| {words} | {cell.strategy} | {tokens.mean / 1e3:.1f} ± {(tokens.high - tokens.mean) / 1e3:.1f} | "
        f"{100 * cell.gain.mean:+.1f} ± {100 * (cell.gain.high - cell.gain.mean):.1f} | {verified:.2f} | "
        f"{accepted:.2f} | {100 * bubble.mean:.1f} | {100 * turned.mean:.0f} ± "
        f"{100 * (turned.high - turned.mean):.0f} |" + (f" longest pause {paused}" if paused else "")
    )


def main(wanted: Sequence[str]) -> None:
    for part, words, of in parts():
        if wanted and part not in wanted:
            continue
        for cell in compare_control(of):
            print(f"{part}: {row(words, cell, of.ranks * of.per_rank)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
