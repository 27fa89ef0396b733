"""`Ownership`: which instances are this router's, by what right, and whose the others are. It decides; it does no I/O.

A lease is held from the moment the beat that renewed it was *sent*, on this router's own monotone clock, so no clocks
are compared. After its end it is *unconfirmed*: nobody else can have taken it as long as the store is down for all, so
its owner goes on; whoever has taken it has a higher epoch, and to hear of that ends it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from equipoise.serve.replicas.spread import plan
from equipoise.serve.replicas.store import Beat, Row, Seen, Wish

__all__ = ["Mine", "Owner", "Ownership", "Timing"]

_log = logging.getLogger(__name__)
NEVER = float("inf")
LEAVING = "-"
"""Before the address of a router that gives its instances away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things may take.

    Parameters
    ----------
    ttl_s : float
        Of a lease, and of a router that is silent.
    beats : int
        Beats in that time.
    patience_beats : int
        So many beats in a row the plan must want an instance elsewhere before it is handed over.
    rebuild_s : float
        A new owner waits so long at most for what peers say before it places.
    hold_s : float
        A request waits so long at most for its instance to have an owner that answers.
    call_s : float
        A call between routers may take so long.
    flush_s : float
        How long news of tokens are gathered.
    gone_s : float
        A router that has been silent for so long is gone, and its requests with it.
    """

    ttl_s: float = 3.0
    beats: int = 6
    patience_beats: int = 3
    rebuild_s: float = 2.0
    hold_s: float = 10.0
    call_s: float = 2.0
    flush_s: float = 0.005
    gone_s: float = 6.0

    @property
    def beat_s(self) -> float:
        """Between two beats."""
        return self.ttl_s / self.beats


@dataclass(slots=True)
class Mine:
    """An instance of this router's."""

    epoch: int
    until_s: float
    """Confirmed until then."""
    serving: bool = False
    """Its ledger is rebuilt: it places."""
    unwanted: int = 0
    """Beats in a row that the plan wanted it elsewhere."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Somebody else's lease, as last heard."""

    router: str
    epoch: int
    url: str
    value: bytes = b""
    value_s: float = -NEVER
    """When its value was true, on this router's clock."""


@dataclass(slots=True)
class Ownership:
    """The leases of one router, and what it knows of the others'.

    Parameters
    ----------
    router : str
        Its name: another one after each start.
    url : str
        Where its peers reach it.
    timing : Timing
    on_gained, on_lost : callable
        Told name and epoch.
    on_moved : callable
        Told the name when another router's lease has changed hands.
    """

    router: str
    url: str
    timing: Timing
    on_gained: Callable[[str, int], None]
    on_lost: Callable[[str, int], None]
    on_moved: Callable[[str], None]
    names: tuple[str, ...] = ()
    mine: dict[str, Mine] = field(default_factory=dict)
    others: dict[str, Owner] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    """Address of each router that lives."""
    departing: set[str] = field(default_factory=set)
    """Those of them that take no more instances."""
    highest: dict[str, int] = field(default_factory=dict)
    """The highest epoch heard of, of each instance."""
    left_s: dict[str, float] = field(default_factory=dict)
    """When a router was seen for the last time, of those that are not seen any more."""
    up: bool = False
    """Whether the last beat went well."""
    failures: int = 0
    since_s: float = -NEVER
    """When `up` became what it is."""
    leaving: bool = False
    known_s: float = NEVER
    """When the last beat was sent of which it is known what became of it, well or not."""
    _beaten: bool = False

    def set_names(self, names: Sequence[str]) -> None:
        """These are the instances now."""
        self.names = tuple(names)
        for name in [name for name in self.mine if name not in self.names]:
            self._lose(name)
        for name in [name for name in self.others if name not in self.names]:
            del self.others[name]

    def beat(self, now_s: float, secret: str, values: Mapping[str, bytes]) -> Beat:
        """What to tell the store."""
        owners = dict.fromkeys(self.mine, self.router)
        owners |= {name: owner.router for name, owner in self.others.items()}
        routers = ({*self.members} - self.departing) | ({self.router} if not self.leaving else set())
        wanted = plan(self.names, owners, routers)
        waited = self._beaten and now_s - self.since_s >= self.timing.ttl_s
        wishes = []
        for name in self.names:
            own = self.mine.get(name)
            epoch = self.highest.get(name, 0)
            if own is not None:
                own.unwanted = own.unwanted + 1 if wanted.get(name) != self.router else 0
                if self.leaving or (self.up and own.serving and own.unwanted >= self.timing.patience_beats):
                    epoch = own.epoch
                    self._lose(name)
                    wishes.append(Wish(name, "drop", epoch))
                else:
                    wishes.append(Wish(name, "keep", own.epoch, values.get(name, b"")))
            elif name not in self.others and waited and wanted.get(name) == self.router:
                wishes.append(Wish(name, "take", epoch))
            else:
                wishes.append(Wish(name))
        url = LEAVING + self.url if self.leaving else self.url
        return Beat(self.router, url, self.timing.ttl_s, self.timing.ttl_s, secret, wishes)

    def seen(self, beat: Beat, seen: Seen, sent_s: float, now_s: float) -> None:
        """The store has answered."""
        self.known_s = sent_s
        if not self.up or not self._beaten:
            if self._beaten:
                _log.warning("the lease store answers again; %d instances owned", len(self.mine))
            # who joins, or comes back, lets a lease's time pass before it takes anything from others
            self.since_s = now_s if self._beaten else now_s - self.timing.ttl_s + 2 * self.timing.beat_s
        self.up, self.failures, self._beaten = True, 0, True
        for name in self.members.keys() - seen.members.keys():
            self.left_s[name] = now_s
        self.members = {name: url.removeprefix(LEAVING) for name, url in seen.members.items()}
        self.departing = {name for name, url in seen.members.items() if url.startswith(LEAVING)}
        for name in self.members:
            self.left_s.pop(name, None)
        wants = {wish.name: wish for wish in beat.wishes}
        for name, row in seen.rows.items():
            if name in self.names:
                self._row(name, row, wants[name], sent_s, now_s)

    def failed(self, error: Exception, sent_s: float, now_s: float) -> None:
        """The store has not answered."""
        self.known_s = sent_s
        self.failures += 1
        if self.up or self.failures == 1:
            self.up, self.since_s = False, now_s
            _log.error(
                "the lease store does not answer (%s): %d owned instances are served on, none changes hands",
                error,
                len(self.mine),
            )

    def heard(self, name: str, router: str, epoch: int) -> None:
        """A peer says that somebody holds an epoch: a higher one than the own ends the own lease."""
        if epoch <= self.highest.get(name, 0) or name not in self.names or router == self.router:
            return
        self.highest[name] = epoch
        if name in self.mine:
            _log.warning("instance %s is owned by %s now (epoch %d)", name, router, epoch)
            self._lose(name)
        self.others[name] = Owner(router, epoch, self.members.get(router, ""))
        self.on_moved(name)

    def confirmed(self, name: str, now_s: float) -> bool:
        """Whether the store surely lets nobody else take an instance now."""
        own = self.mine.get(name)
        return own is not None and now_s < own.until_s

    def asleep(self, now_s: float) -> bool:
        """Whether no beat was sent for a lease's time: the process was stopped, and knows nothing of what it owns."""
        return now_s - self.known_s >= self.timing.ttl_s

    def gone(self, router: str, now_s: float) -> bool:
        """Whether a router has been away so long that nothing of it is left; never while the store is down."""
        if not self.up or router in self.members:
            return False
        return now_s - self.left_s.setdefault(router, now_s) >= self.timing.gone_s

    def _row(self, name: str, row: Row, wish: Wish, sent_s: float, now_s: float) -> None:
        own = self.mine.get(name)
        if row.epoch < self.highest.get(name, 0) and row.router:
            return  # an answer from before what a peer has told
        if row.router == self.router:
            if own is None:
                if wish.want == "take":
                    self._gain(name, row.epoch, sent_s)
                return
            if own.epoch == row.epoch:
                own.until_s = sent_s + self.timing.ttl_s
            return
        if own is not None and (row.router or wish.want == "keep"):
            _log.warning("instance %s is lost to %s (epoch %d)", name, row.router or "nobody", row.epoch)
            self._lose(name)
        before = self.others.get(name)
        if not row.router:
            if before is not None:
                del self.others[name]
            return
        self.highest[name] = max(self.highest.get(name, 0), row.epoch)
        url = self.members.get(row.router, before.url if before and before.router == row.router else "")
        self.others[name] = Owner(row.router, row.epoch, url, row.value, now_s - row.age_s)
        if before is None or before.epoch != row.epoch or before.url != url:
            self.on_moved(name)

    def _gain(self, name: str, epoch: int, sent_s: float) -> None:
        self.mine[name] = Mine(epoch, sent_s + self.timing.ttl_s)
        self.highest[name] = epoch
        self.others.pop(name, None)
        _log.info("instance %s is owned (epoch %d)", name, epoch)
        self.on_gained(name, epoch)

    def _lose(self, name: str) -> None:
        own = self.mine.pop(name)
        self.on_lost(name, own.epoch)
