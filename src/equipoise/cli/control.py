"""`equipoise control`: what control inside the engine could win."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Json, Many, Quiet
from equipoise.cli.progress import progress

__all__ = ["app"]

app = App(name="control", help="Control inside the engine: what verify lengths across ranks could win.")


@app.command
def simulate(
    *,
    trace: str = "agentic-coding",
    cost: str = "h200",
    policy: Many = ("dualpath,z=1.05",),
    strategy: Many = (
        "argmax",
        "argmax_own",
        "argmax_waits",
        "padded",
        "fixed,2",
        "fixed,3",
        "fixed,5",
        "equipoise",
    ),
    ranks: Whole = 64,
    load_per_rank: Whole = 32,
    drafts: Whole = 5,
    horizon: Whole = 1,
    graph_interval: Whole = 0,
    query_reads: float = 1.0,
    ep_per_query: float = 0.0,
    ep_free_queries: float = 0.0,
    ece: float = 0.0,
    ece_kind: Literal["shifted", "noisy"] = "shifted",
    pause_steps: Whole = 4,
    rest_steps: Whole = 12,
    freeze_steps: Whole = 16,
    steps: Whole = 400,
    warmup_steps: Whole = 200,
    seeds: Whole = 5,
    seed: Whole = 0,
    checkpoint_dir: Path | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare who decides how many drafts are verified: every rank for itself, one length for all, or all together.

    Strategies: none; fixed,K; argmax (by a start-up profile of token counts, as DSpark and vLLM); argmax_own (by the
    rank's true time); argmax_waits (a profile corrected with measured steps, waiting included, as DeepInfer); padded
    (all ranks run the largest demand's graph, as SGLang); padded_filled (the same, drafts in place of padding);
    equipoise (all ranks together). A second means behind any of them: +pauses (requests of the slowest rank sit out
    steps), +freezes (ranks that are behind take no new requests, those wait) or +detours (those go elsewhere).

    Parameters
    ----------
    trace
        A trace file or folder, or a preset.
    cost
        Step cost: a preset, MODEL:v1, MODEL:v2 or a file.
    policy
        Who places requests, with its parameters; here also skewed,spread=S, random with first ranks likelier than last
        ones by 1+S to 1-S. Repeatable.
    strategy
        Who decides verify lengths. Repeatable; the others are held against the first.
    ranks
        DP ranks of the instance.
    load_per_rank
        Requests of a rank, on average.
    drafts
        Draft tokens a request and step.
    horizon
        Age of the survivals that a step is decided on, in steps.
    graph_interval
        Captured graph sizes are the multiples of this many query tokens, and all ranks run the largest one's; 0: none.
    query_reads
        How much of a context read is paid again for each verified draft, from 0 to 1.
    ep_per_query
        Price of a query token of the average rank in experts and communication, in the cost's unit.
    ep_free_queries
        Query tokens of the average rank that cost nothing there.
    ece
        Expected calibration error of the survivals, such as 0.04; shifted: above 0 too sure, below too cautious.
    ece_kind
        shifted: all too high or all too low; noisy: each wrong in its own way, right on average.
    pause_steps
        Most steps in a row that a request sits out.
    rest_steps
        Steps it runs after that before it may sit out again.
    freeze_steps
        Most steps in a row that a rank takes no new requests, and so the longest wait of one.
    steps
        Steps counted.
    warmup_steps
        Steps before them.
    seeds
        Runs, each with other requests and drafts.
    seed
        The first seed.
    checkpoint_dir
        Keep every finished run there; the same command goes on where it was stopped.
    """
    from equipoise.control.acceptance import Acceptance
    from equipoise.control.price import VerifyPrice
    from equipoise.cost import load
    from equipoise.errors import InputError
    from equipoise.study.control_runs import KeptRuns
    from equipoise.study.engine_control import ControlPlan, compare_control, control_to_dict

    if not 0 <= graph_interval <= 4096:
        raise InputError(f"{graph_interval}", where="--graph-interval", fix="must be from 0 to 4096")
    plan = ControlPlan(
        trace=trace,
        price=VerifyPrice(
            load(cost),
            _graphs(graph_interval, load_per_rank * (1 + drafts) * 2),
            query_reads,
            ep_per_query,
            ep_free_queries,
        ),
        policies=policy,
        strategies=strategy,
        ranks=ranks,
        per_rank=load_per_rank,
        drafts=drafts,
        horizon=horizon,
        acceptance=Acceptance(ece=ece, ece_kind=ece_kind),
        pause_steps=pause_steps,
        rest_steps=rest_steps,
        freeze_steps=freeze_steps,
        steps=steps,
        warmup_steps=warmup_steps,
        seeds=seeds,
        first_seed=seed,
    )
    kept = None if checkpoint_dir is None else KeptRuns(checkpoint_dir)
    with progress("control", "runs", quiet=quiet or as_json) as tick:
        cells = compare_control(plan, tick, kept)
    if as_json:
        import json

        print(json.dumps(control_to_dict(plan, cells), indent=2))
    else:
        from rich.console import Console

        from equipoise.report.control_tables import print_control

        print_control(plan, cells, Console())


def _graphs(interval: int, largest: int) -> tuple[int, ...]:
    """Multiples of the interval up to the first that holds so many query tokens."""
    return tuple(range(interval, min(largest, 2**20) + interval, interval))[:4096] if interval else ()
