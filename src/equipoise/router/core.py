"""`Router`: events in, actions out; no clock, no sockets, no threads.

Every event carries the time it happens at, on a clock that does not go back. What it makes the router do comes back as
actions, in the order in which they were decided.

It is put together in layers, a file each: `books` (tables, names, leases), `standing` (what can be trusted), `rounds`
(placing), `pool` (instances, reports), `upkeep` (time), and here the life of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from equipoise.cost.step_cost import StepCost
from equipoise.policies import Policy
from equipoise.router.books import MOST_LEASE, REASONS
from equipoise.router.decisions import Decision
from equipoise.router.events import Action, Arrival, Dispatch, InstanceSpec, Reject
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import COUNT, INDEX_MASK, NOBODY
from equipoise.router.reasons import HARMLESS, AbortReason, InstanceState, RejectReason
from equipoise.router.settings import Settings
from equipoise.router.upkeep import Upkeep

__all__ = ["Router"]

MOST_TOKENS = 1 << 40
"""Longest prompt believed."""


class Router(Upkeep):
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
        super().__init__(instances, policy, cost, settings, now_s, seed, sink, shadows)
        self._health.changed.update(range(len(self._specs)))
        self._write_health(now_s)
        self._update_rung(now_s)

    def arrived(self, now_s: float, arrival: Arrival) -> list[Action]:
        """A request has come in: place it, queue it, or turn it away."""
        counts = self._count_of
        waits = counts[COUNT.WAITING]
        if not waits and now_s < self._rung_until_s and not self._in_python:
            return self._place_at_once(now_s, arrival)
        refusal = self._enqueue(now_s, arrival)
        if refusal is not None:
            return [refusal]
        if waits and self.settings.place_on_release and not counts[COUNT.DIRTY]:
            kind = self._classes.get(arrival.request_class, self._last_class)
            if self._waiting[kind] > 1:  # it stands behind others that were just left
                return []
        return self._place(now_s)

    def _place_at_once(self, now_s: float, arrival: Arrival) -> list[Action]:
        """Queue and place a request that is alone, in one call."""
        counts = self._count_of
        breaches = counts[COUNT.BREACHES]
        refusal = self._enqueue(now_s, arrival, self._place_at)
        if refusal is not None:
            return [refusal]
        counts = self._count_of
        self._round_s = now_s
        if counts[COUNT.PLACED] == 0:
            return [] if counts[COUNT.BREACHES] == breaches else self._place(now_s)
        where = self._placed[1]
        r = where >> 2
        key = self._placed[0]
        talk = self._talks[key & INDEX_MASK]
        if talk is not None:
            talk.rank = r
        reason = REASONS[self._rung][where & 3]
        return [Dispatch(arrival.request_id, key, self._instance_of[r], self._local[r], reason)]

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
        if 0 <= lease <= MOST_LEASE:
            calls.lengths(self._at, lease, NOBODY, NOBODY, now_s)
        return []

    def tokens(self, now_s: float, lease: int, n: int = 1) -> list[Action]:
        """A request has generated so many tokens more, its first one included."""
        if 0 <= lease <= MOST_LEASE:
            calls.tokens(self._at, lease, min(max(n, 0), MOST_TOKENS), now_s)
        return self._offer(now_s) if self._count_of[COUNT.WAITING] else []

    def usage(
        self, now_s: float, lease: int, *, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> list[Action]:
        """The engine says the exact lengths."""
        prompt = NOBODY if prompt_tokens is None or not 0 < prompt_tokens <= MOST_TOKENS else prompt_tokens
        output = NOBODY if output_tokens is None or not 0 <= output_tokens <= MOST_TOKENS else output_tokens
        if 0 <= lease <= MOST_LEASE:
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
        return self._offer(now_s) if self._count_of[COUNT.WAITING] else []

    def aborted(self, now_s: float, lease: int, reason: str) -> list[Action]:
        """A request has ended before its end; unless the reason is in `HARMLESS` it is its instance's failure."""
        rank = self._end(now_s, lease, completed=0)
        if rank != -2:
            self._count(self.ended, reason)
        if rank >= 0 and reason not in HARMLESS:
            self._health.failed(self._instance_of[rank], now_s, reason)
            self._write_health(now_s)
        return self._offer(now_s) if self._count_of[COUNT.WAITING] else []

    def cancelled(self, now_s: float, request_id: str) -> list[Action]:
        """The client of a request has left while it was queued; if it has just been dispatched it is aborted."""
        key = self._keys.get(request_id)
        if key is None:
            return []
        if calls.cancel(self._at, key):
            self._count_of[COUNT.CANCELLED] += 1
            self._forget(key)
            return self._offer(now_s) if self._count_of[COUNT.WAITING] else []
        return [
            self._abort(now_s, key, AbortReason.CANCELLED),
            *(self._offer(now_s) if self._count_of[COUNT.WAITING] else []),
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
        arguments = (context_tokens, min(max(output_tokens, 0), MOST_TOKENS), NOBODY, r)
        if self._count_of[COUNT.FREE_FIRST] == NOBODY:
            self._grow()
        key = calls.adopt(self._at, now_s, *arguments)
        self._remember(key, request_id, None)
        return int(key)

    def _enqueue(self, now_s: float, arrival: Arrival, place_at: int = 0) -> Reject | None:
        """Queue a request, or say why not; with the address of the policy it is placed at once if that is possible."""
        counts, settings = self._count_of, self.settings
        request_id, context = arrival.request_id, arrival.context_tokens
        refusal = None
        waits = counts[COUNT.WAITING]
        if request_id in self._keys:
            refusal = RejectReason.DUPLICATE
        elif not 0 < context <= MOST_TOKENS:
            refusal = RejectReason.BAD_LENGTH
        elif not self._serving:
            refusal = RejectReason.DRAINING if self._drained else RejectReason.NO_INSTANCE
        elif context > self._largest:
            refusal = RejectReason.TOO_LARGE
        elif waits + counts[COUNT.LIVE] >= settings.max_requests:
            refusal = RejectReason.TOO_MANY
        elif waits:
            if waits >= settings.max_queued_requests:
                refusal = RejectReason.QUEUE_REQUESTS
            elif counts[COUNT.WAITING_TOKENS] + context > settings.max_queued_tokens:
                refusal = RejectReason.QUEUE_TOKENS
            elif counts[COUNT.WAITING_BYTES] + arrival.body_bytes > settings.max_queued_bytes:
                refusal = RejectReason.QUEUE_BYTES
        if refusal is not None:
            counts[COUNT.ARRIVED] += 1  # requests are numbered as they come
            return self._reject(now_s, request_id, refusal)
        talk, number, home = None, NOBODY, NOBODY
        if arrival.session is not None:
            talk = self._sessions.find(arrival.session)
            number, home = talk.number, talk.rank
        kind = self._classes.get(arrival.request_class, self._last_class)
        came_s = now_s if arrival.arrived_s is None else arrival.arrived_s
        budget = arrival.budget_tokens
        if not -1 <= budget <= MOST_TOKENS:
            budget = MOST_TOKENS if budget > 0 else -1
        size = arrival.body_bytes
        if not 0 <= size <= MOST_TOKENS:
            size = MOST_TOKENS if size > 0 else 0
        if counts[COUNT.FREE_FIRST] == NOBODY:
            self._grow()
            counts = self._count_of
        try:
            key = calls.arrive(self._at, place_at, now_s, context, budget, number, kind, size, home, came_s)
        except Exception as error:
            if not place_at:
                raise
            key = counts[COUNT.LAST]  # it is queued all the same
            counts[COUNT.PLACED] = self._place_without(now_s, error)
        index = key & INDEX_MASK
        self._keys[request_id] = key
        self._names[index], self._talks[index] = request_id, talk
        return None
