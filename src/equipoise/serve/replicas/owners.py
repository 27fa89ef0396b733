"""`Owners`: several routers before one pool. Each instance has one that places; the bytes stay where they came in.

Hung on a `Driver`, it answers ``place`` for every request: by the own ledger if the instance is this router's, by
asking its owner otherwise. What happens to a request later goes to whoever has it in the ledger, and moves with that.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from equipoise.router import Arrival, Dispatch, InstanceSpec, Reject
from equipoise.serve.driver import Driver
from equipoise.serve.lease import Lease
from equipoise.serve.replicas.asking import Asking
from equipoise.serve.replicas.beats import Beats
from equipoise.serve.replicas.choice import Choice
from equipoise.serve.replicas.circle import Circle
from equipoise.serve.replicas.drains import Drains
from equipoise.serve.replicas.far import Far
from equipoise.serve.replicas.keeper import Keeper
from equipoise.serve.replicas.moves import Moves
from equipoise.serve.replicas.ownership import Ownership, Timing
from equipoise.serve.replicas.relay import Relay
from equipoise.serve.replicas.server import InternalServer
from equipoise.serve.replicas.shared import SharedLease
from equipoise.serve.replicas.store import Store
from equipoise.serve.replicas.wire import NOT_OWNER, Held, Load

__all__ = ["Owners"]

_log = logging.getLogger(__name__)

LOOK_S = 0.02
"""Between two looks of a request that waits for an owner."""
FLUSH_S = 1.0
"""At the end peers are given so long to hear the last news."""
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It goes on while the machine sleeps: a lease is not longer for that."""
COUNTS = (
    *(
        "asked",
        "asked_again",
        "placed_far",
        "gained",
        "lost",
        "rebuilt",
        "handed_over",
        "brought_home",
        "adopted",
    ),
    *("replicas_gone", "woken", "relayed"),
)


class Owners:
    """Shares the instances of a pool with other routers.

    Parameters
    ----------
    driver : Driver
        Its router is given the instances it owns; it must begin without any.
    store : Store
    advertise : str
        Address at which peers reach this router; a port of 0 is filled in when it is known.
    listen : tuple of str and int, or socket, optional
        Where its server binds; the host and port of `advertise` if left out.
    timing : Timing
    secret : str
        What peers show; drawn by the first of them and kept in the store if left out.
    name : str, optional

    Attributes
    ----------
    specs, targets : dict
        The instances of the pool, and how they are reached, by name.
    on_owned : callable
        Told the name of an instance when its ledger is complete and before anything is placed on it.
    """

    def __init__(
        self,
        driver: Driver,
        store: Store,
        advertise: str,
        *,
        listen: tuple[str, int] | socket.socket | None = None,
        timing: Timing = Timing(),  # noqa: B008  it is frozen
        secret: str = "",
        name: str | None = None,
    ) -> None:
        self.driver, self.store, self.timing = driver, store, timing
        self.name = name or secrets.token_hex(6)
        self.counts = dict.fromkeys(COUNTS, 0)
        self.specs: dict[str, InstanceSpec] = {}
        self.targets: dict[str, Any] = {}
        self.circle = Circle(self)
        self.peers, self.peer, self.forget = self.circle.of, self.circle.peer, self.circle.forget
        self.on_owned: Callable[[str], None] = lambda name: None
        self.keeper, self.far, self.asking = Keeper(self), Far(self), Asking(self)
        self.choice, self.moves = Choice(self), Moves(self)
        self.drains, self.relay = Drains(self), Relay(self)
        moves = self.moves
        self.ownership = Ownership(self.name, advertise, timing, moves.gained, moves.lost, moves.moved)
        self._listen = listen
        self.beats = Beats(self, store, secret)
        self.awake = self.beats.awake
        self._tasks: set[asyncio.Task[None]] = set()
        self.server = InternalServer(
            {
                "place": self.keeper.place,
                "state": self.keeper.state,
                "told": self.asking.told,
                "leases": self.far.leases_of,
                "drain": self.drains.asked,
                "relay": self.relay.asked,
            },
            self.beats.key,
        )
        driver.lease_type = self._lease
        driver.owners = self

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve peers, and begin to beat."""
        await self.server.start(self._listen or _address(self.ownership.url))
        if self.ownership.url.endswith(":0"):
            self.ownership.url = f"{self.ownership.url[:-2]}:{self.server.port}"
        self.circle.start()
        self.spawn(self.beats.run())

    def set_instances(self, specs: Sequence[InstanceSpec], targets: Sequence[Any] | None = None) -> None:
        """These are the instances of the pool now, and how they are reached."""
        given = list(targets) if targets is not None else [spec.name for spec in specs]
        self.specs = {spec.name: spec for spec in specs}
        self.targets = {spec.name: target for spec, target in zip(specs, given, strict=True)}
        self.ownership.set_names(list(self.specs))
        self.sync()
        self.driver.offer()

    async def leave(self) -> None:
        """Give all instances away; requests under way here stay, and their new owners are told of them.

        Where there is nobody to take them they stay.
        """
        if self.ownership.members.keys() - self.ownership.departing - {self.name}:
            self.ownership.leaving = True
            await self.beats.once()
            await self.beats.once()

    async def close(self) -> None:
        """End it all: the store is told that this router is gone."""
        end_s = self.now_s() + FLUSH_S
        while self.circle.untold and self.now_s() < end_s:
            await asyncio.sleep(LOOK_S)
        self.beats.closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.beats.last()
        self.keeper.close()
        await self.circle.close()
        await self.server.close()
        await self.store.close()

    # -- requests ------------------------------------------------------------------------------------------------

    async def place(self, arrival: Arrival, *, avoid: str | None = None) -> Lease | Reject:
        """Have a request placed by whoever owns the instance it should go to."""
        began_s = self.now_s()
        until_s = began_s + self.timing.hold_s
        again = False
        while True:
            await self.awake()
            name = self.choice.instance(avoid)
            if name is None:
                if self.now_s() >= until_s:
                    return self._refused(arrival, "no_owner")
                await asyncio.sleep(LOOK_S)
                continue
            self.counts["asked_again"] += again
            again = True
            if name in self.ownership.mine:
                self.choice.placing(name, 1)
                try:
                    placed = await self.driver.place_here(arrival, avoid=avoid)
                finally:
                    self.choice.placing(name, -1)
                if isinstance(placed, Lease) or placed.status != NOT_OWNER:
                    return placed
                continue
            found = await self.asking.place(arrival, avoid, name, self.now_s() - began_s)
            if found is not None:
                return found
            if self.now_s() >= until_s:
                return self._refused(arrival, "owner_unreachable")
            await asyncio.sleep(LOOK_S)

    def loads(self) -> dict[str, Load]:
        """Of what this router owns."""
        instances = self.driver.router.instances
        sums = self.driver.router.loads()
        return {
            spec.name: Load(batch, context, spec.width, is_open, self.drains.of(spec.name))
            for spec, (batch, context, is_open) in zip(instances, sums, strict=True)
        }

    def reach(self) -> list[Any]:
        """Targets of others to which requests can be sent."""
        others = self.ownership.others
        return [self.targets[name] for name in self.specs if name in others and self.choice.load(name).open]

    def info(self) -> dict[str, Any]:
        """What ``GET /server_info`` tells of them."""
        return {
            "router_name": self.name,
            "routers": len(self.ownership.members),
            "owned": len(self.ownership.mine),
            "untold": sum(peer.untold for peer in self.peers.values()),
        }

    # -- peers ---------------------------------------------------------------------------------------------------

    def held(self, name: str) -> Held:
        """Who owns an instance, as far as is known."""
        own = self.ownership.mine.get(name)
        if own is not None:
            return Held(name, self.name, own.epoch)
        owner = self.ownership.others.get(name)
        return Held(name, "", 0) if owner is None else Held(name, owner.router, owner.epoch)

    def aborted_by_owner(self, router: str, gid: str) -> Callable[[str], None]:
        """What a lease kept for a peer does when the router takes it away."""
        return functools.partial(self.keeper.ended, router, gid)

    # -- inside --------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Tell the own router which instances it places on; nothing is placed yet."""
        serving = {name for name, own in self.ownership.mine.items() if own.serving}
        specs = [spec for name, spec in self.specs.items() if name in serving]
        targets = [self.targets[spec.name] for spec in specs]
        self.driver.set_instances(specs, targets, warm=[spec.name for spec in specs], offer=False)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the rest; what goes wrong with it is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def now_s(self) -> float:
        """Time that goes on whatever happens to this process."""
        return time.clock_gettime(CLOCK)

    def beaten(self, sent_s: float) -> None:
        """The store has been spoken to."""
        self.drains.learn()
        self.far.tell_again()
        for peer in [peer for name, peer in self.peers.items() if self.ownership.gone(name, sent_s)]:
            self.ownership.left_s[peer.name] = self.now_s()  # asked again after as long
            self.spawn(self.moves.end_gone(peer))

    def _refused(self, arrival: Arrival, reason: str) -> Reject:
        return Reject(arrival.request_id, 503, reason, self.driver.router.settings.retry_after_min_s)

    def _lease(self, driver: Driver, dispatch: Dispatch, target: Any) -> SharedLease:
        lease = SharedLease(driver, dispatch, target)
        lease.owners, lease.name = self, driver.router.instances[dispatch.instance].name
        return lease

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("work between routers failed", exc_info=task.exception())


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rstrip("/").rpartition(":")
    return host.strip("[]"), int(port)
