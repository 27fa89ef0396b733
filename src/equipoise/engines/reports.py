"""From what an engine showed to what the router takes: the router's numbers of ranks, and times on its clock."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.engines.types import EngineInstance, Observation, RankLoad
from equipoise.errors import EngineError
from equipoise.router.events import RankReport

__all__ = ["rank_reports"]


def rank_reports(
    instance: EngineInstance, index: int, seen: Sequence[Observation], asked_s: float
) -> list[RankReport]:
    """Reports of one look at an instance.

    Parameters
    ----------
    instance : EngineInstance
        Whose look it was.
    index : int
        Its position in the router's list.
    seen : sequence of Observation
        What `equipoise.engines.Client.observe` returned: one, or with ``mode="port"`` one a rank.
    asked_s : float
        When the engine was asked, on the router's clock. The answer may be a little younger; taken as that old, it
        never hides a request that it did not show.

    Raises
    ------
    EngineError
        The engine shows ranks that the instance does not have.
    """
    loads: dict[int, RankLoad] = {}
    if instance.mode == "port":
        for rank, one in enumerate(seen):
            own = _own(instance, one)
            if len(own) > 1:
                raise EngineError(
                    f"{instance.urls[rank]} shows {len(own)} ranks, but instance {instance.name!r} has a port a rank."
                )
            # A server that is one rank labels it as it likes: with 0, or with its number in the deployment.
            if own:
                loads[rank] = own[0]
    else:
        own = [load for one in seen for load in _own(instance, one)]
        # vLLM labels by the number in the whole deployment, others by that in the instance.
        shift = instance.first_rank if own and min(load.rank for load in own) >= instance.first_rank else 0
        for load in own:
            rank = load.rank - shift
            if rank >= instance.ranks:
                raise EngineError(
                    f"instance {instance.name!r} shows rank {load.rank}, but has {instance.ranks} from "
                    f"{instance.first_rank}."
                )
            loads[rank] = load
    return [_report(index, rank, loads[rank], asked_s) for rank in sorted(loads)]


def _own(instance: EngineInstance, seen: Observation) -> list[RankLoad]:
    return [load for load in seen.ranks if load.worker_id in ("", instance.worker_id)]


def _report(index: int, rank: int, load: RankLoad, asked_s: float) -> RankReport:
    return RankReport(
        instance=index,
        rank=rank,
        running=load.running,
        waiting=load.waiting,
        context_tokens=load.context_tokens,
        kv_usage=load.kv_usage,
        kv_capacity_tokens=load.kv_capacity_tokens,
        max_batch=load.max_batch,
        taken_at_s=asked_s - load.age_s,
        sequence=load.sequence,
    )
