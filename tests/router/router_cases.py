"""What the router tests share."""

from __future__ import annotations

from equipoise.cost.step_cost import StepCost, Term
from equipoise.router import Arrival, Dispatch, InstanceSpec, RankReport, Reject, Router, Settings

COST = StepCost("linear", (Term("all", 1.0, per_100k_context=100.0),))
"""A thousand tokens weigh as much as a request."""
QUIET = {"reports": "none", "slow_start_s": 0.0, "classes": {"default": 1.0}}


def router_of(
    *widths, policy="least_batch", capacity=10_000, max_batch=None, sink=None, shadows=(), **settings
):
    specs = [InstanceSpec(f"i{k}", w, capacity, max_batch) for k, w in enumerate(widths or (2,))]
    return Router(specs, policy, COST, Settings(**QUIET | settings), sink=sink, shadows=shadows)


class Driver:
    """Numbers requests, and keeps what came of them."""

    def __init__(self, router):
        self.router, self.now, self.count = router, 0.0, 0
        self.leases, self.where, self.rejects, self.aborts, self.order = {}, {}, {}, {}, []

    def take(self, actions):
        for action in actions:
            if isinstance(action, Dispatch):
                self.leases[action.request_id] = action.lease
                self.where[action.request_id] = (action.instance, action.rank)
                self.order.append(action.request_id)
            elif isinstance(action, Reject):
                self.rejects[action.request_id] = action
            else:
                self.aborts[action.request_id] = action.reason
        return actions

    def send(self, context=100, **fields):
        self.count += 1
        name = f"r{self.count}"
        self.take(self.router.arrived(self.now, Arrival(name, context, **fields)))
        return name

    def finish(self, name, tokens=0):
        lease = self.leases.pop(name)
        if tokens:
            self.take(self.router.tokens(self.now, lease, tokens))
        return self.take(self.router.finished(self.now, lease))

    def abort(self, name, reason="reset"):
        return self.take(self.router.aborted(self.now, self.leases.pop(name), reason))

    def wait(self, seconds):
        self.now += seconds
        return self.take(self.router.tick(self.now))

    def report(self, instance, rank, running, context=None, *, ago=0.0, **fields):
        return self.take(
            self.router.report(
                self.now, RankReport(instance, rank, running, 0, context, taken_at_s=self.now - ago, **fields)
            )
        )

    def view(self):
        return self.router.view(self.now)
