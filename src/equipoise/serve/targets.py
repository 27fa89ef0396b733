"""Where the ranks of the router's instances are reached: addresses as configured, joined into barriers.

One address may serve many ranks (the request names one), one rank (the address is the rank), or some of the ranks of a
barrier that spans several nodes. The router sees barriers with ranks 0 to R-1; a `Target` knows who serves which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from equipoise.engines import EngineInstance, Pin, WorkerSpec, get
from equipoise.engines.adapter import Adapter
from equipoise.engines.numbering import Probe
from equipoise.errors import InputError
from equipoise.router import InstanceSpec

__all__ = ["Node", "Target", "targets_of"]


@dataclass(slots=True)
class Node:
    """One address, or the ranks of one worker behind it.

    Attributes
    ----------
    engine : EngineInstance
        With ``ranks=1`` until the engine has been asked, where ``sized`` is false.
    adapter : Adapter
    first : int
        Rank of the target that is rank 0 here.
    sized : bool
        Whether the number of ranks is known.
    probe : Probe, optional
        Finds the numbering of a node that is not the first of its barrier.
    """

    engine: EngineInstance
    adapter: Adapter
    first: int
    sized: bool
    probe: Probe | None = None


@dataclass(slots=True)
class Target:
    """One instance of the router.

    Attributes
    ----------
    name : str
    nodes : list of Node
        In the order of their ranks.
    kv_capacity_tokens, max_batch : int, optional
        Of a rank, as configured.
    heard_s : float
        When the last byte of an answer came from there, on the driver's clock.
    """

    name: str
    nodes: list[Node]
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None
    heard_s: float = float("-inf")
    _pins: dict[tuple[int, str], Pin] = field(default_factory=dict)

    @property
    def sized(self) -> bool:
        """Whether all its ranks are known, so that the router may have it."""
        return all(node.sized for node in self.nodes)

    @property
    def ranks(self) -> int:
        """How many, as far as they are known."""
        return sum(node.engine.ranks for node in self.nodes)

    @property
    def url(self) -> str:
        """The first of its addresses."""
        return self.nodes[0].engine.urls[0]

    def names(self) -> list[str]:
        """Its ranks as ``URL@RANK``, as vllm-router and sglang-router write them."""
        return [
            f"{node.engine.urls[0]}@{node.engine.first_rank + k}"
            for node in self.nodes
            for k in range(node.engine.ranks)
        ]

    def spec(self) -> InstanceSpec:
        """The same in the router's words."""
        return InstanceSpec(self.name, self.ranks, self.kv_capacity_tokens, self.max_batch)

    def node_of(self, rank: int) -> Node:
        """Who serves a rank."""
        for node in reversed(self.nodes):
            if rank >= node.first:
                return node
        raise InputError(f"rank {rank} does not exist", where=self.name)

    def pin(self, rank: int, path: str) -> Pin:
        """What sends a request to a rank; `path` must be one of a few known ones, for pins are kept."""
        found = self._pins.get((rank, path))
        if found is None:
            node = self.node_of(rank)
            found = self._pins[rank, path] = node.adapter.pin(node.engine, rank - node.first, path)
        return found

    def renumber(self) -> None:
        """Ranks of the nodes have changed, or how they are named."""
        first = 0
        for node in self.nodes:
            node.first = first
            first += node.engine.ranks
        self._pins.clear()

    def size(self, node: Node, ranks: int) -> None:
        """The engine has said how many ranks a node has."""
        several = ranks > 1 or bool(node.engine.worker_id)
        node.engine = replace(node.engine, ranks=ranks, mode="header" if several else "port")
        node.sized = True
        self.renumber()


def targets_of(
    workers: Iterable[WorkerSpec],
    engine: str,
    ranks: int,
    *,
    kv_capacity_tokens: int | None = None,
    max_batch: int | None = None,
    header_overrides: bool = False,
) -> list[Target]:
    """Join workers into instances.

    Parameters
    ----------
    workers : iterable of WorkerSpec
    engine : str
        Of those that do not say.
    ranks : int
        The same; 0: to be asked of the engine.
    kv_capacity_tokens, max_batch : int, optional
        Of every rank.
    header_overrides : bool
        SGLang takes the rank of ``/generate`` from a header.

    Raises
    ------
    InputError
        Ranks of an instance overlap or leave a gap, or an engine is unknown.
    """
    groups: dict[str, list[WorkerSpec]] = {}
    for worker in workers:
        name = worker.instance or (f"{worker.url}#{worker.worker_id}" if worker.worker_id else worker.url)
        groups.setdefault(name, []).append(worker)
    return [
        Target(
            name,
            _nodes(name, members, engine, ranks, header_overrides),
            kv_capacity_tokens=kv_capacity_tokens,
            max_batch=max_batch,
        )
        for name, members in groups.items()
    ]


def _nodes(name: str, workers: Sequence[WorkerSpec], engine: str, ranks: int, overrides: bool) -> list[Node]:
    merged = _merge(sorted(workers, key=lambda w: w.first_rank))
    nodes: list[Node] = []
    expected = merged[0].first_rank
    for worker in merged:
        own = worker.ranks or ranks
        if worker.first_rank != expected:
            raise InputError(
                f"{worker.url} starts at rank {worker.first_rank}, where {expected} is due",
                where=f"instance {name!r}",
                fix="give ranks and first_rank of every worker of it, without a gap or overlap",
            )
        if len(merged) > 1 and not own:
            raise InputError(
                f"the number of ranks at {worker.url} is not given",
                where=f"instance {name!r}",
                fix="an instance of several workers needs ranks= of each",
            )
        kind = worker.engine or engine
        alone = own == 1 and not worker.worker_id
        several_nodes = worker.first_rank > 0 and not alone and kind == "vllm"
        nodes.append(
            Node(
                EngineInstance(
                    name,
                    kind,
                    (worker.url,),
                    ranks=own or 1,
                    mode="port" if alone else "header",
                    first_rank=worker.first_rank,
                    numbering="unknown" if several_nodes else "local",
                    worker_id=worker.worker_id,
                    metrics_urls=(worker.metrics_url,) if worker.metrics_url else (),
                    header_overrides=overrides,
                ),
                get(kind),
                worker.first_rank - merged[0].first_rank,
                sized=own > 0,
                probe=Probe(worker.first_rank, own) if several_nodes else None,
            )
        )
        expected += own
    return nodes


def _merge(workers: Sequence[WorkerSpec]) -> list[WorkerSpec]:
    """Ranks that were written one by one (``URL@0 URL@1``) are one worker."""
    merged: list[WorkerSpec] = []
    for worker in workers:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.ranks
            and worker.ranks
            and replace(worker, first_rank=0, ranks=0) == replace(last, first_rank=0, ranks=0)
            and worker.first_rank == last.first_rank + last.ranks
        ):
            merged[-1] = replace(last, ranks=last.ranks + worker.ranks)
        else:
            merged.append(worker)
    return merged
