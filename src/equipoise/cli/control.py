"""`equipoise control`: what control inside the engine could win."""

from __future__ import annotations

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
    strategy: Many = ("argmax", "argmax_own", "argmax_waits", "fixed,2", "fixed,3", "fixed,5", "equipoise"),
    ranks: Whole = 64,
    load_per_rank: Whole = 32,
    drafts: Whole = 5,
    horizon: Whole = 1,
    graph_interval: Whole = 0,
    query_reads: float = 1.0,
    ep_per_query: float = 0.0,
    ep_free_queries: float = 0.0,
    ece: float = 0.0,
    pauses: bool = False,
    steps: Whole = 400,
    warmup_steps: Whole = 200,
    seeds: Whole = 5,
    seed: Whole = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare who decides how many drafts are verified: every rank for itself, one length for all, or all together.

    Strategies: none; fixed,K; argmax (by a start-up profile of token counts); argmax_own (by the rank's true time);
    argmax_waits (a profile corrected with measured steps, waiting included); equipoise (all ranks together).

    Parameters
    ----------
    trace
        A trace file or folder, or a preset.
    cost
        Step cost: a preset, MODEL:v1, MODEL:v2 or a file.
    policy
        Who places requests, with its parameters. Repeatable.
    strategy
        Who decides verify lengths. Repeatable; the others are held against the first.
    ranks
        DP ranks of the instance.
    load_per_rank
        Requests running a rank, on average.
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
        Calibration error of the survivals: above 0 too sure, below too cautious.
    pauses
        Let equipoise also pause requests for a few steps.
    steps
        Steps counted.
    warmup_steps
        Steps before them.
    seeds
        Runs, each with other requests and drafts.
    seed
        The first seed.
    """
    from equipoise.control.acceptance import Acceptance
    from equipoise.control.price import VerifyPrice
    from equipoise.cost import load
    from equipoise.errors import InputError
    from equipoise.study.engine_control import ControlPlan, compare_control, control_to_dict

    largest = load_per_rank * (1 + drafts) * 2
    if not 0 <= graph_interval <= 4096:
        raise InputError(f"{graph_interval}", where="--graph-interval", fix="must be from 0 to 4096")
    sizes = range(graph_interval, largest + graph_interval, graph_interval) if graph_interval else ()
    plan = ControlPlan(
        trace=trace,
        price=VerifyPrice(load(cost), tuple(sizes)[:4096], query_reads, ep_per_query, ep_free_queries),
        policies=policy,
        strategies=strategy,
        ranks=ranks,
        per_rank=load_per_rank,
        drafts=drafts,
        horizon=horizon,
        acceptance=Acceptance(ece=ece),
        pauses=pauses,
        steps=steps,
        warmup_steps=warmup_steps,
        seeds=seeds,
        first_seed=seed,
    )
    with progress("control", "runs", quiet=quiet or as_json) as tick:
        cells = compare_control(plan, tick)
    if as_json:
        import json

        print(json.dumps(control_to_dict(plan, cells), indent=2))
    else:
        from rich.console import Console

        from equipoise.report.control_tables import print_control

        print_control(plan, cells, Console())
