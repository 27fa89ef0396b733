"""Bounds: what one who knew all output lengths and arrivals could reach: by search, on small cases by proof."""

from __future__ import annotations

from equipoise.study.oracle.exact import Exact, ideal_cost, solve
from equipoise.study.oracle.oracle import OracleResult, oracle
from equipoise.study.oracle.problem import Plan, Problem, plan_of, problem_of
from equipoise.study.oracle.search import Budget, Found, improve

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
