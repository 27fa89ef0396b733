"""`Books`: the router's tables with the names of requests beside them, and how a lease ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.policies import Policy, parse
from equipoise.policies.api import RANK_MASK
from equipoise.policies.rules import UNLIMITED_BATCH, UNLIMITED_TOKENS
from equipoise.router.admission import ReleaseRate
from equipoise.router.decisions import Decision, Scribe
from equipoise.router.events import Abort, Action, InstanceSpec, Reject
from equipoise.router.health import Health
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import COUNT, INDEX_MASK, KEY_BITS, NOBODY
from equipoise.router.reasons import STATUS, AbortReason, PlaceReason, RejectReason, Rung
from equipoise.router.sessions import Session, Sessions
from equipoise.router.settings import Settings
from equipoise.router.shadows import Shadows, ShadowView
from equipoise.router.tables import Tables, Told
from equipoise.router.view import RouterView, lease_rows, look

__all__ = ["MOST_LEASE", "NEVER", "REASONS", "RUNGS", "Books", "check_specs"]

NEVER = float("inf")
RUNGS = (Rung.FRESH, Rung.LEDGER, Rung.ROUND_ROBIN)
REASONS = [[f"{who}/{rung}" for who in PlaceReason] for rung in RUNGS]
MOST_LEASE = (1 << 63) - 1
MOST_REASONS = 64
"""Reasons counted apart; callers may make up any."""


class Books:
    """What the router knows, by name; its arguments are those of `Router`."""

    def __init__(
        self,
        instances: Sequence[InstanceSpec],
        policy: Policy | str,
        cost: StepCost,
        settings: Settings,
        now_s: float,
        seed: int,
        sink: Callable[[Decision], None] | None,
        shadows: Sequence[Policy | str],
    ) -> None:
        self.policy = parse(policy) if isinstance(policy, str) else policy
        self.cost, self.settings = cost, settings
        check_specs(instances)
        self._specs = list(instances)
        self._tables = Tables(instances, self.policy, cost, settings, seed)
        self._health = Health(settings)
        self._health.of = [self._health.new(now_s, spec.width) for spec in instances]
        self._sessions = Sessions(settings.most_sessions)
        self._rate = ReleaseRate(now_s)
        self._classes = {name: k for k, name in enumerate(settings.classes)}
        others = [parse(p) if isinstance(p, str) else p for p in shadows]
        self._shadows = Shadows(others, cost, seed)
        self._scribe = Scribe(sink, self._shadows, self) if sink or others else None
        self._keys: dict[str, int] = {}
        self._names: list[str | None] = []
        self._talks: list[Session | None] = []
        self._round_s = -NEVER
        self._swept_s = self._checked_s = now_s
        self._sound = True
        self._rung, self._rung_until_s = 0, now_s
        self.policy_errors = 0
        self.rejected: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self._adopt_tables()
        self._serving = self._drained = False

    @property
    def rung(self) -> Rung:
        """What decisions stand on."""
        return RUNGS[self._rung]

    @property
    def instances(self) -> tuple[InstanceSpec, ...]:
        """The list that instance numbers are positions in."""
        return tuple(self._specs)

    def view(self, now_s: float | None = None) -> RouterView:
        """Numbers for metrics and people, copied."""
        return look(self, self.rung.value, now_s)

    def shadows(self, now_s: float) -> list[ShadowView]:
        """The policies that look on, each with the pool as it would be."""
        return self._shadows.look(self, now_s)

    @property
    def shadow_samples(self) -> tuple[int, float]:
        """Times that the prices of all pools were added up, and the sum of the real one's."""
        return self._shadows.samples, self._shadows.price_sum

    @property
    def shadow_errors(self) -> int:
        """Times that one of them failed."""
        return self._shadows.errors

    def told(self, lease: int) -> Told | None:
        """The lengths of a request that runs; none: there is no such lease."""
        return self._tables.told(lease)

    def loads(self) -> list[tuple[int, int, bool]]:
        """Of each instance: requests and tokens on its ranks, as policies see them, and whether any may go there."""
        view, instances = self._tables.world.view, self._tables.world.instances
        if not self._specs:
            return []
        batch = np.add.reduceat(view.batch, self._first).tolist()
        context = np.add.reduceat(view.context_tokens, self._first).tolist()
        closed = instances["closed"].tolist()
        return [(b, c, not shut) for b, c, shut in zip(batch, context, closed, strict=True)]

    def snapshot(self) -> list[dict[str, int | float | str]]:
        """All leases: what another router needs to take them over by `adopt`."""
        return lease_rows(self)

    def step_price(self, instance: int) -> float:
        """Price of the next step of an instance as the picture is, in units of the cost."""
        return float(calls.price(self._at, instance, NOBODY, 0))

    def reason_of(self, code: int) -> str:
        """Who chose and on what, in words."""
        return REASONS[self._rung][code]

    def _adopt_tables(self) -> None:
        """Keep at hand what is used all the time."""
        tables, world = self._tables, self._tables.world
        self._at, self._place_at, self._finished_at = tables.at, tables.place_at, tables.finished_at
        self._kinds, self._waiting = world.kinds, world.kinds["waiting"]
        # an element of a memoryview is a Python number, at a third of the price of numpy's
        self._count_of: memoryview[int] = world.counts.data
        self._placed: memoryview[int] = world.placed.reshape(-1).data
        self._first = world.instances["first"].tolist()
        self._instance_of = world.view.instance.tolist()
        self._local = [r - self._first[i] for r, i in enumerate(self._instance_of)]
        self._last_class = len(self._classes) - 1
        room = len(world.entries)
        self._names += [None] * (room - len(self._names))
        self._talks += [None] * (room - len(self._talks))
        self._in_python = self._scribe is not None or not self.policy.compiled
        self._measure()

    def _measure(self) -> None:
        """The largest prompt that fits on a rank."""
        capacity = self._tables.world.ranks["kv_capacity_tokens"]
        self._largest = int(capacity.max(initial=0)) - self.settings.growth_reserve_tokens

    def _grow(self) -> None:
        self._tables.grow()
        self._adopt_tables()

    def _remember(self, key: int, request_id: str, talk: Session | None) -> None:
        index = key & INDEX_MASK
        self._keys[request_id] = key
        self._names[index] = request_id
        self._talks[index] = talk

    def _forget(self, key: int) -> None:
        index = key & INDEX_MASK
        name = self._names[index]
        if name is not None:
            self._keys.pop(name, None)
        self._names[index] = self._talks[index] = None

    def _count(self, table: dict[str, int], reason: str) -> None:
        if reason in table or len(table) < MOST_REASONS:
            table[reason] = table.get(reason, 0) + 1
        else:
            table["other"] = table.get("other", 0) + 1

    def _reject(self, now_s: float, request_id: str, reason: RejectReason) -> Reject:
        self._count(self.rejected, reason.value)
        status, retry_s = STATUS[reason], 0.0
        if status == 429:
            retry_s = self._rate.retry_after_s(now_s, self._count_of[COUNT.WAITING], self.settings)
        elif status == 503:
            retry_s = self.settings.retry_after_min_s
        return Reject(request_id, status, reason.value, retry_s)

    def _end(self, now_s: float, lease: int, completed: int) -> int:
        """Release a lease; the rank it was on, -1: on none any more, -2: there is none of that name."""
        if not 0 <= lease <= MOST_LEASE:
            return -2
        in_python = self._scribe is not None or (completed and not self.policy.compiled)
        note = self._tables.told(lease) if in_python else None
        rank = calls.end(self._at, self._finished_at, lease, completed, now_s)
        if rank == -2:
            return -2
        self._rate.note(now_s)
        index = lease & INDEX_MASK
        name = self._names[index]
        if name is not None:
            del self._keys[name]
        self._names[index] = self._talks[index] = None
        if note is not None:
            if completed and not self.policy.compiled:
                self._tables.tell(note)
            if self._scribe is not None:
                self._scribe.ended(name or "", note, lease, rank, completed=bool(completed))
        return int(rank)

    def _abort(self, now_s: float, key: int, reason: AbortReason) -> Abort:
        name = self._names[key & INDEX_MASK] or ""
        self._end(now_s, key, completed=0)
        self._count(self.ended, reason.value)
        return Abort(key, reason.value, name)

    def _abort_all(self, now_s: float, indices: np.ndarray, reason: AbortReason) -> list[Action]:
        generations = self._tables.world.entries["generation"]
        keys = [(int(generations[e]) << KEY_BITS) | int(e) for e in indices]
        return [self._abort(now_s, key, reason) for key in keys]

    def _rank(self, instance: int, rank: int) -> int | None:
        if 0 <= instance < len(self._specs) and 0 <= rank < self._specs[instance].width:
            return int(self._first[instance]) + rank
        return None


def check_specs(specs: Sequence[InstanceSpec]) -> None:
    """Refuse what cannot be a list of instances."""
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two instances are called {name!r}", fix="give each a name of its own")
    for spec in specs:
        if spec.width < 1:
            raise InputError(f"instance {spec.name!r} has {spec.width} ranks", fix="give it at least 1")
        for capacity, batch in spec.limits():
            if capacity is not None and not 0 < capacity <= UNLIMITED_TOKENS:
                raise InputError(
                    f"kv_capacity_tokens = {capacity} of {spec.name!r}",
                    fix=f"must be from 1 to {UNLIMITED_TOKENS}",
                )
            if batch is not None and not 0 < batch <= UNLIMITED_BATCH:
                raise InputError(f"max_batch = {batch} of {spec.name!r}", fix="must be 1 or more")
    total = sum(spec.width for spec in specs)
    if total > RANK_MASK + 1:
        raise InputError(f"{total} ranks", fix=f"a router takes up to {RANK_MASK + 1}")
