"""`Router`: events in, actions out; no clock, no sockets, no threads.

Every event carries the time it happens at, on a clock that does not go back. What it makes the router do comes back as
actions, in the order in which they were decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.policies import Policy, parse
from equipoise.policies.api import RANK_MASK
from equipoise.policies.rules import UNLIMITED_BATCH, UNLIMITED_TOKENS
from equipoise.router.admission import ReleaseRate
from equipoise.router.decisions import Decision, Scribe, Shadows, ask
from equipoise.router.events import Abort, Action, Arrival, Dispatch, InstanceSpec, RankReport, Reject
from equipoise.router.health import Health
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import COUNT, INDEX_MASK, KEY_BITS, LIVE, NOBODY, SET
from equipoise.router.reasons import (
    HARMLESS,
    STATUS,
    AbortReason,
    InstanceState,
    PlaceReason,
    RejectReason,
    Rung,
)
from equipoise.router.sessions import Session, Sessions
from equipoise.router.settings import Settings
from equipoise.router.tables import Tables
from equipoise.router.view import Integrity, RouterView, lease_rows, look

__all__ = ["Router"]

_log = logging.getLogger(__name__)

NEVER = float("inf")
MOST_TOKENS = 1 << 40
"""Longest prompt believed."""
_RUNGS = (Rung.FRESH, Rung.LEDGER, Rung.ROUND_ROBIN)
_REASONS = [[f"{who}/{rung}" for who in PlaceReason] for rung in _RUNGS]
TTL_PARTS = 8
"""Looks at the leases in the time one of them may be silent."""

(WAITING, TOKENS, BYTES, LIVING, ARRIVED, DIRTY, HELD, BREACHES) = (
    COUNT.WAITING,
    COUNT.WAITING_TOKENS,
    COUNT.WAITING_BYTES,
    COUNT.LIVE,
    COUNT.ARRIVED,
    COUNT.DIRTY,
    COUNT.HELD_BACK,
    COUNT.BREACHES,
)


class Router:
    """Places requests on the ranks of some instances, and keeps count of what is where.

    Parameters
    ----------
    instances : sequence of InstanceSpec
        Their positions are the instance numbers of all events and actions.
    policy : Policy or str
        Any of the registry, or of one's own.
    cost : StepCost
    settings : Settings
    now_s : float
        The time.
    seed : int
        Of the policy.
    sink : callable, optional
        Handed a `Decision` for every dispatch.
    shadows : sequence of Policy or str
        Policies that are asked beside it, for the record only.

    Raises
    ------
    InputError
        Instances of the same name, or more ranks than policies can number.
    """

    def __init__(
        self,
        instances: Sequence[InstanceSpec],
        policy: Policy | str,
        cost: StepCost,
        settings: Settings = Settings(),  # noqa: B008  it is frozen
        now_s: float = 0.0,
        seed: int = 0,
        *,
        sink: Callable[[Decision], None] | None = None,
        shadows: Sequence[Policy | str] = (),
    ) -> None:
        self.policy = parse(policy) if isinstance(policy, str) else policy
        self.cost, self.settings = cost, settings
        _check(instances)
        self._specs = list(instances)
        self._tables = Tables(instances, self.policy, cost, settings, seed)
        self._health = Health(settings)
        self._health.of = [self._health.new(now_s, spec.width) for spec in instances]
        self._sessions = Sessions(settings.most_sessions)
        self._rate = ReleaseRate(now_s)
        self._classes = {name: k for k, name in enumerate(settings.classes)}
        others = [parse(p) if isinstance(p, str) else p for p in shadows]
        self._scribe = Scribe(sink, Shadows(others, cost, seed), self) if sink or others else None
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
        self._began = False
        self._adopt_tables()
        self._health.changed.update(range(len(self._specs)))
        self._write_health(now_s)
        self._update_rung(now_s)
        self._began = True

    # -- requests ------------------------------------------------------------------------------------------------

    def arrived(self, now_s: float, arrival: Arrival) -> list[Action]:
        """A request has come in: place it, queue it, or turn it away."""
        counts = self._counts
        waits = counts.item(WAITING)
        refusal = self._enqueue(now_s, arrival)
        if refusal is not None:
            return [refusal]
        if waits and self.settings.place_on_release and not counts.item(DIRTY):
            kind = self._classes.get(arrival.request_class, self._last_class)
            if self._waiting.item(kind) > 1:  # it stands behind others that were just left
                return []
        return self._place(now_s)

    def arrived_many(self, now_s: float, arrivals: Iterable[Arrival]) -> list[Action]:
        """Requests have come in together: they are placed in one round, as at one step boundary; also of none."""
        actions: list[Action] = []
        for arrival in arrivals:
            refusal = self._enqueue(now_s, arrival)
            if refusal is not None:
                actions.append(refusal)
        return actions + self._place(now_s)

    def first_token(self, now_s: float, lease: int) -> list[Action]:
        """A request has begun to answer: a sign of life; it counts no token."""
        calls.lengths(self._at, lease, -1, -1, now_s)
        return []

    def tokens(self, now_s: float, lease: int, n: int = 1) -> list[Action]:
        """A request has generated so many tokens more, its first one included."""
        calls.tokens(self._at, lease, max(n, 0), now_s)
        return self._offer(now_s) if self._counts.item(WAITING) else []

    def usage(
        self, now_s: float, lease: int, *, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> list[Action]:
        """The engine says the exact lengths."""
        prompt = NOBODY if prompt_tokens is None or not 0 < prompt_tokens <= MOST_TOKENS else prompt_tokens
        output = NOBODY if output_tokens is None or not 0 <= output_tokens <= MOST_TOKENS else output_tokens
        calls.lengths(self._at, lease, prompt, output, now_s)
        return []

    def finished(self, now_s: float, lease: int) -> list[Action]:
        """A request has ended by itself."""
        rank = self._end(now_s, lease, completed=1)
        if rank >= 0:
            i = self._instance_of[rank]
            one = self._health.of[i]
            if one.failures or one.state is InstanceState.HALF_OPEN:
                self._health.succeeded(i, now_s)
                self._write_health(now_s)
        return self._offer(now_s) if self._counts.item(WAITING) else []

    def aborted(self, now_s: float, lease: int, reason: str) -> list[Action]:
        """A request has ended before its end; unless the reason is in `HARMLESS` it is its instance's failure."""
        rank = self._end(now_s, lease, completed=0)
        if rank != -2:
            self._count(self.ended, reason)
        if rank >= 0 and reason not in HARMLESS:
            self._health.failed(self._instance_of[rank], now_s, reason)
            self._write_health(now_s)
        return self._offer(now_s) if self._counts.item(WAITING) else []

    def cancelled(self, now_s: float, request_id: str) -> list[Action]:
        """The client of a request has left while it was queued; if it has just been dispatched it is aborted."""
        key = self._keys.get(request_id)
        if key is None:
            return []
        if calls.cancel(self._at, key):
            self._counts[COUNT.CANCELLED] += 1
            self._forget(key)
            return self._offer(now_s) if self._counts.item(WAITING) else []
        return [
            self._abort(now_s, key, AbortReason.CANCELLED),
            *(self._offer(now_s) if self._counts.item(WAITING) else []),
        ]

    def adopt(
        self,
        now_s: float,
        request_id: str,
        instance: int,
        rank: int,
        context_tokens: int,
        output_tokens: int = 0,
    ) -> int | None:
        """Take over a request that another router has dispatched; its lease, or none where it is known already."""
        r = self._rank(instance, rank)
        if request_id in self._keys or r is None or not 0 < context_tokens <= MOST_TOKENS:
            return None
        arguments = (context_tokens, max(output_tokens, 0), -1, r)
        key = calls.adopt(self._at, now_s, *arguments)
        if key == NOBODY:
            self._grow()
            key = calls.adopt(self._at, now_s, *arguments)
        self._remember(key, request_id, None)
        return int(key)

    # -- engines -------------------------------------------------------------------------------------------------

    def report(self, now_s: float, report: RankReport) -> list[Action]:
        """An engine says what runs on a rank."""
        return self.report_many(now_s, (report,))

    def report_many(self, now_s: float, reports: Iterable[RankReport]) -> list[Action]:
        """The same of several ranks; the queue is offered once."""
        for report in reports:
            self._report(now_s, report)
        self._write_health(now_s)
        if now_s >= self._rung_until_s:
            self._update_rung(now_s)
        return self._offer(now_s) if self._counts.item(WAITING) else []

    def step_ended(self, now_s: float, instance: int, steps: int = 1) -> list[Action]:
        """An instance is at its step boundary: for drivers that know; from then on its steps are not inferred."""
        if 0 <= instance < len(self._specs):
            calls.stepped(self._at, instance, max(steps, 0), NEVER, now_s)
        return self._offer(now_s) if self._counts.item(WAITING) else []

    def step_started(self, now_s: float, instance: int, ends_s: float) -> list[Action]:
        """An instance has begun a step that will end then."""
        if 0 <= instance < len(self._specs):
            calls.stepped(self._at, instance, 0, ends_s, now_s)
        return []

    def instance_lost(self, now_s: float, instance: int, reason: str = "lost") -> list[Action]:
        """An instance is gone, and all that ran there."""
        if not 0 <= instance < len(self._specs):
            return []
        self._health.lost(instance, reason)
        first, width = self._first[instance], self._specs[instance].width
        self._write_health(now_s)
        return [*self._lose(now_s, first, first + width, AbortReason.INSTANCE_LOST), *self._offer(now_s)]

    def instance_ok(self, now_s: float, instance: int) -> list[Action]:
        """An instance is well (again): one that was lost starts slowly, one that was ejected is tried."""
        if 0 <= instance < len(self._specs):
            self._health.well(instance, now_s, self._specs[instance].width)
            self._write_health(now_s)
        return self._offer(now_s)

    def rank_lost(self, now_s: float, instance: int, rank: int, reason: str = "lost") -> list[Action]:
        """A rank is gone, and all that ran there; its instance stalls, so nothing more is sent to it."""
        r = self._rank(instance, rank)
        if r is None:
            return []
        self._health.lost(instance, reason)
        self._write_health(now_s)
        return [*self._lose(now_s, r, r + 1, AbortReason.RANK_LOST), *self._offer(now_s)]

    def drain(self, now_s: float, instance: int, rank: int | None = None) -> list[Action]:
        """Send nothing more to an instance, or a rank of it; what runs there runs on."""
        return self._drain(now_s, instance, rank, 1)

    def undrain(self, now_s: float, instance: int, rank: int | None = None) -> list[Action]:
        """Send there again."""
        return self._drain(now_s, instance, rank, 0)

    def set_instances(self, now_s: float, specs: Sequence[InstanceSpec]) -> list[Action]:
        """These are the instances now. What runs on one that is gone runs on; a changed number of ranks ends it."""
        _check(specs)
        was = {spec.name: i for i, spec in enumerate(self._specs)}
        position = {spec.name: i for i, spec in enumerate(specs)}
        actions: list[Action] = []
        for name, i in was.items():
            j = position.get(name)
            if j is not None and specs[j].width != self._specs[i].width:
                first = self._first[i]
                actions += self._lose(
                    now_s, first, first + self._specs[i].width, AbortReason.INSTANCE_CHANGED
                )
                del position[name]
        instances_to = [position.get(spec.name, -1) for spec in self._specs]
        first_new = np.concatenate([[0], np.cumsum([spec.width for spec in specs])]).tolist()
        ranks_to = [
            -1 if instances_to[i] < 0 else int(first_new[instances_to[i]]) + k
            for i, spec in enumerate(self._specs)
            for k in range(spec.width)
        ]
        health = [self._health.new(now_s, spec.width) for spec in specs]
        for i, j in enumerate(instances_to):
            if j >= 0:
                health[j] = self._health.of[i]
        fresh = [j for j in range(len(specs)) if j not in instances_to]
        if self._specs and len(fresh) < len(specs) and self.settings.slow_start_s > 0:
            for j in fresh:
                health[j].state = InstanceState.SLOW_START
                health[j].until_s = now_s + self.settings.slow_start_s
        self._tables.cut(specs, ranks_to, instances_to)
        self._sessions.move(ranks_to)
        self._specs, self._health.of = list(specs), health
        self._adopt_tables()
        if self._scribe is not None:
            self._scribe.shadows.begin(self)
        self._health.changed = set(range(len(specs)))
        self._write_health(now_s)
        calls.show_all(self._at, now_s)
        self._update_serving()  # there may be none
        self._update_rung(now_s)
        return actions + self._offer(now_s)

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Action]:
        """Do what is due: requests that waited too long, silent leases, health, old reports; offer the queue again."""
        self._health.tick(now_s)
        self._write_health(now_s)
        actions = self._expire_queue(now_s)
        if now_s - self._swept_s >= self.settings.lease_ttl_s / TTL_PARTS:
            self._swept_s = now_s
            actions += self._expire_leases(now_s)
        if now_s - self._checked_s >= self.settings.integrity_every_s:
            self._checked_s = now_s
            self.integrity(now_s)
            actions += self._end_leaks(now_s)
        calls.sweep(self._at, now_s)
        self._update_rung(now_s)
        return actions + self._place(now_s)

    def next_wakeup_s(self) -> float | None:
        """When `tick` has something to do if nothing else happens; none: never."""
        due = min(self._health.next_s(), self._rung_until_s)
        if self._counts.item(LIVING):
            due = min(due, self._swept_s + self.settings.lease_ttl_s / TTL_PARTS)
            due = min(due, self._checked_s + self.settings.integrity_every_s)
        if self._counts.item(WAITING):
            heads = self._kinds["first"][self._kinds["waiting"] > 0]
            oldest_s = float(self._tables.world.entries["arrived_s"][heads].min())
            due = min(due, oldest_s + self.settings.queue_ttl_s)
            if self.settings.round_every_s and self._counts.item(DIRTY):
                due = min(due, self._round_s + self.settings.round_every_s)
        return due if due < NEVER else None

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def instances(self) -> tuple[InstanceSpec, ...]:
        """The list that instance numbers are positions in."""
        return tuple(self._specs)

    @property
    def rung(self) -> Rung:
        """What decisions stand on."""
        return _RUNGS[self._rung]

    def view(self, now_s: float | None = None) -> RouterView:
        """Numbers for metrics and people, copied."""
        return look(self, now_s)

    def snapshot(self) -> list[dict[str, int | float | str]]:
        """All leases: what another router needs to take them over by `adopt`."""
        return lease_rows(self)

    def integrity(self, now_s: float | None = None) -> Integrity:
        """Compare the sums with what they are sums of, lease by lease; mend them, and say what was wrong.

        While they were found wrong, nothing is built on them: ranks are taken in turn until they are found right again.
        """
        tables, world = self._tables, self._tables.world
        batch, context, saturated = tables.sums()
        wrong = (world.ranks["batch"] != batch) | (world.ranks["context"] != context)
        wrong |= (world.saturated != saturated).any(axis=1)
        states = np.bincount(world.entries["state"], minlength=3)
        counts = (int(self._counts[LIVING]), int(self._counts[WAITING]))
        right = (int(states[LIVE]), int(states[1]))
        found = Integrity(
            ranks_wrong=int(wrong.sum()),
            counts_wrong=int(counts != right),
            missing=int(world.ranks["missing"].sum()),
        )
        self._sound = found.sound
        if not found.sound:
            _log.error("the ledger does not add up: %s; mended", found)
            world.ranks["batch"], world.ranks["context"] = batch, context
            world.saturated[:] = saturated
            self._counts[LIVING], self._counts[WAITING] = right
        if now_s is not None:
            if not found.sound:
                calls.show_all(self._at, now_s)
            self._update_rung(now_s)
        return found

    def step_price(self, instance: int) -> float:
        """Price of the next step of an instance as the picture is, in units of the cost."""
        return float(calls.price(self._at, instance, NOBODY, 0))

    def price_moved(self, chosen: int, other: int, context_tokens: int) -> float:
        """Price of the next step of `other`'s instance, had a request that is on rank `chosen` gone to `other`."""
        i, home = self._instance_of[other], self._instance_of[chosen]
        if chosen == other:
            return self.step_price(i)
        return float(calls.price_moved(self._at, i, chosen if i == home else NOBODY, other, context_tokens))

    def reason_of(self, code: int) -> str:
        """Who chose and on what, in words."""
        return _REASONS[self._rung][code]

    # -- inside --------------------------------------------------------------------------------------------------

    def _adopt_tables(self) -> None:
        """Keep at hand what is used all the time."""
        tables, world = self._tables, self._tables.world
        self._at, self._place_at, self._finished_at = tables.at, tables.place_at, tables.finished_at
        self._counts, self._kinds = world.counts, world.kinds
        self._placed, self._waiting = world.placed, world.kinds["waiting"]
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
        if reason in table or len(table) < 64:
            table[reason] = table.get(reason, 0) + 1
        else:
            table["other"] = table.get("other", 0) + 1

    def _reject(self, now_s: float, request_id: str, reason: RejectReason) -> Reject:
        self._count(self.rejected, reason.value)
        status, retry_s = STATUS[reason], 0.0
        if status == 429:
            retry_s = self._rate.retry_after_s(now_s, self._counts.item(WAITING), self.settings)
        elif status == 503:
            retry_s = self.settings.retry_after_min_s
        return Reject(request_id, status, reason.value, retry_s)

    def _enqueue(self, now_s: float, arrival: Arrival) -> Reject | None:
        counts, settings = self._counts, self.settings
        request_id, context = arrival.request_id, arrival.context_tokens
        refusal = None
        waits = counts.item(WAITING)
        if request_id in self._keys:
            refusal = RejectReason.DUPLICATE
        elif not 0 < context <= MOST_TOKENS:
            refusal = RejectReason.BAD_LENGTH
        elif not self._serving:
            refusal = RejectReason.DRAINING if self._drained else RejectReason.NO_INSTANCE
        elif context > self._largest:
            refusal = RejectReason.TOO_LARGE
        elif waits + counts.item(LIVING) >= settings.max_requests:
            refusal = RejectReason.TOO_MANY
        elif waits:
            if waits >= settings.max_queued_requests:
                refusal = RejectReason.QUEUE_REQUESTS
            elif counts.item(TOKENS) + context > settings.max_queued_tokens:
                refusal = RejectReason.QUEUE_TOKENS
            elif counts.item(BYTES) + arrival.body_bytes > settings.max_queued_bytes:
                refusal = RejectReason.QUEUE_BYTES
        if refusal is not None:
            counts[ARRIVED] += 1  # requests are numbered as they come
            return self._reject(now_s, request_id, refusal)
        talk, number, home = None, NOBODY, NOBODY
        if arrival.session is not None:
            talk = self._sessions.find(arrival.session)
            number, home = talk.number, talk.rank
        kind = self._classes.get(arrival.request_class, self._last_class)
        came_s = now_s if arrival.arrived_s is None else arrival.arrived_s
        key = calls.arrive(
            self._at, now_s, context, arrival.budget_tokens, number, kind, arrival.body_bytes, home, came_s
        )
        if key == NOBODY:
            self._grow()
            key = calls.arrive(
                self._at,
                now_s,
                context,
                arrival.budget_tokens,
                number,
                kind,
                arrival.body_bytes,
                home,
                came_s,
            )
        index = key & INDEX_MASK
        self._keys[request_id] = key
        self._names[index], self._talks[index] = request_id, talk
        return None

    def _offer(self, now_s: float) -> list[Action]:
        """Offer the queue again if that can change anything now."""
        if not (self.settings.place_on_release and self._counts.item(WAITING) and self._counts.item(DIRTY)):
            return []
        if now_s < self._round_s + self.settings.round_every_s:
            return []
        return self._place(now_s)

    def _place(self, now_s: float) -> list[Action]:
        """Rounds, until the queue is empty or requests are left in it."""
        actions: list[Action] = []
        if now_s >= self._rung_until_s:
            self._update_rung(now_s)
        if not self._serving:
            return actions
        counts, placed, names, talks = self._counts, self._placed, self._names, self._talks
        self._round_s = now_s
        while counts.item(WAITING):
            if self._in_python:
                n = self._decide_in_python(now_s)
            else:
                before = counts.item(BREACHES)
                try:
                    n = calls.decide(self._at, self._place_at, now_s)
                except Exception as error:
                    n = self._place_without(now_s, error)
                if counts.item(BREACHES) != before:
                    actions += self._dispatches(n, placed, names, talks)
                    n = self._place_without(now_s, None)
            actions += self._dispatches(n, placed, names, talks)
            if n == 0 or counts.item(HELD):
                break
        return actions

    def _dispatches(
        self, n: int, placed: np.ndarray, names: list[str | None], talks: list[Session | None]
    ) -> list[Dispatch]:
        reasons = _REASONS[self._rung]
        found = []
        for j in range(n):
            key, where = placed.item(j, 0), placed.item(j, 1)
            r, index = where >> 2, key & INDEX_MASK
            talk = talks[index]
            if talk is not None:
                talk.rank = r
            found.append(
                Dispatch(
                    names[index] or "",
                    key,
                    self._instance_of[r],
                    self._local[r],
                    reasons[where & 3],
                )
            )
        return found

    def _place_without(self, now_s: float, error: Exception | None) -> int:
        """The policy failed, or chose what it may not: what it has left is placed in turn."""
        self.policy_errors += 1
        if self.policy_errors in (1, 10, 100) or self.policy_errors % 1000 == 0:
            what = "chose a rank it may not" if error is None else f"failed: {error!r}"
            _log.error("policy %s %s (%d times)", self.policy.name, what, self.policy_errors)
        calls.show_all(self._at, now_s)
        return int(calls.decide(self._at, 0, now_s))

    def _decide_in_python(self, now_s: float) -> int:
        """A round whose policy Python calls, or which is written down."""
        size = calls.gather_round(self._at, now_s)
        if size == 0:
            return 0
        in_turn = self._rung == 2
        note = self._scribe.before(size, now_s) if self._scribe is not None else None
        before = self._counts.item(BREACHES)
        n = 0
        if not in_turn:
            try:
                self._ask(size)
            except Exception as error:
                return self._place_without(now_s, error)
        n = calls.commit_round(self._at, int(in_turn), now_s)
        if note is not None and self._scribe is not None:
            self._scribe.after(note, n, now_s)
        if self._counts.item(BREACHES) != before and n == 0:
            n = self._place_without(now_s, None)
        return int(n)

    def _ask(self, size: int) -> None:
        ask(self._tables, size)

    def _end(self, now_s: float, lease: int, completed: int) -> int:
        """Release a lease; the rank it was on, -1: on none any more, -2: there is none of that name."""
        finished_in_python = completed and (self._scribe is not None or not self.policy.compiled)
        note = self._tables.told(lease) if finished_in_python else None
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
            if not self.policy.compiled:
                self._tables.tell(note)
            if self._scribe is not None:
                self._scribe.finished(name or "", note, now_s)
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

    def _lose(self, now_s: float, first: int, last: int, reason: AbortReason) -> list[Action]:
        """End all leases on ranks `first` to before `last`, and forget what else ran there."""
        world = self._tables.world
        live = self._tables.live()
        on = world.entries["rank"][live]
        actions = self._abort_all(now_s, live[(on >= first) & (on < last)], reason)
        for name in ("others_batch", "others_context", "missing"):
            world.ranks[name][first:last] = 0
        calls.show_all(self._at, now_s)
        return actions

    def _rank(self, instance: int, rank: int) -> int | None:
        if 0 <= instance < len(self._specs) and 0 <= rank < self._specs[instance].width:
            return int(self._first[instance]) + rank
        return None

    def _report(self, now_s: float, report: RankReport) -> None:
        r = self._rank(report.instance, report.rank)
        if r is None:
            self._counts[COUNT.OLD_REPORTS] += 1
            return
        ranks = self._tables.world.ranks
        context = report.context_tokens
        capacity = report.kv_capacity_tokens
        if (
            capacity is not None
            and 0 < capacity <= UNLIMITED_TOKENS
            and capacity != ranks["kv_capacity_tokens"][r]
        ):
            ranks["kv_capacity_tokens"][r] = capacity
            self._measure()
        if report.max_batch is not None and 0 < report.max_batch <= UNLIMITED_BATCH:
            ranks["max_batch"][r] = report.max_batch
        if context is None and report.kv_usage is not None and 0.0 <= report.kv_usage <= 1.0:
            known = int(ranks["kv_capacity_tokens"][r])
            context = int(report.kv_usage * known) if known < UNLIMITED_TOKENS else None
        news = calls.report(
            self._at,
            r,
            min(max(report.running, 0) + max(report.waiting, 0), UNLIMITED_BATCH),
            NOBODY if context is None else min(max(context, 0), UNLIMITED_TOKENS),
            report.taken_at_s,
            NOBODY if report.sequence is None else report.sequence,
            NOBODY if report.seen_dispatches is None else report.seen_dispatches,
            now_s,
        )
        if news:
            one = self._health.of[report.instance]
            if one.unheard:
                self._health.heard(report.instance, report.rank)
            if self._rung:
                self._rung_until_s = now_s

    def _drain(self, now_s: float, instance: int, rank: int | None, value: int) -> list[Action]:
        if not 0 <= instance < len(self._specs):
            return []
        first, width = self._first[instance], self._specs[instance].width
        ranks = range(first, first + width) if rank is None else [self._rank(instance, rank)]
        for r in ranks:
            if r is not None:
                self._tables.world.ranks["drained"][r] = value
        calls.show(self._at, instance, now_s)
        self._update_serving()
        return self._offer(now_s)

    def _update_serving(self) -> None:
        """Whether anything can be served at all; if not, whether that is because of drains."""
        world = self._tables.world
        open_ranks = np.repeat(world.instances["closed"] == 0, world.instances["ranks"])
        undrained = world.ranks["drained"] == 0
        self._serving = bool((open_ranks & undrained).any())
        self._drained = bool(open_ranks.any())

    def _write_health(self, now_s: float) -> None:
        """Write what has changed in health to the tables."""
        if not self._health.changed:
            return
        instances = self._tables.world.instances
        for i, closed in enumerate(self._health.closed()):
            one = self._health.of[i]
            if i in self._health.changed:
                half = one.state is InstanceState.HALF_OPEN
                if half != bool(instances["probes_left"][i] < UNLIMITED_BATCH):
                    instances["probes_left"][i] = (
                        self.settings.half_open_requests if half else UNLIMITED_BATCH
                    )
                slow = one.state is InstanceState.SLOW_START
                instances["slow_until_s"][i] = one.until_s if slow else -NEVER
                instances["slow_from_s"][i] = one.until_s - self.settings.slow_start_s if slow else -NEVER
            if i in self._health.changed or bool(instances["closed"][i]) != closed:
                instances["closed"][i] = closed
                calls.show(self._at, i, now_s)
        self._health.changed.clear()
        self._update_serving()
        self._update_rung(now_s)

    def _update_rung(self, now_s: float) -> None:
        """Say what decisions stand on, and until when."""
        instances = self._tables.world.instances
        serving = instances["closed"] == 0
        trusted = [one.trusted for one, s in zip(self._health.of, serving, strict=True) if s]
        until_s = NEVER
        if not self._sound or (trusted and not any(trusted)):
            rung = 2
            if not self._sound:
                until_s = self._checked_s + self.settings.integrity_every_s
        elif self.settings.reports == "none" or not trusted:
            rung = 1
        else:
            oldest_s = float(instances["reported_s"][serving].min())
            rung = 0 if now_s - oldest_s <= self.settings.stale_after_s else 1
            if rung == 0:
                until_s = oldest_s + self.settings.stale_after_s
        if rung != self._rung and self._began:
            _log.info("decisions stand on %s now", _RUNGS[rung])
        self._rung, self._rung_until_s = rung, until_s
        self._tables.world.settings[SET.RUNG] = rung

    def _expire_queue(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        before_s = now_s - self.settings.queue_ttl_s
        reason = RejectReason.QUEUE_TIMEOUT
        if not self._serving:
            reason = RejectReason.DRAINING if self._drained else RejectReason.NO_INSTANCE
        for kind in range(len(self._kinds)):
            while (e := calls.oldest(self._at, kind, before_s)) != NOBODY:
                key = (int(self._tables.world.entries["generation"][e]) << KEY_BITS) | e
                name = self._names[e] or ""
                calls.cancel(self._at, key)
                self._forget(key)
                actions.append(self._reject(now_s, name, reason))
        return actions

    def _expire_leases(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        e, before_s = -1, now_s - self.settings.lease_ttl_s
        while (e := calls.expire(self._at, e + 1, before_s)) != NOBODY:
            actions += self._abort_all(now_s, np.array([e]), AbortReason.EXPIRED)
            self._counts[COUNT.EXPIRED] += 1
        return actions

    def _end_leaks(self, now_s: float) -> list[Action]:
        """End leases on ranks that have been reported idle since long after they were last heard of."""
        world, live = self._tables.world, self._tables.live()
        live = live[world.entries["rank"][live] != NOBODY]
        ranks = world.ranks[world.entries["rank"][live]]
        silent_s = ranks["reported_s"] - world.entries["heard_s"][live]
        leaks = live[(ranks["reported_batch"] == 0) & (silent_s > self.settings.leak_after_s)]
        return self._abort_all(now_s, leaks, AbortReason.LEAKED)


def _check(specs: Sequence[InstanceSpec]) -> None:
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
