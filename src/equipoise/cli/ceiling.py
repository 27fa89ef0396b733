"""`equipoise ceiling`: is balancing worth doing here?"""

from __future__ import annotations

from typing import Literal

from cyclopts import App

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Json, Many, OracleBudget, Quiet, costs_from, default_jobs
from equipoise.cli.progress import progress

__all__ = ["app"]

app = App(name="ceiling")


@app.default
def ceiling(
    *,
    trace: Many = ("agentic-coding",),
    cost: Many = ("v1", "v2"),
    ranks: Whole = 64,
    instances: Whole = 1,
    concurrency: Whole | None = None,
    load_per_rank: float | None = None,
    requests: Whole | None = None,
    mode: Literal["saturated", "timed"] = "saturated",
    rate_scale: float = 1.0,
    kv_capacity_tokens: Whole | None = None,
    max_batch: Whole | None = None,
    growth_reserve_tokens: Whole = 0,
    seeds: Whole = 3,
    seed: Whole = 0,
    us_per_unit: float | None = None,
    warmup_turnovers: float = 1.0,
    oracle_budget: OracleBudget = "2000000",
    jobs: Whole | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what placement could win on this trace, pool and cost, and how much of it each rule wins.

    Runs random, round_robin, least_batch, least_tokens, dualpath at the best of seven thresholds, equipoise with and
    without a hold, and an oracle that knows the future; ends with a verdict in words.

    Parameters
    ----------
    trace
        A trace file or folder, or a preset. Repeatable.
    cost
        Step costs, as compare takes them. Commas or repeated.
    ranks
        DP ranks of an instance.
    instances
        Instances, each with its own step clock.
    concurrency
        Requests in the pool; 32 a rank by default. In timed mode, if given, arrivals are scaled so that about so many
        run.
    load_per_rank
        The same, a rank.
    requests
        Requests of a run. Default: enough to turn the pool over 20 times.
    mode
        saturated keeps the pool full; timed follows the arrival times.
    rate_scale
        In timed mode: arrivals come this many times as fast.
    kv_capacity_tokens
        KV cache of a rank, in tokens; unlimited by default.
    max_batch
        Running requests a rank may hold; unlimited by default.
    growth_reserve_tokens
        Tokens the capacity filter keeps free on a rank for growth.
    seeds
        Runs of each policy, and searches of the oracle, each with other requests.
    seed
        The first seed.
    us_per_unit
        Microseconds per unit of the costs.
    warmup_turnovers
        Steps count once finished requests reach this many times the peak of running ones.
    jobs
        Replays and searches at a time; one a processor by default.
    """
    from equipoise.replay import Pool
    from equipoise.study import ComparePlan, to_json
    from equipoise.study.bounds import budget_of
    from equipoise.study.ceiling import ceiling as study_ceiling
    from equipoise.study.ceiling import ceiling_plan
    from equipoise.study.ceiling_words import summarize_ceilings
    from equipoise.study.plan import default_policies

    budget = budget_of(oracle_budget)
    plan = ceiling_plan(
        ComparePlan(
            traces=trace,
            costs=costs_from(cost, us_per_unit),
            policies=default_policies(),
            pool=Pool(instances, ranks, kv_capacity_tokens, max_batch, growth_reserve_tokens),
            mode=mode,
            concurrency=concurrency,
            load_per_rank=load_per_rank,
            requests=requests,
            seeds=seeds,
            first_seed=seed,
            rate_scale=rate_scale,
            warmup_turnovers=warmup_turnovers,
        )
    )
    with progress("ceiling", "runs", quiet=quiet or as_json) as tick:
        found = study_ceiling(plan, budget, jobs=default_jobs(jobs), progress=tick)
    if as_json:
        print(to_json(summarize_ceilings(plan, found)), end="")
    else:
        from rich.console import Console

        from equipoise.report.ceiling_tables import print_ceilings

        print_ceilings(found, plan.seeds, Console())
