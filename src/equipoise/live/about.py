"""`About`: what a live run was, and how far it got; ``run.json``, written anew whenever something of it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from equipoise.errors import InputError
from equipoise.live.files import replacing

__all__ = [
    "SCHEMA",
    "About",
    "EngineAbout",
    "InstanceAbout",
    "Machine",
    "RunAbout",
    "TraceAbout",
    "read_about",
]

SCHEMA = "equipoise.live/1"
NAME = "run.json"

State = Literal["running", "stopped", "complete"]
RunState = Literal["planned", "done", "stopped", "failed"]


class InstanceAbout(msgspec.Struct, frozen=True, kw_only=True):
    """One barrier of the engine.

    Parameters
    ----------
    name : str
        As in the tables.
    url : str
        Without name, password and query.
    ranks : int
    kv_capacity_tokens, max_batch : int, optional
        Of a rank, as the engine says or as configured; None: unknown.
    """

    name: str
    url: str
    ranks: int
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None


class EngineAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    kind: str
    model: str
    version: str | None
    instances: tuple[InstanceAbout, ...]
    prompts: str
    """How prompts were sent: ``ids`` (token ids), ``text`` (words, as many as make the tokens)."""


class TraceAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What was replayed."""

    name: str
    source: str
    digest: str
    """Of the requests as planned (SHA-256 of their columns)."""
    cut: str
    """How it was cut out of its file, in words."""
    requests: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the load came from."""

    cores: int
    cpu: str
    platform: str
    python: str


class RunAbout(msgspec.Struct, kw_only=True):
    """One policy, one repeat."""

    order: int
    """Position in the interleaving, from 0."""
    policy: str
    repeat: int
    seed: int
    state: RunState = "planned"
    started_at: str | None = None
    wall_s: float | None = None
    attempts: int = 0
    """How often it was begun."""
    drained: bool | None = None
    """Whether the engine said it was empty before the run began."""
    requests: int = 0
    """Rows of it."""
    failed: int = 0
    """Of them, those that were not answered in full."""
    late_p99_ms: float | None = None
    late_max_ms: float | None = None
    """How late this process handed requests on, in milliseconds; a queue of the router is not counted."""
    clock_steps: int = 0
    """How often the system clock was set while it ran; times are those of a clock that is not."""
    notes: tuple[str, ...] = ()


class About(msgspec.Struct, kw_only=True):
    """A live run as a whole: every run of it, done or not, in their order."""

    schema: str
    equipoise: str
    state: State
    started_at: str
    engine: EngineAbout
    trace: TraceAbout
    mode: Literal["open", "closed", "sessions"]
    scale: float
    """Factor on the trace's arrival and think times; 2: half as fast."""
    concurrency: int | None
    policies: tuple[str, ...]
    repeats: int
    first_seed: int
    prefixes: bool
    ttft_slo_ms: float | None
    tpot_slo_ms: float | None
    cost: str | None
    """Step cost the policies decided by."""
    warmup_requests: int
    drain_timeout_s: float
    timeout_s: float
    scrape_period_s: float
    on_failure: Literal["stop", "degrade"]
    machine: Machine
    runs: list[RunAbout]
    notes: list[str] = msgspec.field(default_factory=list)
    workers: tuple[str, ...] = ()
    """Addresses and what was said of them, as options take them."""
    token_ids: tuple[int, int] = (0, 0)
    """Prompts are made of ids from the first to the one before the last."""
    route: str = "/v1/completions"
    dp_size: int = 0
    """Ranks of a worker as configured; 0: as the engine shows."""
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None
    """As configured; what the engine says is with its instances."""
    probe: bool = False
    step_logs: tuple[str, ...] = ()
    ca_file: str | None = None
    insecure: bool = False
    """Whose certificates were believed."""

    def write(self, folder: Path) -> None:
        """Write ``run.json``, all of it or nothing."""
        with replacing(folder / NAME) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_about(folder: Path) -> About:
    """Read ``run.json`` of a folder.

    Raises
    ------
    InputError
        It is not there, is no such document, or of a later release.
    """
    path = folder / NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot be read ({reason})", where=str(path), fix="name the folder that equipoise live wrote"
        ) from error
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != SCHEMA:
            raise InputError(
                f"is of schema {schema[:40]!r}", where=str(path), fix=f"this release reads {SCHEMA!r}"
            )
        return msgspec.json.decode(data, type=About)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"is not what a live run writes ({str(error)[:120]})", where=str(path), fix="run it again"
        ) from error


class _Schema(msgspec.Struct):
    schema: str
