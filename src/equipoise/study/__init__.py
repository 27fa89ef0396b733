"""Studies: compare policies, tune their parameters, say in words what the numbers show."""

from __future__ import annotations

from equipoise.study.compare import Cell, Comparison, Difference, compare, rerun
from equipoise.study.jobs import Run
from equipoise.study.plan import ARTICLE_POLICIES, ComparePlan, Setting, default_policies
from equipoise.study.statistics import Interval
from equipoise.study.summary import schema, summarize, to_json
from equipoise.study.verdicts import difference_words, setting_words, verdicts

__all__ = [
    "ARTICLE_POLICIES",
    "Cell",
    "ComparePlan",
    "Comparison",
    "Difference",
    "Interval",
    "Run",
    "Setting",
    "compare",
    "default_policies",
    "difference_words",
    "rerun",
    "schema",
    "setting_words",
    "summarize",
    "to_json",
    "verdicts",
]
