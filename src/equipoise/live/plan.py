"""`LivePlan`: what is to be run, and in which order; everything that can be said before an engine is asked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from equipoise.engines import WorkerSpec
from equipoise.errors import InputError
from equipoise.live.asks import ROUTES, check_route
from equipoise.live.prompts import DEFAULT_IDS
from equipoise.traces.trace import Trace

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ENGINE", "LivePlan", "Mode", "OnFailure", "digest", "order_of_runs", "planned", "scaled"]

ENGINE = "engine"
"""The policy of this name is none: requests name no rank, and the engine chooses."""

Mode = Literal["open", "closed", "sessions"]
OnFailure = Literal["stop", "degrade"]

LONG = 4.0
"""A request is ``long`` if its prompt has more than so many times the tokens of the median prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    """A live run.

    Parameters
    ----------
    trace : Trace
        As it is to be sent: cut and scaled already.
    cut : str
        How it was cut, in words.
    workers : tuple of WorkerSpec
        Where the engine is.
    engine : str
    policies : tuple of str
        As `equipoise.policies.parse` reads them, or ``engine``.
    repeats : int
    first_seed : int
        Of the policies; repeat r has seed ``first_seed + r``.
    mode : {"open", "closed", "sessions"}
        ``open``: requests are sent at the times of the trace. ``closed``: so many are under way at any time.
        ``sessions``: a turn follows the end of the one before it by its think time.
    scale : float
        Factor on arrival and think times: 2 is half as fast.
    concurrency : int, optional
        Of ``closed``.
    prefixes : bool
        Prompts share beginnings as the trace says.
    prompts : {"ids", "text"}
    token_ids : tuple of int
        Ids that prompts are made of: the first, and the one behind the last.
    route : str
    model : str
        Empty: the one the engine names.
    dp_size : int
        Ranks of a worker that does not say; 0: as the engine shows.
    cost : str
        Step cost that policies decide by.
    kv_capacity_tokens, max_batch : int, optional
        Of a rank, where the engine does not say.
    warmup_requests : int
        A rank, before the first run; not measured.
    probe : bool
        Whether steps are measured under known loads before the first run.
    step_logs : tuple of str
        Logs of the engine to read steps from when all is done.
    timeout_s : float
        One request.
    drain_timeout_s : float
        Until the engine is empty, between runs.
    scrape_period_s : float
    on_failure : {"stop", "degrade"}
    ca_file : str, optional
        Authorities that sign the engine's certificates, instead of the system's.
    insecure : bool
        Whether any certificate is believed.
    ttft_slo_ms, tpot_slo_ms : float, optional

    Raises
    ------
    InputError
        A value out of bounds, a policy twice, a mode without what it needs.
    """

    trace: Trace
    workers: tuple[WorkerSpec, ...]
    policies: tuple[str, ...]
    cut: str = ""
    engine: str = "vllm"
    repeats: int = 5
    first_seed: int = 0
    mode: Mode = "open"
    scale: float = 1.0
    concurrency: int | None = None
    prefixes: bool = False
    prompts: Literal["ids", "text"] = "ids"
    token_ids: tuple[int, int] = DEFAULT_IDS
    route: str = ROUTES[0]
    model: str = ""
    dp_size: int = 0
    cost: str = "h200"
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None
    warmup_requests: int = 2
    probe: bool = True
    step_logs: tuple[str, ...] = ()
    timeout_s: float = 600.0
    drain_timeout_s: float = 120.0
    scrape_period_s: float = 0.25
    on_failure: OnFailure = "stop"
    ttft_slo_ms: float | None = None
    tpot_slo_ms: float | None = None
    ca_file: str | None = None
    insecure: bool = False
    worker_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, low, high in BOUNDS:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is not
                raise InputError(
                    f"{name} = {value}",
                    where=f"--{name.replace('_', '-')}",
                    fix=f"must be from {low:g} to {high:g}",
                )
        if not self.workers:
            raise InputError("there is no engine", where="--url", fix="give --url http://HOST:PORT")
        if not self.policies:
            raise InputError("there is no policy", where="--policies", fix="such as least_batch,least_tokens")
        for one in self.policies:
            if self.policies.count(one) > 1:
                raise InputError(f"{one!r} stands there twice", where="--policies", fix="name each once")
        if (self.mode == "closed") != (self.concurrency is not None):
            fix = "add --concurrency N" if self.mode == "closed" else "leave it out, or add --mode closed"
            raise InputError(f"mode {self.mode} and concurrency {self.concurrency}", where="--mode", fix=fix)
        if self.mode == "sessions" and not (self.trace.session >= 0).any():
            raise InputError(
                f"{self.trace.name} has no sessions",
                where="--mode",
                fix="use open or closed, or another trace",
            )
        if (
            self.mode == "open"
            and len(self.trace) > 1
            and self.trace.arrival_s[-1] <= self.trace.arrival_s[0]
        ):
            raise InputError(
                "all requests of the trace arrive at once",
                where="--mode",
                fix="use --mode closed --concurrency N",
            )
        check_route(self.route, self.engine)

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Policy and repeat of every run, in their order."""
        return [
            (self.policies[p], r)
            for r, row in enumerate(order_of_runs(len(self.policies), self.repeats))
            for p in row
        ]


BOUNDS = (
    ("repeats", 1, 1000),
    ("first_seed", 0, 2**31),
    ("scale", 1e-6, 1e6),
    ("concurrency", 1, 100_000),
    ("dp_size", 0, 4096),
    ("kv_capacity_tokens", 2, 1 << 40),
    ("max_batch", 1, 1 << 20),
    ("warmup_requests", 0, 10_000),
    ("timeout_s", 0.01, 86_400),
    ("drain_timeout_s", 0, 86_400),
    ("scrape_period_s", 0.02, 3600),
    ("ttft_slo_ms", 1e-3, 1e9),
    ("tpot_slo_ms", 1e-3, 1e9),
)


def order_of_runs(policies: int, repeats: int) -> list[list[int]]:
    """Which policy comes when, repeat by repeat.

    Rows of a Williams square (E. J. Williams, 1949): over a whole square every policy stands in every place equally
    often, and follows every other one equally often, so that neither drift nor what the run before left behind favours
    one. An odd number of policies takes two squares, the second one mirrored.

    Parameters
    ----------
    policies, repeats : int

    Examples
    --------
    >>> order_of_runs(4, 2)
    [[0, 1, 3, 2], [1, 2, 0, 3]]
    """
    n = policies
    first = [((i + 1) // 2 if i % 2 else -(i // 2)) % n for i in range(n)]
    rows = [[(p + shift) % n for p in first] for shift in range(n)]
    if n % 2:
        rows += [row[::-1] for row in rows]
    return [rows[r % len(rows)] for r in range(repeats)]


def scaled(trace: Trace, prompt_scale: float, output_scale: float) -> Trace:
    """Prompts and outputs a factor as long, rounded, at least one token; prefix blocks shrink with the prompts."""
    if prompt_scale == output_scale == 1.0:
        return trace
    for name, value in (("prompt-scale", prompt_scale), ("output-scale", output_scale)):
        if not (math.isfinite(value) and 1e-6 <= value <= 1e3):
            raise InputError(f"{value}", where=f"--{name}", fix="must be from 1e-6 to 1000")
    prefix = trace.prefix
    if prefix is not None:
        prefix = replace(prefix, block_tokens=max(round(prefix.block_tokens * prompt_scale), 1))
    return replace(
        trace,
        context_tokens=np.maximum(np.rint(trace.context_tokens * prompt_scale), 1).astype(np.int64),
        output_tokens=np.maximum(np.rint(trace.output_tokens * output_scale), 1).astype(np.int64),
        prefix=prefix,
    )


def planned(trace: Trace) -> pl.DataFrame:
    """The table ``trace`` of a run."""
    import polars as pl

    n = len(trace)
    long = trace.context_tokens > LONG * np.median(trace.context_tokens)
    names = np.where(long, "long", "short") if long.any() else np.full(n, "all")
    return pl.DataFrame(
        {
            "request": np.arange(n),
            "arrival_s": trace.arrival_s,
            "session": np.array(trace.session),
            "turn": np.array(trace.turn),
            "think_s": np.array(trace.think_s),
            "prompt_tokens": trace.context_tokens,
            "output_tokens": trace.output_tokens,
            "class": names.tolist(),
        }
    )


def digest(trace: Trace) -> str:
    """SHA-256 of what is to be sent."""
    found = hashlib.sha256()
    columns: Sequence[tuple[str, type]] = (
        ("arrival_s", np.float64),
        ("context_tokens", np.int64),
        ("output_tokens", np.int64),
        ("session", np.int64),
        ("turn", np.int32),
        ("think_s", np.float64),
    )
    for name, kind in columns:
        found.update(np.ascontiguousarray(getattr(trace, name), dtype=kind).tobytes())
    return found.hexdigest()
