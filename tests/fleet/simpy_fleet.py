"""A small fleet in SimPy, written from the documented rules alone: processes that sleep, wake and send each other on.

Everything happens at its own moment here; the kernel looks at what has come only when it has something to decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy


@dataclass(frozen=True)
class Plan:
    """What the model needs to know of a deployment, in seconds and tokens."""

    instances: int
    ranks: int
    capacity: float
    max_batch: float
    block: int
    rule: str
    step_s: object
    """(batches, contexts) of an instance's ranks -> seconds."""
    transfer_s: tuple[float, float] = (0.0, 0.0)
    delay_s: tuple[float, float] | None = None
    """Prefill takes a fixed time and so much a token."""
    prefill: tuple[int, int, int, object] | None = None
    """Prefill pool: instances, ranks, chunk, (list of (offset, tokens) a rank) -> seconds."""
    retry_s: float = 0.0
    most_tries: int = 10**9
    changes: tuple = ()
    """(seconds, "die" or "return", instance, rank or None, notice in seconds)."""


@dataclass(eq=False)
class Request:
    context: int
    until: int
    think_s: float
    cached: int = 0
    following: Request | None = None
    tries: int = 0
    left: int = 0  # prompt tokens to compute
    told: dict = field(default_factory=dict)

    def __post_init__(self):
        self.size = self.context

    def note(self, what, value, *, first=False):
        if not (first and what in self.told):
            self.told[what] = value


class SimPyFleet:
    def __init__(self, plan, arrivals, requests, first):
        self.plan, self.env = plan, simpy.Environment()
        total = plan.instances * plan.ranks
        self.rows, self.queue = [[] for _ in range(total)], [[] for _ in range(total)]
        self.up, self.closed = [True] * total, [False] * total
        self.running = [False] * plan.instances
        self.bell = [None] * plan.instances
        self.void = [None] * plan.instances
        self.coming, self.waiting, self.arrivals = [], [], 0
        for i in range(plan.instances):
            self.env.process(self.instance(i))
        if plan.prefill:
            count, ranks, *_ = plan.prefill
            self.prompts = [[[] for _ in range(ranks)] for _ in range(count)]
            self.prefill_bell = [None] * count
            for i in range(count):
                self.env.process(self.prefill_instance(i))
        for change in sorted(plan.changes, key=lambda c: c[0]):
            self.env.process(self.change(*change))
        self.env.process(self.source(arrivals, [requests[q] for q in first]))
        self.env.run()

    def hold(self, tokens):
        return -(-tokens // self.plan.block) * self.plan.block

    # -- the way to the routers -----------------------------------------------------------------------------------

    def source(self, arrivals, requests):
        for at, q in zip(arrivals, requests, strict=True):
            yield self.env.timeout(at - self.env.now)
            self.arrive(q)

    def later(self, delay_s, do, *arguments):
        def wait():
            yield self.env.timeout(delay_s)
            do(*arguments)

        self.env.process(wait())

    def arrive(self, q):
        q.note("arrived", self.env.now, first=True)
        missing = max(0, q.size - (q.cached if q.tries == 0 else 0))
        q.note("came", self.env.now)
        self.arrivals += 1
        q.note("arrival", self.arrivals)
        if self.plan.prefill and missing:
            q.left = missing
            ranks = [rank for instance in self.prompts for rank in instance]
            min(ranks, key=lambda rank: sum(p.left for p in rank)).append(q)
            for bell in self.prefill_bell:
                if bell is not None and not bell.triggered:
                    bell.succeed()
        else:
            fixed, each = self.plan.delay_s or (0.0, 0.0)
            self.later(fixed + missing * each, self.computed, q)
        self.something_came()

    def prefill_instance(self, i):
        *_, chunk, price = self.plan.prefill
        while True:
            if not any(self.prompts[i]):
                self.prefill_bell[i] = self.env.event()
                yield self.prefill_bell[i]
                self.prefill_bell[i] = None
                if not any(self.prompts[i]):
                    continue
            taken = []
            for rank in self.prompts[i]:
                budget, pieces = chunk, []
                for q in rank:
                    n = min(q.left, budget)
                    if n:
                        pieces.append((q, q.size - q.left, n))
                    budget -= n
                taken.append(pieces)
            yield self.env.timeout(price([[(offset, n) for _, offset, n in pieces] for pieces in taken]))
            for rank, pieces in zip(self.prompts[i], taken, strict=True):
                for q, _, n in pieces:
                    q.left -= n
                    if q.left == 0:
                        rank.remove(q)
                        self.computed(q)

    def computed(self, q):
        fixed, each = self.plan.transfer_s
        self.later(fixed + q.size * each, self.ready, q)

    def ready(self, q):
        q.note("queued", self.env.now)
        self.coming.append(q)
        self.something_came()

    def something_came(self):
        """Routers look up when an instance could start at once; else they wait for the next boundary."""
        ready = any(not self.running[i] and self.alive(i) for i in range(self.plan.instances))
        if ready:
            self.look()
        elif self.plan.prefill or not any(self.running):
            self.queue_up()

    # -- routers --------------------------------------------------------------------------------------------------

    def queue_up(self):
        """First come, first served."""
        self.waiting += sorted(self.coming, key=self.turn_of)
        self.coming = []

    def turn_of(self, q):
        """In the order in which they got ready."""
        return q.told["queued"], q.told["arrival"]

    def look(self):
        self.queue_up()
        sent = [[] for _ in self.rows]  # to ranks that nobody knows are dead: counted until the round is over
        while self.waiting:
            q = self.waiting[0]
            held = [self.rows[r] + self.queue[r] + sent[r] for r in range(len(self.rows))]
            room = [
                r
                for r, there in enumerate(held)
                if not self.closed[r]
                and len(there) < self.plan.max_batch
                and sum(self.hold(x.size) for x in there) + self.hold(q.size) <= self.plan.capacity
            ]
            if not room:
                break
            weight = len if self.plan.rule == "least_batch" else lambda there: sum(x.size for x in there)
            r = min(room, key=lambda r: weight(held[r]))
            self.waiting.pop(0)
            q.note("rank", r)
            q.note("placed", self.env.now)
            if self.up[r]:
                self.queue[r].append(q)
            else:
                sent[r].append(q)
                self.lose(q)
        for i, bell in enumerate(self.bell):
            if bell is not None and not bell.triggered and self.alive(i) and self.loaded(i):
                bell.succeed()

    # -- engines --------------------------------------------------------------------------------------------------

    def of(self, i):
        return range(i * self.plan.ranks, (i + 1) * self.plan.ranks)

    def alive(self, i):
        return any(self.up[r] for r in self.of(i))

    def loaded(self, i):
        return any(self.rows[r] or self.queue[r] for r in self.of(i))

    def instance(self, i):
        while True:
            if not (self.alive(i) and self.loaded(i)):
                self.bell[i] = self.env.event()
                yield self.bell[i]
                self.bell[i] = None
                if not (self.alive(i) and self.loaded(i)):
                    continue
            self.running[i], self.void[i] = True, self.env.event()
            for r in self.of(i):
                while self.queue[r] and len(self.rows[r]) < self.plan.max_batch:
                    held = sum(self.hold(q.size) for q in self.rows[r])
                    if held + self.hold(self.queue[r][0].size) > self.plan.capacity:
                        break
                    self.rows[r].append(self.queue[r].pop(0))
                    self.rows[r][-1].note("start", self.env.now, first=True)
            batches = [len(self.rows[r]) for r in self.of(i)]
            contexts = [sum(q.size for q in self.rows[r]) for r in self.of(i)]
            yield self.env.timeout(self.plan.step_s(batches, contexts)) | self.void[i]
            self.running[i] = False
            if self.void[i].triggered:
                continue
            for r in self.of(i):
                for q in list(self.rows[r]):
                    q.size += 1
                    q.note("first", self.env.now, first=True)
                    if q.size == q.until:
                        self.rows[r].remove(q)
                        self.end(q, "finished")
            self.look()

    def end(self, q, how):
        q.note("ended", self.env.now)
        q.note("status", how)
        if q.following is None:
            return
        if how == "finished":
            self.later(q.following.think_s, self.arrive, q.following)
        else:
            q.following.note("status", "dropped")
            self.end(q.following, "dropped")

    def lose(self, q):
        q.tries += 1
        if q.tries > self.plan.most_tries:
            self.end(q, "failed")
        else:
            self.later(self.plan.retry_s, self.arrive, q)

    def change(self, at, what, i, rank, notice_s):
        yield self.env.timeout(at)
        chosen = self.of(i) if rank is None else [i * self.plan.ranks + rank]
        for r in chosen:
            if what == "return":
                self.up[r] = True
            elif self.up[r]:
                self.up[r] = False
                lost, self.rows[r], self.queue[r] = self.rows[r] + self.queue[r], [], []
                for q in lost:
                    self.lose(q)
        if self.running[i] and not self.alive(i):
            self.running[i] = False
            self.void[i].succeed()
        self.look()
        yield self.env.timeout(notice_s)
        for r in chosen:
            self.closed[r] = what == "die"
        self.look()
