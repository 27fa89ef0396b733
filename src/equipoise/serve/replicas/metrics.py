"""What the metrics tell of the other routers; of a router alone: that there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from equipoise.serve.replicas.owners import COUNTS, Owners

__all__ = ["families"]

PREFIX = "equipoise_ownership_"


def families(owners: Owners | None) -> Iterator[Metric]:
    """The metrics; without `owners` they have no samples.

    Parameters
    ----------
    owners : Owners, optional
    """
    yield _gauge(
        "up", "1: the last word with Redis went well; 0: owners go on, nothing changes hands.", owners
    )
    yield _gauge("routers", "Routers that Redis sees, this one included.", owners)
    yield _gauge("rebuilding", "Owned instances whose ledger is being rebuilt.", owners)
    yield _gauge("far_requests", "Requests that pass here and are in the ledger of another router.", owners)
    yield _gauge("kept_requests", "Requests in this ledger that pass through another router.", owners)
    yield _gauge("untold", "News that other routers have not confirmed.", owners)
    yield _gauge("store_failures", "Beats in a row that Redis did not answer.", owners)
    instances = GaugeMetricFamily(
        PREFIX + "instances", "Instances of the pool by who places there.", labels=["owner"]
    )
    refused = CounterMetricFamily(PREFIX + "refused_calls", "Calls without the routers' token, or garbled.")
    events = CounterMetricFamily(
        PREFIX + "events",
        "What happened between routers: instances and requests that moved, calls.",
        labels=["event"],
    )
    rebuilds = SummaryMetricFamily(PREFIX + "rebuild_seconds", "From owning an instance to placing on it.")
    if owners is not None:
        ownership = owners.ownership
        mine = sum(own.serving for own in ownership.mine.values())
        others = len(ownership.others)
        nobody = len(owners.specs) - len(ownership.mine) - others
        for owner, count in (("self", mine), ("other", others), ("nobody", max(nobody, 0))):
            instances.add_metric([owner], float(count))
        refused.add_metric([], float(owners.server.refused))
        for event in COUNTS:
            events.add_metric([event], float(owners.counts[event]))
        rebuilds.add_metric([], owners.counts["rebuilt"], owners.moves.rebuild_sum_s)
    yield instances
    yield refused
    yield events
    yield rebuilds


def _gauge(name: str, text: str, owners: Owners | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text)
    if owners is not None:
        family.add_metric([], float(VALUES[name](owners)))
    return family


VALUES: dict[str, Callable[[Owners], int]] = {
    "up": lambda o: o.ownership.up,
    "routers": lambda o: len(o.ownership.members),
    "rebuilding": lambda o: sum(not own.serving for own in o.ownership.mine.values()),
    "far_requests": lambda o: len(o.far),
    "kept_requests": lambda o: len(o.keeper.kept),
    "untold": lambda o: sum(peer.untold for peer in o.peers.values()),
    "store_failures": lambda o: o.ownership.failures,
}
