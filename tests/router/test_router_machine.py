"""The router under events in any order: every request is answered once, no lease leaks, no load goes below zero.

A naive twin keeps one Python object a request and adds it all up whenever it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from equipoise.cost.step_cost import Saturation, StepCost, Term
from equipoise.router import (
    Abort,
    Arrival,
    Dispatch,
    InstanceSpec,
    RankReport,
    Reject,
    Router,
    Settings,
)

COST = StepCost("c", (Term("t", 1.0, per_100k_context=90.0, saturations=(Saturation(50, 40.0),)),))
NAMES = ("a", "b", "c")
CAPACITY = 400


@dataclass
class Lease:
    request_id: str
    instance: str
    rank: int
    context: int
    tokens: int = 0


class Machine(RuleBasedStateMachine):
    """Events in any order; the twin knows what must be true after each."""

    leases = Bundle("leases")
    reports = Bundle("reports")
    policy, options = "least_tokens", {}

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.specs = [InstanceSpec("a", 2, CAPACITY, 4), InstanceSpec("b", 1, CAPACITY, 4)]
        self.router = Router(
            self.specs,
            self.policy,
            COST,
            Settings(
                **{
                    "max_queued_requests": 6,
                    "queue_ttl_s": 5.0,
                    "lease_ttl_s": 40.0,
                    "leak_after_s": 8.0,
                    "slow_start_s": 3.0,
                    "trust_after_s": 2.0,
                    "breaker_failures": 2,
                    "breaker_open_s": 2.0,
                    "integrity_every_s": 1.0,
                    "classes": {"first": 3.0, "second": 1.0},
                }
                | self.options
            ),
        )
        self.queued: dict[str, int] = {}
        self.live: dict[int, Lease] = {}
        self.gone: list[int] = []
        self.answers: dict[str, int] = {}
        self.arrived = 0
        self.sequence = 0

    def take(self, actions):
        """Follow what the router does; the leases that began."""
        new = []
        for action in actions:
            if isinstance(action, Dispatch):
                context = self.queued.pop(action.request_id)
                spec = self.specs[action.instance]
                assert 0 <= action.rank < spec.width
                assert action.lease not in self.live
                assert action.lease not in self.gone
                self.live[action.lease] = Lease(action.request_id, spec.name, action.rank, context)
                new.append(action.lease)
                assert action.reason.partition("/")[2] in ("fresh", "ledger", "round_robin")
            elif isinstance(action, Reject):
                self.queued.pop(action.request_id, None)
                self.answers[action.request_id] = self.answers.get(action.request_id, 0) + 1
                assert action.status in (400, 409, 413, 429, 503)
                assert (action.retry_after_s >= 1.0) == (action.status in (429, 503))
            else:
                assert isinstance(action, Abort)
                assert self.live.pop(action.lease).request_id == action.request_id
                self.gone.append(action.lease)
        return multiple(*new)

    @rule(
        target=leases,
        sizes=st.lists(st.integers(1, 450), min_size=1, max_size=4),
        kind=st.sampled_from(["first", "second"]),
        talk=st.one_of(st.none(), st.sampled_from("xyz")),
    )
    def arrive(self, sizes, kind, talk):
        arrivals = []
        for size in sizes:
            self.arrived += 1
            arrivals.append(Arrival(f"r{self.arrived}", size, session=talk, request_class=kind))
            self.queued[arrivals[-1].request_id] = size
        if len(arrivals) == 1:
            return self.take(self.router.arrived(self.now, arrivals[0]))
        return self.take(self.router.arrived_many(self.now, arrivals))

    @rule(target=leases, lease=leases, count=st.integers(0, 9))
    def tokens(self, lease, count):
        if lease in self.live:
            self.live[lease].tokens += count
        return self.take(self.router.tokens(self.now, lease, count))

    @rule(
        lease=leases,
        prompt=st.one_of(st.none(), st.integers(1, 300)),
        output=st.one_of(st.none(), st.integers(0, 60)),
    )
    def usage(self, lease, prompt, output):
        if lease in self.live:
            found = self.live[lease]
            found.context = found.context if prompt is None else prompt
            found.tokens = found.tokens if output is None else output
        self.router.usage(self.now, lease, prompt_tokens=prompt, output_tokens=output)
        self.router.first_token(self.now, lease)

    def end(self, lease):
        if self.live.pop(lease, None) is not None:
            self.gone.append(lease)

    @rule(target=leases, lease=leases)
    def finish(self, lease):
        self.end(lease)
        return self.take(self.router.finished(self.now, lease))

    @rule(target=leases, lease=consumes(leases), reason=st.sampled_from(["client_gone", "reset", "timeout"]))
    def abort(self, lease, reason):
        self.end(lease)
        return self.take(self.router.aborted(self.now, lease, reason))

    @rule(target=leases, lease=st.integers(-(2**62), 2**62))
    def nonsense(self, lease):
        if lease not in self.live:
            self.router.tokens(self.now, lease, 1)
            self.router.usage(self.now, lease, prompt_tokens=3)
            self.router.aborted(self.now, lease, "reset")
            return self.take(self.router.finished(self.now, lease))
        return multiple()

    @rule(target=leases, number=st.integers(1, 60))
    def cancel(self, number):
        name = f"r{number}"
        queued = self.queued.pop(name, None)
        actions = self.router.cancelled(self.now, name)
        if queued is not None:
            assert not any(isinstance(a, Abort) and a.request_id == name for a in actions)
        return self.take(actions)

    @rule(target=leases, wait=st.sampled_from([0.0, 0.001, 0.3, 1.0, 4.0, 25.0]))
    def time(self, wait):
        self.now += wait
        due = self.router.next_wakeup_s()
        assert due is None or due == due
        return self.take(self.router.tick(self.now))

    @rule(
        target=reports,
        instance=st.integers(-1, 3),
        rank=st.integers(-1, 2),
        running=st.integers(0, 8),
        context=st.one_of(st.none(), st.integers(0, 900)),
        ago=st.sampled_from([0.0, 0.02, 0.5, 3.0, -1.0]),
        numbered=st.booleans(),
        seen=st.one_of(st.none(), st.integers(0, 30)),
    )
    def make_report(self, instance, rank, running, context, ago, numbered, seen):
        self.sequence += 1
        return RankReport(
            instance, rank, running, 1, context, None if context else 0.4, CAPACITY, 4,
            self.now - ago, self.sequence if numbered else None, seen,
        )  # fmt: skip

    @rule(target=leases, report=reports)
    def report(self, report):
        return self.take(self.router.report(self.now, report))

    @rule(
        target=leases,
        instance=st.integers(-1, 3),
        what=st.sampled_from(["lost", "ok", "rank", "drain", "undrain"]),
        rank=st.integers(-1, 2),
    )
    def health(self, instance, what, rank):
        router = self.router
        if what == "lost":
            actions = router.instance_lost(self.now, instance, "probe")
        elif what == "ok":
            actions = router.instance_ok(self.now, instance)
        elif what == "rank":
            actions = router.rank_lost(self.now, instance, rank)
        elif what == "drain":
            actions = router.drain(self.now, instance, None if rank < 0 else rank)
        else:
            actions = router.undrain(self.now, instance, None if rank < 0 else rank)
        return self.take(actions)

    @rule(
        target=leases,
        names=st.permutations(NAMES),
        count=st.integers(0, 3),
        widths=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    )
    def instances(self, names, count, widths):
        now = {spec.name: spec.width for spec in self.specs}
        specs = [
            InstanceSpec(name, now.get(name, w) if w < 3 else w, CAPACITY, 4)
            for name, w in zip(names[:count], widths, strict=False)
        ]
        self.specs = specs  # dispatches count in the new list
        actions = self.router.set_instances(self.now, specs)
        kept = {s.name for s in specs if s.width == now.get(s.name)}
        for lease in self.live.values():
            if lease.instance not in kept:
                lease.instance = ""
        for action in actions:
            assert not isinstance(action, Abort) or action.reason == "instance_changed"
        return self.take(actions)

    @rule(target=leases, instance=st.integers(0, 2))
    def adopt(self, instance):
        if instance >= len(self.specs):
            return multiple()
        self.arrived += 1
        lease = self.router.adopt(self.now, f"r{self.arrived}", instance, 0, 30, 4)
        self.live[lease] = Lease(f"r{self.arrived}", self.specs[instance].name, 0, 30, 4)
        return lease

    @invariant()
    def the_ledger_is_the_twins(self):
        view = self.router.view(self.now)
        assert view.leases == len(self.live)
        assert view.queued_requests == len(self.queued) == sum(view.queued.values())
        assert view.queued_tokens == sum(self.queued.values())
        position = {spec.name: i for i, spec in enumerate(self.specs)}
        batch, context = np.zeros(len(view.batch), int), np.zeros(len(view.batch), int)
        saturated = np.zeros(len(view.batch), int)
        for lease in self.live.values():
            if lease.instance not in position:
                continue
            r = int(
                np.flatnonzero((view.instance == position[lease.instance]) & (view.rank == lease.rank))[0]
            )
            batch[r] += 1
            context[r] += lease.context + lease.tokens
            saturated[r] += min(lease.context + lease.tokens, 50)
        assert view.own_batch.tolist() == batch.tolist()
        assert view.own_context_tokens.tolist() == context.tolist()
        assert self.router._tables.world.saturated[:, 0].tolist() == saturated.tolist()

    @invariant()
    def nothing_is_negative_and_the_view_adds_up(self):
        view = self.router.view(self.now)
        for loads in (view.batch, view.context_tokens, view.others_batch, view.others_context_tokens):
            assert (loads >= 0).all()
        assert (view.batch == view.own_batch + view.others_batch).all()
        assert self.router.policy_errors == 0
        assert view.counts["breaches"] == 0
        assert self.router.integrity().sound
        assert (view.free_tokens[view.drained] == -1).all()
        never = ("lost",) if self.router.settings.panic == "all" else ("lost", "open")
        closed = [i for i, s in enumerate(view.instance_states) if s in never]
        assert (view.free_tokens[np.isin(view.instance, closed)] == -1).all()
        assert max(self.answers.values(), default=1) == 1
        assert len(self.router._keys) == len(self.live) + len(self.queued)

    @invariant()
    def queues_are_bounded(self):
        assert len(self.queued) <= 6

    def teardown(self):
        while self.queued or self.live:
            self.now += 6.0
            self.take(self.router.tick(self.now))
            for lease in list(self.live):
                self.end(lease)
                self.take(self.router.finished(self.now, lease))
        view = self.router.view(self.now)
        assert view.leases == view.queued_requests == view.queued_tokens == view.queued_bytes == 0
        assert not view.own_batch.any()
        assert not view.own_context_tokens.any()
        assert not self.router._tables.world.saturated.any()
        assert not self.router._keys
        entries = self.router._tables.world.entries
        assert (entries["state"] == 0).all()


class ByInstance(Machine):
    policy, options = "equipoise", {"scope": "instance", "class_order": "strict", "affinity_bonus": 0.2}


class Extrapolated(Machine):
    policy, options = "dualpath", {"counts": "extrapolated", "reports": "none", "panic": "all"}


LONG = settings(
    max_examples=25, stateful_step_count=40, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestPool, TestByInstance, TestExtrapolated = Machine.TestCase, ByInstance.TestCase, Extrapolated.TestCase
TestPool.settings = TestByInstance.settings = TestExtrapolated.settings = LONG
