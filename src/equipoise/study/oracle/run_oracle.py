"""`oracle`: how well a run could have been placed by someone who knew every output length and every arrival.

It starts from what the best policy did, keeps the steps at which every request starts and ends, looks for cheaper ranks
for them, and plays what it finds back through the replay. The figure is that of the played-back run, so it can be
reached; it is no proof that nothing better can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from equipoise.cost.step_cost import StepCost
from equipoise.policies import Policy, parse
from equipoise.replay import Pool, ReplayResult, replay
from equipoise.study.oracle.budget import Budget
from equipoise.study.oracle.playback import delays_of, policy_of
from equipoise.study.oracle.problem import Plan, plan_of, problem_of
from equipoise.study.oracle.search import improve
from equipoise.traces.trace import Trace

__all__ = ["STARTS", "OracleResult", "oracle"]

STARTS = ("equipoise", "equipoise,hold_steps=4")
"""Policies that a search may start from, beside those it is given."""
ROUNDS = 3
"""Times the plan of a run by the clock is played back and improved again: its steps move with its placements."""
LONGEST_SERIES = 1 << 20
"""Steps of a run the oracle looks at."""


@dataclass(frozen=True, slots=True, eq=False)
class OracleResult:
    """What the oracle came to.

    Parameters
    ----------
    result : ReplayResult
        The played-back run; the run it started from where nothing better was found.
    start : ReplayResult
        The run it started from, kept whole.
    start_policy : Policy
    candidates : int
        Exchanges looked at.
    improved : bool
        Whether `result` is a run of the oracle's own.
    """

    result: ReplayResult
    start: ReplayResult
    start_policy: Policy
    candidates: int
    improved: bool


def oracle(
    trace: Trace,
    pool: Pool,
    cost: StepCost,
    *,
    budget: Budget,
    policies: Sequence[Policy | str] = (),
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> OracleResult:
    """Place a trace knowing everything.

    Parameters
    ----------
    trace : Trace
    pool : Pool
        Groups are ignored: the oracle places on any rank.
    cost : StepCost
    budget : Budget
        Of all searches together.
    policies : sequence of Policy or str
        Policies to start from, beside `STARTS`; the one with the least excess is taken.
    seed : int
        Of the policies and of the search.
    progress : function, optional
        Called with the share of the budget that is used.
    **options
        As `equipoise.replay.replay` takes them: mode, concurrency, rate_scale, warmup_turnovers, drain.

    Raises
    ------
    InputError
        A run with more steps, or more ranks x steps, than it looks at.
    """
    free = replace(pool, groups=1)

    def run(policy: Policy) -> ReplayResult:
        return replay(
            trace, free, policy, cost, seed=seed, keep_requests=True, series_rows=LONGEST_SERIES, **options
        )

    wanted = {p.text: p for p in (parse(p) if isinstance(p, str) else p for p in (*policies, *STARTS))}
    runs = {text: run(policy) for text, policy in wanted.items()}
    chosen = min(runs, key=lambda text: (runs[text].excess, text))
    start = best = runs[chosen]
    fixed = start.mode == "saturated" and pool.instances == 1
    rounds = 1 if fixed else ROUNDS
    looked = 0
    now = start
    for turn in range(rounds):
        share = _share(budget, rounds * pool.instances)
        plan = _plan(now)
        rank = plan.rank.copy()
        for instance in range(pool.instances):
            problem = problem_of(now, plan, instance)
            own = plan.rank[problem.row] - instance * pool.ranks
            done = (turn * pool.instances + instance) / (rounds * pool.instances)
            found = improve(
                problem, own, share, seed=seed, progress=_part(progress, done, rounds * pool.instances)
            )
            rank[problem.row] = found.rank + instance * pool.ranks
            looked += found.candidates
        now = run(policy_of(Plan(rank, plan.delay, plan.start)))
        if now.excess < best.excess:
            best = now
    return OracleResult(best, start, wanted[chosen], looked, best is not start)


def _plan(result: ReplayResult) -> Plan:
    plan = plan_of(result)
    layout = result.pool.layout()
    largest = layout.kv_capacity_tokens - layout.growth_reserve_tokens
    return replace(plan, delay=delays_of(result, plan.start, largest))


def _share(budget: Budget, parts: int) -> Budget:
    return Budget(
        None if budget.seconds is None else budget.seconds / parts,
        None if budget.candidates is None else max(1, budget.candidates // parts),
    )


def _part(
    progress: Callable[[float], None] | None, done: float, parts: int
) -> Callable[[float], None] | None:
    if progress is None:
        return None
    tell = progress
    return lambda share: tell(done + share / parts)
