"""`Owners`: several routers before one pool. Each instance has one that places; the bytes stay where they came in.

Hung on a `Driver`, it answers ``place`` for every request: by the own ledger if the instance is this router's, by
asking its owner otherwise. What happens to a request later goes to whoever has it in the ledger, and moves with that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from equipoise.router import Arrival, Dispatch, InstanceSpec, Reject
from equipoise.serve.driver import Driver, Lease
from equipoise.serve.replicas.keeper import Keeper
from equipoise.serve.replicas.ownership import Ownership, Timing
from equipoise.serve.replicas.peers import Peer, PeerError
from equipoise.serve.replicas.server import InternalServer, WrongRouterError
from equipoise.serve.replicas.shared import SharedLease
from equipoise.serve.replicas.store import Store, StoreError
from equipoise.serve.replicas.wire import (
    NOT_OWNER,
    QUEUED,
    Ask,
    Held,
    LeasesOf,
    Load,
    Placed,
    Places,
    State,
    States,
    StatesTaken,
    Told,
    decode,
    encode,
)

__all__ = ["Owners"]

_log = logging.getLogger(__name__)

LOOK_S = 0.02
"""Between two looks of a request that waits for an owner."""


class Owners:
    """Shares the instances of a pool with other routers.

    Parameters
    ----------
    driver : Driver
        Its router is given the instances it owns; it must begin without any.
    store : Store
    advertise : str
        Address at which peers reach this router; a port of 0 is filled in when it is known.
    listen : tuple of str and int, optional
        Where its server binds; the host and port of `advertise` if left out.
    timing : Timing
    secret : str
        What peers show; drawn by the first of them and kept in the store if left out.
    name : str, optional
    """

    def __init__(
        self,
        driver: Driver,
        store: Store,
        advertise: str,
        *,
        listen: tuple[str, int] | None = None,
        timing: Timing = Timing(),  # noqa: B008  it is frozen
        secret: str = "",
        name: str | None = None,
    ) -> None:
        self.driver, self.store, self.timing = driver, store, timing
        self.name = name or secrets.token_hex(6)
        self.ownership = Ownership(self.name, advertise, timing, self._gained, self._lost, self._moved)
        self.keeper = Keeper(self)
        self.far: dict[str, dict[str, SharedLease]] = {}
        """By instance: requests whose bytes are here and whose ledger is elsewhere."""
        self.peers: dict[str, Peer] = {}
        self.counts = dict.fromkeys(
            ("asked", "asked_again", "placed_far", "rebuilt", "handed_over", "brought_home", "replicas_gone"),
            0,
        )
        self.rebuild_s: list[float] = []
        """How long the last rebuilds took."""
        self._listen = listen
        self._configured, self._secret = bool(secret), secret or secrets.token_urlsafe(24)
        self._let_in = self._configured
        self._specs: dict[str, InstanceSpec] = {}
        self._targets: dict[str, Any] = {}
        self._waits: dict[str, asyncio.Future[Placed]] = {}
        self._loads: dict[str, tuple[float, Load]] = {}
        self._sent: dict[str, int] = {}
        self._unheard: set[SharedLease] = set()
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = random.Random(self.name)
        self.server = InternalServer(
            {
                "place": self.keeper.place,
                "state": self.keeper.state,
                "told": self._told,
                "leases": self._leases_of,
            },
            lambda: self._secret if self._let_in else "",
        )
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        driver.lease_type = self._lease
        driver.owners = self

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve peers, and begin to beat."""
        host, port = self._listen or _address(self.ownership.url)
        await self.server.start(host, port)
        if self.ownership.url.endswith(":0"):
            self.ownership.url = f"{self.ownership.url[:-2]}:{self.server.port}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )
        self._spawn(self._beats())

    def set_instances(self, specs: Sequence[InstanceSpec], targets: Sequence[Any] | None = None) -> None:
        """These are the instances of the pool now, and how they are reached."""
        given = list(targets) if targets is not None else [spec.name for spec in specs]
        self._specs = {spec.name: spec for spec in specs}
        self._targets = {spec.name: target for spec, target in zip(specs, given, strict=True)}
        self.ownership.set_names(list(self._specs))
        self.sync()

    async def leave(self) -> None:
        """Give all instances away; requests under way here stay, and their new owners are told of them."""
        self.ownership.leaving = True
        await self._beat()
        await self._beat()

    async def close(self) -> None:
        """End it all: the store is told that this router is gone."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.ownership.leaving = True
        beat = self.ownership.beat(self._now_s(), self._secret, {})
        with contextlib.suppress(StoreError):
            await self.store.beat(_without_address(beat))
        for peer in self.peers.values():
            peer.close()
        self.keeper.close()
        await self.server.close()
        if self._session is not None:
            await self._session.close()
        await self.store.close()

    # -- requests ------------------------------------------------------------------------------------------------

    async def place(self, arrival: Arrival, *, avoid: str | None = None) -> Lease | Reject:
        """Have a request placed by whoever owns the instance it should go to."""
        began_s = self._now_s()
        until_s = began_s + self.timing.hold_s
        again = False
        while True:
            name = self._choose(avoid)
            if name is None:
                if self._now_s() >= until_s:
                    return self._refused(arrival, "no_owner")
                await asyncio.sleep(LOOK_S)
                continue
            if again:
                self.counts["asked_again"] += 1
            again = True
            if name in self.ownership.mine:
                placed = await self.driver.place_here(arrival, avoid=avoid)
                if isinstance(placed, Lease) or placed.status != NOT_OWNER:
                    return placed
                continue
            found = await self._place_far(arrival, avoid, name, self._now_s() - began_s)
            if found is not None:
                return found
            if self._now_s() >= until_s:
                return self._refused(arrival, "owner_unreachable")
            await asyncio.sleep(LOOK_S)

    def changed(self, lease: SharedLease) -> None:
        """Something has happened to a request whose ledger is elsewhere."""
        owner = self.ownership.others.get(lease.name)
        peer = self.peer(owner.router, owner.url) if owner is not None else None
        if peer is not None:
            peer.tell(lease, urgent=lease.ended is not None)
        elif lease.name not in self._specs and lease.ended is not None:
            self._drop(lease)  # the instance is no more: nobody keeps a ledger of it

    def loads(self) -> dict[str, Load]:
        """Of what this router owns."""
        instances = self.driver.router.instances
        sums = self.driver.router.loads()
        return {
            spec.name: Load(batch, context, spec.width, is_open)
            for spec, (batch, context, is_open) in zip(instances, sums, strict=True)
        }

    def peer(self, router: str, url: str = "") -> Peer | None:
        """Another router, by name; none if its address is not known."""
        url = url or self.ownership.members.get(router, "")
        peer = self.peers.get(router)
        if peer is not None and (not url or peer.url == url.rstrip("/")):
            return peer
        if not url or self._session is None:
            return None
        if peer is not None:
            peer.close()
        peer = self.peers[router] = Peer(
            (self.name, self.ownership.url),
            router,
            url,
            self._session,
            self.timing,
            lambda: self._secret,
            self._places,
            self._taken,
        )
        return peer

    def sync(self) -> None:
        """Tell the own router which instances it places on."""
        serving = [name for name, own in self.ownership.mine.items() if own.serving]
        specs = [self._specs[name] for name in self._specs if name in serving]
        self.driver.set_instances(
            specs, [self._targets[spec.name] for spec in specs], warm=[spec.name for spec in specs]
        )

    # -- placing elsewhere ---------------------------------------------------------------------------------------

    def _choose(self, avoid: str | None) -> str | None:
        """The instance with the least load a rank, on coarse and old data; none: none has an owner."""
        best: tuple[bool, bool, float, float] | None = None
        chosen = None
        own = self.loads() if self.ownership.mine else {}
        for name in self._specs:
            load, sent, suspect = own.get(name), 0, False
            if load is None:
                owner = self.ownership.others.get(name)
                if owner is None:
                    continue
                peer = self.peers.get(owner.router)
                suspect = not owner.url or (peer is not None and peer.suspect)
                load, sent = self._load_of(name, owner.value, owner.value_s), self._sent.get(name, 0)
            key = (
                suspect or name == avoid,
                not load.open,
                (load.requests + sent) / load.ranks,
                self._random.random(),
            )
            if best is None or key < best:
                best, chosen = key, name
        return chosen

    def _load_of(self, name: str, value: bytes, value_s: float) -> Load:
        known_s, load = self._loads.get(name, (float("-inf"), None))
        if load is None or value_s > known_s:
            try:
                load = decode(value, Load) if value else Load(ranks=self._specs[name].width)
            except ValueError:
                load = Load(ranks=self._specs[name].width)
            self._loads[name] = (value_s, load)
            self._sent[name] = 0
        return load

    def _places(self, peer: Peer, places: Places) -> None:
        now_s = self._now_s()
        for name, load in places.loads.items():
            self._loads[name] = (now_s, load)
            self._sent[name] = 0

    async def _place_far(
        self, arrival: Arrival, avoid: str | None, name: str, waited_s: float
    ) -> SharedLease | Reject | None:
        """Ask the owner; none: it is not the owner, or does not answer."""
        owner = self.ownership.others[name]
        peer = self.peer(owner.router, owner.url)
        if peer is None:
            return None
        self.counts["asked"] += 1
        self._sent[name] = self._sent.get(name, 0) + 1
        gid = f"{self.name}:{next(self._numbers)}"
        ask = Ask(
            gid,
            arrival.context_tokens,
            arrival.budget_tokens,
            arrival.session,
            arrival.request_class,
            arrival.body_bytes,
            waited_s,
            avoid,
        )
        future = self._waits[gid] = asyncio.get_running_loop().create_future()
        try:
            placed = await peer.ask(ask)
            if placed.status == QUEUED:
                placed = await self._wait(peer, gid, future)
        except PeerError as error:
            _log.warning("router %s does not place: %s", peer.name, error)
            peer.tell(Withdrawn(gid), urgent=True)
            return None
        except asyncio.CancelledError:
            peer.tell(Withdrawn(gid), urgent=True)
            raise
        finally:
            del self._waits[gid]
        if placed.status == NOT_OWNER:
            return None
        if placed.status != 200:
            return Reject(arrival.request_id, placed.status, placed.reason, placed.retry_after_s)
        if placed.instance not in self._targets:
            peer.tell(Withdrawn(gid), urgent=True)
            return None
        return self._far_lease(arrival, placed)

    async def _wait(self, peer: Peer, gid: str, future: asyncio.Future[Placed]) -> Placed:
        """It waits in the owner's queue, as long as there is that owner."""
        until_s = self._now_s() + self.driver.router.settings.queue_ttl_s + self.timing.hold_s
        while True:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(future), self.timing.beat_s)
            if self.ownership.up and peer.name not in self.ownership.members:
                return Placed(gid, NOT_OWNER)
            if self._now_s() >= until_s:
                raise PeerError("its queue does not move")

    def _far_lease(self, arrival: Arrival, placed: Placed) -> SharedLease:
        lease = SharedLease(
            self.driver,
            Dispatch(arrival.request_id, -1, -1, placed.rank, placed.reason),
            self._targets[placed.instance],
        )
        lease.far, lease.gid, lease.name, lease.owners = True, placed.gid, placed.instance, self
        lease.context_tokens = arrival.context_tokens
        self.counts["placed_far"] += 1
        self.far.setdefault(lease.name, {})[lease.gid] = lease
        own = self.ownership.mine.get(lease.name)
        if own is not None:
            if own.serving:
                self._bring_home(lease)
        elif self.ownership.highest.get(lease.name, 0) > placed.epoch:
            self.changed(lease)  # it has changed hands meanwhile
        return lease

    def _refused(self, arrival: Arrival, reason: str) -> Reject:
        return Reject(arrival.request_id, 503, reason, self.driver.router.settings.retry_after_min_s)

    def _lease(self, driver: Driver, dispatch: Dispatch, target: Any) -> SharedLease:
        lease = SharedLease(driver, dispatch, target)
        lease.owners, lease.name = self, driver.router.instances[dispatch.instance].name
        return lease

    # -- what peers say ------------------------------------------------------------------------------------------

    async def _told(self, told: Told) -> bool:
        for placed in told.placed:
            future = self._waits.get(placed.gid)
            if future is not None and not future.done():
                future.set_result(placed)
            elif future is None and placed.status == 200 and not self._knows(placed):
                peer = self.peer(told.router)
                if peer is not None:  # who asked has left
                    peer.tell(Withdrawn(placed.gid), urgent=True)
        for gid, reason in told.ended:
            for leases in self.far.values():
                lease = leases.get(gid)
                if lease is not None:
                    lease.taken(reason)
                    self._drop(lease)
                    break
        return True

    def _knows(self, placed: Placed) -> bool:
        return placed.gid in self.far.get(placed.instance, {})

    async def _leases_of(self, question: LeasesOf) -> list[State]:
        if question.to != self.name:
            raise WrongRouterError(question.to)
        self.ownership.heard(question.instance, question.router, question.epoch)
        leases = self.far.get(question.instance, {})
        return [lease.state() for lease in leases.values() if lease.ended is None]

    def _taken(self, peer: Peer, states: list[State], taken: StatesTaken) -> None:
        """A peer has heard what was told."""
        elsewhere = {held.instance: held for held in taken.elsewhere}
        gone = set(taken.gone)
        for state in states:
            lease = self.far.get(state.instance, {}).get(state.gid)
            if lease is None:
                continue
            if state.instance in elsewhere:
                self._unheard.add(lease)
            elif state.gid in gone:
                lease.taken("expired")
                self._drop(lease)
            elif state.ended:
                self._drop(lease)
        for held in elsewhere.values():
            if held.router:
                self.ownership.heard(held.instance, held.router, held.epoch)

    def _drop(self, lease: SharedLease) -> None:
        leases = self.far.get(lease.name)
        if leases is not None:
            leases.pop(lease.gid, None)
            if not leases:
                del self.far[lease.name]
        self._unheard.discard(lease)

    # -- ownership changes ---------------------------------------------------------------------------------------

    def _gained(self, name: str, epoch: int) -> None:
        self.keeper.begin(name)
        self._spawn(self._rebuild(name, epoch))

    async def _rebuild(self, name: str, epoch: int) -> None:
        """Ask all who live for their requests on an instance, then place on it."""
        began_s = self._now_s()
        asked: set[str] = set()
        mine = self.ownership.mine
        former = [
            asyncio.ensure_future(self._ask_former(peer, name, epoch))
            for router, peer in list(self.peers.items())
            if router not in self.ownership.members
        ]
        self._tasks.update(former)
        for task in former:
            task.add_done_callback(self._done)
        if former:
            await asyncio.wait(former, timeout=self.timing.rebuild_s / 4)
        while True:
            left = self.ownership.members.keys() - asked - {self.name}
            peers = [peer for router in left if (peer := self.peer(router)) is not None]
            answers = await asyncio.gather(
                *(peer.leases_of(LeasesOf(self.name, peer.name, name, epoch)) for peer in peers),
                return_exceptions=True,
            )
            for peer, answer in zip(peers, answers, strict=True):
                if isinstance(answer, list):
                    asked.add(peer.name)
                    self.keeper.early(name, peer.name, answer)
                elif not isinstance(answer, PeerError):
                    raise answer
            if name not in mine or mine[name].epoch != epoch:
                return
            left = self.ownership.members.keys() - asked - {self.name}
            if not left or self._now_s() - began_s >= self.timing.rebuild_s:
                break
            await asyncio.sleep(self.timing.beat_s / 4)
        if left:
            _log.warning("%d routers did not say what they have on %s", len(left), name)
        mine[name].serving = True  # no turn of the loop from here to the end
        self.sync()
        for lease in list(self.far.get(name, {}).values()):
            self._bring_home(lease)
        found = self.keeper.take_over(name)
        self.counts["rebuilt"] += 1
        self.rebuild_s = [*self.rebuild_s[-63:], self._now_s() - began_s]
        _log.info("instance %s: %d requests of peers taken over", name, found)

    async def _ask_former(self, peer: Peer, name: str, epoch: int) -> None:
        """A router that the store does not see any more may be cut off from the store alone, and go on placing."""
        with contextlib.suppress(PeerError):
            states = await peer.leases_of(LeasesOf(self.name, peer.name, name, epoch))
            await self.keeper.state(States(peer.name, peer.url, states))

    async def _end_gone(self, peer: Peer) -> None:
        """A router has been silent for long: if it does not answer either, its requests are no more."""
        try:
            await peer.leases_of(LeasesOf(self.name, peer.name, "", 0))
        except PeerError as error:
            self.counts["replicas_gone"] += 1
            found = self.keeper.peer_gone(peer.name)
            _log.warning("router %s is gone with %d requests: %s", peer.name, found, error)
            if self.peers.get(peer.name) is peer:
                del self.peers[peer.name]
            peer.close()
        else:
            self.ownership.left_s[peer.name] = self._now_s()

    def _bring_home(self, lease: SharedLease) -> None:
        """A request of this router comes into its own ledger."""
        self._drop(lease)
        for peer in self.peers.values():
            peer.forget(lease.gid)
        if lease.ended is not None:
            return
        driver = self.driver
        key = driver.adopt(
            lease, lease.gid, lease.name, lease.rank, lease.context_tokens, lease.count, lease.prompt
        )
        if key is None:
            lease.taken("instance_changed")
            return
        lease.far = False
        self.counts["brought_home"] += 1

    def _lost(self, name: str, epoch: int) -> None:
        """Somebody else's now: requests whose bytes are here are told to them, those of peers are forgotten."""
        self.keeper.forget(name)
        driver = self.driver
        rows = [row for row in driver.router.snapshot() if row["instance"] == name]
        self.sync()
        for row in rows:
            key = int(row["lease"])
            lease = driver.leases.pop(key, None)
            driver.act(driver.router.aborted(driver.now_s(), key, "moved"))
            if not isinstance(lease, SharedLease) or lease.ended is not None:
                continue
            if self.keeper.let_go(lease):
                continue
            lease.far, lease.name = True, name
            lease.gid = lease.gid or f"{self.name}:{next(self._numbers)}"
            lease.context_tokens, lease.count = int(row["context_tokens"]), int(row["output_tokens"])
            self.far.setdefault(name, {})[lease.gid] = lease
            self.counts["handed_over"] += 1
        if not driver.router.instances:
            driver.turn_away(NOT_OWNER, "not_owner")
        if self.far.get(name):
            self._moved(name)

    def _moved(self, name: str) -> None:
        """An instance of others has another owner: it is told of all requests there."""
        self._loads.pop(name, None)
        self._sent.pop(name, None)
        for lease in list(self.far.get(name, {}).values()):
            for peer in self.peers.values():
                peer.forget(lease.gid)
            self.changed(lease)

    # -- beats ---------------------------------------------------------------------------------------------------

    async def _beats(self) -> None:
        while not self._closed:  # client libraries have been seen to swallow a cancellation
            began_s = time.monotonic()
            try:
                await self._beat()
            except Exception:  # a bug of ours must not end the leases
                _log.exception("a beat failed")
            await asyncio.sleep(max(self.timing.beat_s - (time.monotonic() - began_s), 0.0))

    async def _beat(self) -> None:
        values = {name: encode(load) for name, load in self.loads().items()}
        sent_s = self._now_s()
        beat = self.ownership.beat(sent_s, self._secret, values)
        try:
            seen = await self.store.beat(beat)
        except StoreError as error:
            self.ownership.failed(error, self._now_s())
        else:
            if not self._configured:
                self._secret, self._let_in = seen.secret, True
            self.ownership.seen(beat, seen, sent_s, self._now_s())
        unheard, self._unheard = self._unheard, set()
        for lease in unheard:
            self.changed(lease)
        for peer in [peer for name, peer in self.peers.items() if self.ownership.gone(name, sent_s)]:
            self.ownership.left_s[peer.name] = self._now_s()  # asked again after as long
            self._spawn(self._end_gone(peer))

    def held(self, name: str) -> Held:
        """Who owns an instance, as far as is known."""
        own = self.ownership.mine.get(name)
        if own is not None:
            return Held(name, self.name, own.epoch)
        owner = self.ownership.others.get(name)
        return Held(name, "", 0) if owner is None else Held(name, owner.router, owner.epoch)

    def aborted_by_owner(self, router: str, gid: str) -> Any:
        """What a lease kept for a peer does when the router takes it away."""
        return functools.partial(self.keeper.ended, router, gid)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("work between routers failed", exc_info=task.exception())

    def _now_s(self) -> float:
        return time.monotonic()


class Withdrawn:
    """A request that is wanted no more, wherever it is in its owner's hands."""

    __slots__ = ("gid",)

    def __init__(self, gid: str) -> None:
        self.gid = gid

    def state(self) -> State:
        """It has ended."""
        return State(self.gid, "", -1, 0, ended="cancelled")


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rstrip("/").rpartition(":")
    return host.strip("[]"), int(port)


def _without_address(beat: Any) -> Any:
    return type(beat)(beat.router, "", beat.ttl_s, beat.grace_s, beat.secret, beat.wishes)
