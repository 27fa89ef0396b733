"""What a replay did, event by event, and the same events told to a router."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from equipoise.replay import engine, reference, replay
from equipoise.replay.layout import MAX_ROUND
from equipoise.router import Arrival, Dispatch, InstanceSpec, Reject, Router, Settings

PATIENT = {
    "reports": "none",
    "place_on_release": False,
    "queue_ttl_s": 1e9,
    "lease_ttl_s": 1e9,
    "max_queued_requests": 1 << 30,
    "max_queued_tokens": 1 << 39,
}
"""Settings under which a router does nothing by itself."""


@dataclass
class Log:
    """Events in order: steps that ended, rounds, steps that began."""

    events: list = field(default_factory=list)
    known: dict = field(default_factory=dict)
    """Requests placed so far and running, by row: the request, and the tokens seen."""
    ends_s: dict = field(default_factory=dict)
    fed: int = 0
    goes_on: bool = False

    def note_steps(self, pool) -> None:
        """Steps that have ended since the last event: at most one an instance."""
        here = {q.row for q in pool.placed}
        ended = {}
        for row, (q, seen) in self.known.items():
            if row not in here or q.progress > seen:
                ended.setdefault(pool.instance_of(q), []).append(row)
        for p in sorted(ended, key=lambda p: (self.ends_s[p], p)):
            rows = [(row, row not in here) for row in sorted(ended[p])]
            self.events.append(("stepped", p, self.ends_s[p], rows))
        self.known = {q.row: (q, q.progress) for q in pool.placed}


def recorded(trace, pool, policy, cost, **options) -> Log:
    """Run the slow twin and write down what happened."""
    log, plain_round, plain_step, made = Log(), reference._round, reference._note_step, []

    def note_round(pool, settings, *rest):
        made[:] = [pool]
        log.note_steps(pool)
        if not log.goes_on:
            rows = range(log.fed, pool.released)
            arrived = [pool.now if settings.saturated else float(pool.work.arrival_s[row]) for row in rows]
            log.events.append(("round", pool.now, list(zip(rows, arrived, strict=True)), {}))
            log.fed = pool.released
        asked = pool.queue[:MAX_ROUND]
        found = plain_round(pool, settings, *rest)
        placed = {q.row: q.rank for q in asked if q.rank >= 0}
        log.events[-1][3].update(placed)
        log.goes_on = len(placed) == len(asked) and bool(pool.queue)
        log.known = {q.row: (q, q.progress) for q in pool.placed}
        return found

    def note_step(pool, p, now, settings, *rest):
        log.note_steps(pool)
        price = plain_step(pool, p, now, settings, *rest)
        log.ends_s[p] = now + price * settings.seconds_per_unit
        log.events.append(("steps", p, now, log.ends_s[p]))
        return price

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "_round", note_round)
        patch.setattr(reference, "_note_step", note_step)
        patch.setattr(engine, "check_outcome", lambda *arguments, **named: None)
        replay(trace, pool, policy, cost, engine="reference", **options)
    made[0].placed.clear()
    log.note_steps(made[0])
    return log


def router_for(pool, policy, cost, *, seed=0, **settings) -> Router:
    """A router before the same pool."""
    specs = [
        InstanceSpec(f"instance {i}", pool.ranks, pool.kv_capacity_tokens, pool.max_batch)
        for i in range(pool.instances)
    ]
    options = PATIENT | {"growth_reserve_tokens": pool.growth_reserve_tokens} | settings
    return Router(specs, policy, cost, Settings(**options), seed=seed)


def follow(log, router, trace, pool, *, tells_steps=True) -> int:
    """Tell a router what happened, and hold every decision against the log; how many there were."""
    lease, count = {}, 0
    for event in log.events:
        if event[0] == "steps":
            _, p, now, ends_s = event
            if tells_steps:
                assert router.step_started(now, p, ends_s) == []
        elif event[0] == "stepped":
            _, p, now, rows = event
            if tells_steps:
                assert router.step_ended(now, p) == []
            for row, done in rows:
                assert router.tokens(now, lease[row]) == []
                if done:
                    assert router.finished(now, lease.pop(row)) == []
        else:
            _, now, arrivals, expected = event
            actions = router.arrived_many(
                now,
                [
                    Arrival(
                        str(row),
                        int(trace.context_tokens[row]),
                        session=int(trace.session[row]) if trace.session[row] >= 0 else None,
                        arrived_s=at,
                    )
                    for row, at in arrivals
                ],
            )
            chosen = {}
            for action in actions:
                if isinstance(action, Reject):
                    assert action.reason == "too_large"
                    continue
                assert isinstance(action, Dispatch)
                row = int(action.request_id)
                chosen[row] = action.instance * pool.ranks + action.rank
                lease[row] = action.lease
            assert chosen == expected, now
            count += len(chosen)
    return count
