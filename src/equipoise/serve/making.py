"""What a service is made of, from its configuration: the router, warmed up, and the file of its decisions."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.policies import Policy, parse
from equipoise.router import Arrival, InstanceSpec, Router
from equipoise.serve.config import ServeConfig
from equipoise.serve.shadows import shadow_list

__all__ = ["make_router", "open_log", "warm"]


def make_router(
    config: ServeConfig,
    policy: Policy,
    cost: StepCost,
    specs: list[InstanceSpec],
    now_s: float,
    sink: Any = None,
) -> Router:
    """The router of a configuration."""
    return Router(
        specs,
        policy,
        cost,
        config.router,
        now_s,
        config.seed,
        sink=sink,
        shadows=[parse(text) for text in shadow_list(config.shadows, "shadows")],
    )


def warm(config: ServeConfig, policy: Policy, cost: StepCost) -> None:
    """Compile or load what decides, on a router of its own, so that the first request does not wait for it."""
    router = make_router(config, policy, cost, [InstanceSpec("warm", 2)], 0.0)
    for action in router.arrived(0.0, Arrival("warm", 1)):
        lease = getattr(action, "lease", None)
        if lease is not None:
            router.tokens(0.0, lease, 1)
            router.finished(0.0, lease)
    router.tick(0.0)


def open_log(path: str) -> IO[bytes]:
    """The file that decisions are appended to."""
    try:
        return Path(path).open("ab", buffering=1 << 16)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror})", where="--decision-log", fix="name another file"
        ) from error
