"""A service joins the others before its pool."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from equipoise.errors import InputError
from equipoise.serve.driver import Driver
from equipoise.serve.replicas.owners import Owners
from equipoise.serve.replicas.settings import Replicas, host_and_port
from equipoise.serve.replicas.store import RedisStore, StoreError
from equipoise.serve.sockets import listen
from equipoise.serve.targets import Target

__all__ = ["check_store", "internal_socket", "join", "pool_rows", "said"]

STORE_TIMEOUT_S = 0.5


def internal_socket(replicas: Replicas) -> socket.socket:
    """Where the others reach this router.

    Raises
    ------
    InputError
        The port cannot be used.
    """
    return listen(*host_and_port(replicas.listen or replicas.advertise, "listen"), "replicas-listen")


def join(driver: Driver, replicas: Replicas, sock: socket.socket) -> Owners:
    """The owners of a service that has bound its internal port; to be started.

    Raises
    ------
    InputError
        The address of Redis is none, or its client is missing.
    """
    assert replicas.redis is not None
    host, port = host_and_port(replicas.advertise, "advertise")
    port = port or sock.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return Owners(
        driver,
        RedisStore(replicas.redis, replicas.pool, min(STORE_TIMEOUT_S, replicas.ttl_s / 3)),
        f"http://{shown}:{port}",
        listen=sock,
        timing=replicas.timing,
        secret=replicas.token or "",
    )


def said(owners: Owners, replicas: Replicas) -> str:
    """What is said of them at the start."""
    return (
        f"router {owners.name} of pool {replicas.pool!r}: instances are shared through {replicas.shown};"
        f" the others call {owners.ownership.url}"
    )


async def check_store(replicas: Replicas) -> str:
    """What is wrong with Redis; empty: nothing."""
    assert replicas.redis is not None
    try:
        store = RedisStore(replicas.redis, replicas.pool, 2.0)
    except InputError as error:
        return str(error)
    try:
        await store.check()
    except StoreError as error:
        return str(error)
    finally:
        await store.close()
    return ""


def pool_rows(owners: Owners, problem: Callable[[str], str]) -> list[dict[str, Any]]:
    """Instances of other owners, in the words of ``GET /workers``."""
    rows = []
    for name, target in owners.targets.items():
        if owners.driver.index(name) is not None:
            continue
        owner = owners.held(name).router
        load = owners.choice.load(name)
        assert isinstance(target, Target)
        rows.append(
            {
                "name": name,
                "url": target.url,
                "engine": target.nodes[0].engine.kind,
                "dp_size": target.ranks,
                "state": "elsewhere" if owner and owner != owners.name else "without_owner",
                "reason": "",
                "owner": owner,
                "problem": problem(name),
                "is_healthy": bool(owner) and load.open,
                "running": load.requests,
                "context_tokens": load.context_tokens,
                "step_price": None,
                "drained_ranks": owners.drains.of(name),
                "ranks": target.names(),
            }
        )
    return rows
