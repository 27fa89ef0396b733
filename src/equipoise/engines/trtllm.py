"""TensorRT-LLM 1.3: iteration statistics from ``GET /metrics``, a JSON list that reading empties.

Needs ``enable_iter_perf_stats: true``. Only one reader may poll it. Its HTTP server takes no rank: ranks are chosen
through the LLM API, gRPC, or a Dynamo frontend before it.

Under attention DP there is a record a rank and iteration, told apart by ``attentionDpRank`` (PR 13649), but only the
counts of what was scheduled in it are that rank's own: active requests, KV blocks and limits are copies of rank 0's
(``_torch/pyexecutor/adp_iter_stats.py``), and the queue before the ranks is shown at rank 0. With
``TLLM_METRICS_ALL_RANKS=1`` (PR 13221) every rank writes a record of its own, told by ``rank``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.engines.adapter import Page
from equipoise.engines.types import MAX_RANKS, EngineInstance, Observation, Pin, RankLoad
from equipoise.engines.values import count, json_document, optional_count
from equipoise.errors import EngineError, InputError

__all__ = ["ADAPTER", "TensorRtLlm", "read_statistics"]

MAX_RECORDS = 1_000_000


def read_statistics(page: bytes) -> Observation:
    """Loads of the ranks in the last iteration that the list tells of; an empty list says nothing new.

    Raises
    ------
    EngineError
        It is no list of records, or a number in it is none.
    """
    source = "trtllm /metrics"
    records = json_document(page, source)
    if not isinstance(records, list):
        raise EngineError(f"{source}: there is no list of iterations.")
    if len(records) > MAX_RECORDS:
        raise EngineError(f"{source}: it lists {len(records):,} records; read it more often.")
    last: dict[int, tuple[int, Mapping[str, Any]]] = {}
    for record in records:
        if not isinstance(record, dict):
            raise EngineError(f"{source}: a record is no object.")
        rank = _rank(record, source)
        if rank >= MAX_RANKS:
            raise EngineError(f"{source}: attentionDpRank = {rank}; ranks are 0 to {MAX_RANKS - 1}.")
        iteration = count(record.get("iter", 0), "iter", source)
        if rank not in last or iteration >= last[rank][0]:
            last[rank] = (iteration, record)
    loads = tuple(_load(rank, *last[rank], source, alone=len(last) == 1) for rank in sorted(last))
    return Observation("trtllm", loads)


def _rank(record: Mapping[str, Any], source: str) -> int:
    """Whose it is: fanned out by rank 0, it has rank 0's ``rank``; of all ranks, it has ``attentionDpRank`` 0."""
    given = (optional_count(record.get(name), name, source) or 0 for name in ("attentionDpRank", "rank"))
    return max(given)


def _load(rank: int, iteration: int, record: Mapping[str, Any], source: str, alone: bool) -> RankLoad:
    def part(name: str) -> Mapping[str, Any]:
        value = record.get(name)
        return value if isinstance(value, dict) else {}

    batch, blocks = part("inflightBatchingStats"), part("kvCacheStats")

    def number(of: Mapping[str, Any], name: str) -> int | None:
        return optional_count(of.get(name), name, source)

    own = rank == 0 or record.get("rank") == rank  # else what is not counted by rank is rank 0's
    block = number(blocks, "tokensPerBlock") or None
    used, most = number(blocks, "usedNumBlocks") if own else None, number(blocks, "maxNumBlocks") or None
    attended = number(batch, "numGenKvTokens")
    context = attended
    if context is None and used is not None and block is not None:
        context = used * block
    # Beside other ranks all are counted alike, by what was scheduled; the queue belongs to none of them yet.
    counted = alone or record.get("rank") == rank
    active = number(record, "numActiveRequests") if counted else None
    if active is None:
        active = (number(batch, "numGenRequests") or 0) + (number(batch, "numContextRequests") or 0)
    waiting = number(record, "numQueuedRequests") if alone else number(batch, "numPausedRequests")
    return RankLoad(
        rank=rank,
        running=active,
        waiting=waiting or 0,
        context_tokens=context,
        exact_context=attended is not None,
        kv_usage=None if used is None or most is None else min(used / most, 1.0),
        kv_capacity_tokens=None if most is None or block is None else most * block,
        max_batch=number(record, "maxNumActiveRequests") or None,
        block_tokens=block,
        sequence=iteration,
    )


class TensorRtLlm:
    """The adapter."""

    kind = "trtllm"
    pages = (Page("metrics", "/metrics", drained=True),)

    def read(self, pages: Mapping[str, bytes]) -> Observation:
        """Loads of the ranks from ``metrics``."""
        return read_statistics(pages["metrics"])

    def pin(self, instance: EngineInstance, rank: int, path: str) -> Pin:
        """By port only."""
        instance.check_rank(rank)
        if instance.mode == "port":
            return Pin(instance.urls[rank])
        if instance.ranks == 1:
            return Pin(instance.urls[0])
        raise InputError(
            "the HTTP server of TensorRT-LLM takes no rank",
            where=f"instance {instance.name!r}",
            fix="put a Dynamo frontend before it (kind 'dynamo'), or run one server a rank (mode 'port')",
        )


ADAPTER = TensorRtLlm()
