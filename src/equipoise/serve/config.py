"""The configuration of `equipoise serve`, checked before anything starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from equipoise.engines import WorkerSpec
from equipoise.errors import InputError
from equipoise.router.settings import Settings
from equipoise.serve.edge import Limits
from equipoise.serve.polling import Polling
from equipoise.serve.replicas.settings import Replicas
from equipoise.serve.settings import Forwarding, Timeouts

__all__ = ["ServeConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Everything `equipoise serve` can be told; each part is a table of the file.

    Parameters
    ----------
    workers : tuple of WorkerSpec
    workers_file : str, optional
        A watched file with more of them.
    workers_dns : str, optional
        ``HOST:PORT``: more of them, behind a name.
    engine : str
        Of workers that do not say.
    dp_size : int
        Ranks of workers that do not say; 0: as the engine says.
    policy : str
        With its parameters, as in ``equipoise compare``.
    cost : str
        A preset, ``v1``, ``v2``, ``MODEL:v1``, ``MODEL:v2``, or a file.
    seed : int
        Of the policy.
    kv_capacity_tokens, max_batch : int, optional
        Of a rank, where the engine does not say.
    tokenizer : str, optional
        The model's ``tokenizer.json``, or its folder: prompts are counted by it, not by their bytes.
    sglang_header_overrides : bool
        SGLang runs with ``SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1``: bodies of ``/generate`` stay as they came.
    host : str
        Where clients connect.
    port : int
        0: any free one.
    admin_host : str
        Where metrics and the admin routes are; other than loopback needs ``admin_token``.
    admin_port : int
        0: any free one.
    decide : bool
        Whether the main port serves the decision API.
    api_key : str, optional
        What clients have to show.
    admin_token : str, optional
        What the admin port asks for.
    gather_ms : float
        How long requests are gathered into one round.
    drain_s : float
        How long running streams may take to end after SIGTERM.
    decision_log : str, optional
        File that every decision is appended to, as JSON lines that read as a trace.
    shadows : tuple of str
        Policies that look on, for that log, the metrics and the page `/ui`.
    discovery_s : float
        From one look at the file or the name to the next.
    high_water_bytes, low_water_bytes : int
        Of a client's connection: above the first an engine is not read further, until below the second.
    router : Settings
    limits : Limits
    timeouts : Timeouts
    forwarding : Forwarding
    polling : Polling
    replicas : Replicas
    """

    workers: tuple[WorkerSpec, ...] = ()
    workers_file: str | None = None
    workers_dns: str | None = None
    engine: str = "vllm"
    dp_size: int = 0
    policy: str = "equipoise"
    cost: str = "h200"
    seed: int = 0
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None
    tokenizer: str | None = None
    sglang_header_overrides: bool = False
    host: str = "127.0.0.1"
    port: int = 30000
    admin_host: str = "127.0.0.1"
    admin_port: int = 29000
    decide: bool = True
    api_key: str | None = field(default=None, repr=False)
    admin_token: str | None = field(default=None, repr=False)
    gather_ms: float = 0.0
    drain_s: float = 60.0
    decision_log: str | None = None
    shadows: tuple[str, ...] = ()
    discovery_s: float = 2.0
    high_water_bytes: int = 128 << 10
    low_water_bytes: int = 32 << 10
    router: Settings = field(default_factory=Settings)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    forwarding: Forwarding = field(default_factory=Forwarding)
    polling: Polling = field(default_factory=Polling)
    replicas: Replicas = field(default_factory=Replicas)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("port", 0, 65_535),
            ("admin_port", 0, 65_535),
            ("dp_size", 0, 4_096),
            ("gather_ms", 0, 1_000),
            ("drain_s", 0, 86_400),
            ("discovery_s", 0.05, 3_600),
            ("high_water_bytes", 1 << 10, 1 << 30),
            ("low_water_bytes", 0, 1 << 30),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"{name} = {value}", fix=f"must be from {low:g} to {high:g}")
        if self.low_water_bytes >= self.high_water_bytes:
            raise InputError(
                f"low_water_bytes = {self.low_water_bytes}", fix="must be below high_water_bytes"
            )
        for part in (self.timeouts, self.polling, self.forwarding, self.limits):
            _check_numbers(part)
        self.replicas.check()
        if self.port and self.port == self.admin_port and self.host == self.admin_host:
            raise InputError(f"port {self.port} is both the main and the admin port", fix="name two")
        if self.admin_token is None and not _loopback(self.admin_host):
            raise InputError(
                f"the admin port would listen on {self.admin_host} for everybody",
                where="admin_host",
                fix="give admin_token, or stay on 127.0.0.1",
            )
        for name in ("api_key", "admin_token"):
            text = getattr(self, name)
            if text is not None and (len(text) < 8 or not text.isascii() or not text.isprintable()):
                raise InputError(f"{name} is no key", fix="use 8 or more printable ASCII characters")
        if self.api_key is not None:
            keyless = [w.url for w in self.workers if self.forwarding.key_of(w.instance or w.url) is None]
            if keyless or (self.forwarding.worker_key is None and (self.workers_file or self.workers_dns)):
                raise InputError(
                    f"clients need a key, and {keyless[0] if keyless else 'discovered workers'} would be open",
                    where="api_key",
                    fix="start the engines with a key and give it: --worker-api-key, or [forwarding] worker_key",
                )
        if not (self.workers or self.workers_file or self.workers_dns):
            raise InputError(
                "there is no worker", fix="give --worker-urls http://HOST:PORT, a file or a DNS name"
            )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_numbers(part: Any) -> None:
    for one in fields(part):
        value = getattr(part, one.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not 0 <= value <= 1 << 40:
            raise InputError(
                f"{one.name} = {value}", where=type(part).__name__.lower(), fix="must be 0 or more"
            )


def with_workers(config: ServeConfig, workers: tuple[WorkerSpec, ...]) -> ServeConfig:
    """The same with other workers."""
    return replace(config, workers=workers)
