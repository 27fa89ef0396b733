"""Bounds: what one who knew all output lengths and arrivals could reach: by search, on small cases by proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.study.oracle.budget import Budget
    from equipoise.study.oracle.exact import Exact, ideal_cost, solve
    from equipoise.study.oracle.problem import Plan, Problem, plan_of, problem_of
    from equipoise.study.oracle.run_oracle import OracleResult, oracle
    from equipoise.study.oracle.search import Found, improve

__all__ = [
    "Budget",
    "Exact",
    "Found",
    "OracleResult",
    "Plan",
    "Problem",
    "ideal_cost",
    "improve",
    "oracle",
    "plan_of",
    "problem_of",
    "solve",
]

__getattr__ = lazy(
    __name__,
    {
        "budget": ("Budget",),
        "exact": ("Exact", "ideal_cost", "solve"),
        "problem": ("Plan", "Problem", "plan_of", "problem_of"),
        "run_oracle": ("OracleResult", "oracle"),
        "search": ("Found", "improve"),
    },
)
