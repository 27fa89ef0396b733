"""What SGLang's DSpark planner logs of its decisions, read back: contexts, survivals and the lengths it chose.

With ``SGLANG_DSPARK_DEBUG_CONFIDENCE_PREFIX_SCHEDULER=1`` it writes for every step one line with the step's numbers
and one for each request (`DSparkVerifyPlanner._log_verify_lens_decision`, SGLang 0.5.23)::

    [DSPARK-CPS] num_reqs=2 budget=6 gamma=5 verify_len_range=[1,6]
    [DSPARK-CPS]   req=3 prefix=41210 verify_len=4 sort_survival=[0.912, 0.804, 0.655, 0.402, 0.207]
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from equipoise.control import RankDrafts
from equipoise.errors import InputError
from equipoise.types import Floats, Ints

__all__ = ["LoggedStep", "read_dspark_log"]

STEP = re.compile(r"\[DSPARK-CPS\] (?:step=\d+ )?num_reqs=(\d+) budget=(\d+) gamma=(\d+) ")
REQUEST = re.compile(
    r"\[DSPARK-CPS\]   req=(\d+) prefix=(\d+) verify_len=(\d+) sort_survival=\[([0-9., ]*)\]"
)


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step of one rank.

    Parameters
    ----------
    requests : int64[requests]
        Rows of SGLang's request pool.
    context_tokens : int64[requests]
    survival : float64[requests, drafts]
        To three digits, as logged; of the drafts that this very step verified.
    verified : int64[requests]
        Drafts that SGLang chose to verify: its ``verify_len`` without the token that every request gets.
    budget : int
        Drafts that SGLang allowed all requests together.
    """

    requests: Ints
    context_tokens: Ints
    survival: Floats
    verified: Ints
    budget: int

    def drafts(self, step: int) -> RankDrafts:
        """The rank as it stood at this step, to plan a later one."""
        return RankDrafts(self.context_tokens, self.survival, step)


def read_dspark_log(lines: Iterable[str]) -> list[LoggedStep]:
    """Read the decisions in a log of one rank; other lines are passed over.

    Parameters
    ----------
    lines : iterable of str

    Raises
    ------
    InputError
        Lines of a step are missing, or do not fit it.
    """
    steps: list[LoggedStep] = []
    head: tuple[int, int, int] | None = None
    rows: list[tuple[int, int, int, list[float]]] = []
    began = number = 0
    for number, line in enumerate(lines, 1):
        if found := STEP.search(line):
            _complete(head, rows, began)
            head, rows, began = (int(found[1]), int(found[2]), int(found[3])), [], number
        elif found := REQUEST.search(line):
            if head is None:
                continue  # the log was cut: a step whose first lines are gone
            rows.append((int(found[1]), int(found[2]), int(found[3]), _numbers(found[4], head[2], number)))
        if head is not None and len(rows) == head[0]:
            steps.append(_step(head, rows))
            head, rows = None, []
    return steps  # a step that the end of the log cuts is left out


def _complete(
    head: tuple[int, int, int] | None, rows: list[tuple[int, int, int, list[float]]], line: int
) -> None:
    if head is not None:
        raise InputError(
            f"{len(rows)} requests of {head[0]}",
            where=f"the step in line {line}",
            fix="give the log of one rank",
        )


def _numbers(text: str, gamma: int, line: int) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != gamma or not all(0 <= p <= 1 for p in found):
        raise InputError(
            f"sort_survival=[{text}]", where=f"line {line}", fix=f"must be {gamma} probabilities"
        )
    return found


def _step(head: tuple[int, int, int], rows: list[tuple[int, int, int, list[float]]]) -> LoggedStep:
    survival = np.array([row[3] for row in rows]).reshape(len(rows), head[2])
    return LoggedStep(
        requests=np.array([row[0] for row in rows], dtype=np.int64),
        context_tokens=np.array([row[1] for row in rows], dtype=np.int64),
        # rounding to three digits may let a survival rise by one of them
        survival=np.minimum.accumulate(survival, axis=1),
        verified=np.array([row[2] - 1 for row in rows], dtype=np.int64),
        budget=head[1],
    )
