"""`LiveRuns`: the tables of a live run as arrays, one `Run` a policy and repeat, requests in the order of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from equipoise.errors import InputError
from equipoise.live.about import About
from equipoise.live.parts import read_folder
from equipoise.live.rows import ANSWERED, table_path
from equipoise.traces.trace import Trace
from equipoise.types import Floats, Ints

__all__ = ["Chosen", "LiveRuns", "Run", "build_runs", "outcomes", "read_runs"]

Chosen = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Run:
    """One policy, one repeat.

    Parameters
    ----------
    policy : str
        As it was asked for: ``dualpath,z=1.05``.
    repeat, seed, order : int
    intended_s, sent_s, first_s, finished_s : float64[requests]
        Seconds from the run's start; NaN where it never came.
    prompt_tokens, output_tokens : int64[requests]
        As counted.
    rank : int64[requests]
        Over all instances, from 0; -1: not known.
    outcome : str[requests]
        One a request; empty where it has no row.
    gap_ms : float64[gaps]
        Times between the chunks of the answers.
    gap_of : int64[gaps]
        Which request each belongs to; in its order of time.
    """

    policy: str
    repeat: int
    seed: int
    order: int
    intended_s: Floats
    sent_s: Floats
    first_s: Floats
    finished_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    rank: Ints
    outcome: NDArray[np.object_]
    gap_ms: Floats
    gap_of: Ints

    @cached_property
    def answered(self) -> Chosen:
        """bool[requests], whether its times can be used."""
        known = np.isfinite(self.intended_s) & np.isfinite(self.first_s) & np.isfinite(self.finished_s)
        found: Chosen = known & np.isin(self.outcome.astype(str), [str(o) for o in ANSWERED])
        return found

    @cached_property
    def asked(self) -> Chosen:
        """bool[requests], whether it has a row."""
        found: Chosen = self.outcome.astype(str) != ""
        return found


@dataclass(frozen=True, eq=False)
class LiveRuns:
    """A live run, as far as it got.

    Parameters
    ----------
    about : About
    trace : polars.DataFrame
        As planned.
    runs : sequence of Run
        Whole ones only, in the order they were made.
    scrapes : polars.DataFrame
        Of these runs.
    steps : Path or None
        Step data of the probe.
    notes : sequence of str
        What was left out here, in sentences.
    """

    about: About
    trace: pl.DataFrame
    runs: tuple[Run, ...]
    scrapes: pl.DataFrame
    steps: Path | None
    notes: tuple[str, ...]

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """Those with a whole run, in the order asked for."""
        there = {r.policy for r in self.runs}
        return tuple(p for p in self.about.policies if p in there)

    def of(self, policy: str) -> dict[int, Run]:
        """The runs of a policy by repeat."""
        return {r.repeat: r for r in self.runs if r.policy == policy}

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of each instance."""
        return tuple(i.ranks for i in self.about.engine.instances)

    def planned(self, run: Run | None = None) -> tuple[Trace, Ints]:
        """What was to be sent, as the simulator takes it, and which row of the table each of its requests is.

        Arrivals are the intended times of a run, where one is given and it followed a clock.
        """
        frame = self.trace
        arrival_s = frame["arrival_s"].to_numpy()
        context, output = frame["prompt_tokens"].to_numpy(), frame["output_tokens"].to_numpy()
        if run is not None and self.about.mode == "open" and np.isfinite(run.intended_s).all():
            arrival_s = run.intended_s - run.intended_s.min()
        order = np.argsort(arrival_s, kind="stable")
        planned = Trace.from_columns(
            self.about.trace.name,
            arrival_s[order] - arrival_s[order[0]],
            np.maximum(context[order], 1),
            np.maximum(output[order], 1),
            session=frame["session"].to_numpy()[order],
            turn=frame["turn"].to_numpy()[order],
            think_s=frame["think_s"].fill_null(0.0).to_numpy()[order],
            source=self.about.trace.source,
        )
        return planned, order.astype(np.int64)


def read_runs(folder: str | Path) -> LiveRuns:
    """Read the folder of a live run, finished or not.

    Raises
    ------
    InputError
        It is not such a folder, a table is broken, or no run of it is whole.
    """
    found = read_folder(folder)
    steps = table_path(Path(folder), "steps") if found.steps.height else None
    return build_runs(found.about, found.trace, found.requests, found.scrapes, steps=steps, where=str(folder))


def build_runs(
    about: About,
    trace: pl.DataFrame,
    requests: pl.DataFrame,
    scrapes: pl.DataFrame,
    *,
    steps: Path | None = None,
    where: str = "",
) -> LiveRuns:
    """Arrays of tables that are at hand."""
    if not trace.height:
        raise InputError("the trace has no request", where=where or None, fix="run it again")
    rows = _rows_of(trace, where)
    names = [i.name for i in about.engine.instances]
    firsts = dict(zip(names, np.cumsum([0, *(i.ranks for i in about.engine.instances)])[:-1], strict=True))
    done = {(r.policy, r.repeat): r for r in about.runs if r.state == "done"}
    notes = [
        f"{r.policy}, repeat {r.repeat}: left out, the run was {_left(r.state)}."
        for r in about.runs
        if r.state in ("stopped", "failed")
    ]
    found = []
    for (policy, repeat), frame in requests.group_by(["policy", "repeat"], maintain_order=True):
        told = done.get((str(policy), int(str(repeat))))
        if told is not None:
            found.append(
                _run(str(policy), told.repeat, told.seed, told.order, frame, rows, firsts, trace.height)
            )
    if not found:
        raise InputError("no run is whole", where=where or None, fix="resume it: equipoise live --resume DIR")
    kept = pl.DataFrame(
        {"policy": [r.policy for r in found], "repeat": [r.repeat for r in found]},
        schema={"policy": pl.String, "repeat": pl.Int32},
    )
    return LiveRuns(
        about,
        trace,
        tuple(sorted(found, key=lambda r: r.order)),
        scrapes.join(kept, on=["policy", "repeat"], how="semi"),
        steps,
        tuple(notes),
    )


def _left(state: str) -> str:
    return "stopped" if state == "stopped" else "given up"


def _rows_of(trace: pl.DataFrame, where: str) -> Ints:
    """int64[...], position of each request number; numbers are those of the plan."""
    number = trace["request"].to_numpy()
    if number.min() < 0 or len(np.unique(number)) < len(number) or number.max() > 100 * len(number) + 1000:
        raise InputError(
            "request numbers of the trace are no row numbers", where=where or None, fix="run it again"
        )
    rows = np.full(int(number.max()) + 1, -1, dtype=np.int64)
    rows[number] = np.arange(len(number))
    return rows


def _run(
    policy: str,
    repeat: int,
    seed: int,
    order: int,
    frame: pl.DataFrame,
    rows: Ints,
    firsts: dict[str, int],
    n: int,
) -> Run:
    frame = frame.filter(pl.col("request").is_between(0, len(rows) - 1))
    row = rows[frame["request"].to_numpy()]
    frame, row = frame.filter(pl.Series(row >= 0)), row[row >= 0]

    def column(name: str, missing: float = np.nan) -> Floats:
        values = np.full(n, missing)
        values[row] = frame[name].cast(pl.Float64).fill_null(missing).to_numpy()
        return values

    outcome = np.full(n, "", dtype=object)
    outcome[row] = frame["outcome"].fill_null("").to_numpy()
    first = frame["instance"].replace_strict(firsts, default=-1, return_dtype=pl.Int64).to_numpy()
    own = frame["rank"].fill_null(-1).to_numpy().astype(np.int64)
    rank = np.full(n, -1, dtype=np.int64)
    rank[row] = np.where((first >= 0) & (own >= 0), first + own, -1)
    gaps = frame["itl_ms"].fill_null([])
    lengths = gaps.list.len().to_numpy()
    return Run(
        policy,
        repeat,
        seed,
        order,
        column("intended_s"),
        column("sent_s"),
        column("first_token_s"),
        column("finished_s"),
        column("prompt_tokens", 0.0).astype(np.int64),
        column("output_tokens", 0.0).astype(np.int64),
        rank,
        outcome,
        gaps.explode().drop_nulls().cast(pl.Float64).to_numpy(),
        np.repeat(row, lengths),
    )


def outcomes(run: Run, among: Chosen | None = None) -> Iterator[tuple[str, int]]:
    """How often requests ended how, the most frequent first."""
    chosen = run.asked if among is None else run.asked & among
    kinds, counts = np.unique(run.outcome[chosen].astype(str), return_counts=True)
    for i in np.argsort(-counts, kind="stable"):
        yield str(kinds[i]), int(counts[i])
