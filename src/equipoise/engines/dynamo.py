"""Dynamo 1.6: requests through the frontend, loads from the workers' system port, ranks by worker id and rank.

Workers (and the mocker) export vLLM's names at their system port; the frontend exports what its own router believes,
by ``worker_id`` and ``dp_rank``, and the size of the KV cache of each model. Without the worker id the frontend
ignores the rank, silently; a rank out of range answers 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from equipoise.engines import vllm
from equipoise.engines.adapter import Page
from equipoise.engines.exposition import samples
from equipoise.engines.types import EngineInstance, Observation, Pin, RankLoad
from equipoise.engines.values import count, json_document, label_rank
from equipoise.errors import EngineError, InputError

__all__ = ["ADAPTER", "Dynamo", "read_frontend", "read_workers"]

BLOCKS = "dynamo_frontend_worker_active_decode_blocks"
TOTAL = "dynamo_frontend_model_total_kv_blocks"
BLOCK_SIZE = "dynamo_frontend_model_kv_cache_block_size"
MAX_SEQS = "dynamo_frontend_model_max_num_seqs"
MAX_WORKERS = 100_000


def read_workers(page: bytes) -> tuple[str, ...]:
    """Ids of the workers that generate, from the JSON of the frontend's ``GET /health``.

    Raises
    ------
    EngineError
        It is no such document.
    """
    source = "dynamo /health"
    document = json_document(page, source)
    listed = document.get("instances", []) if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > MAX_WORKERS:
        raise EngineError(f"{source}: there is no list of instances.")
    workers = set()
    for instance in listed:
        if not isinstance(instance, dict):
            raise EngineError(f"{source}: an instance is no object.")
        if instance.get("endpoint") != "generate":
            continue
        number = instance.get("instance_id")
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 64:
            raise EngineError(f"{source}: instance_id = {str(number)[:40]} is no worker id.")
        workers.add(str(number))
    return tuple(sorted(workers))


def read_frontend(page: bytes) -> Observation:
    """What the frontend believes of the ranks: blocks it counts there, and the size of the caches.

    Ranks it never sent a request to are missing. The loads have no requests, so they add to the reports of the
    workers and do not replace them.

    Raises
    ------
    EngineError
        A number in it is none.
    """
    source = "dynamo frontend metrics"
    found = samples(page, (BLOCKS, TOTAL, BLOCK_SIZE, MAX_SEQS), source)

    def only(name: str) -> int | None:
        # One model a frontend is the rule; of several the smallest is safe for all.
        values = [count(s.value, name, source) for s in found[name]]
        return min(values) or None if values else None

    block, total, most = only(BLOCK_SIZE), only(TOTAL), only(MAX_SEQS)
    loads: dict[tuple[str, int], RankLoad] = {}
    for labels, value in found[BLOCKS]:
        worker = labels.get("worker_id", "")
        rank = label_rank(labels.get("dp_rank"), "dp_rank", source)
        loads[worker, rank] = RankLoad(
            rank=rank,
            running=0,
            waiting=0,
            context_tokens=None if block is None else count(value, BLOCKS, source) * block,
            kv_capacity_tokens=None if total is None or block is None else total * block,
            max_batch=most,
            block_tokens=block,
            worker_id=worker,
        )
    return Observation("dynamo", tuple(loads[key] for key in sorted(loads)))


class Dynamo:
    """The adapter."""

    kind = "dynamo"
    pages = (
        Page("metrics", "/metrics"),
        Page("health", "/health", where="api"),
        Page("frontend", "/metrics", where="api", required=False),
    )

    def read(self, pages: Mapping[str, bytes]) -> Observation:
        """Loads of a worker's ranks; capacity and batch limit from the frontend where the worker does not say."""
        seen = vllm.read_metrics(pages["metrics"], "dynamo")
        workers = read_workers(pages["health"]) if "health" in pages else ()
        if "frontend" not in pages:
            return replace(seen, workers=workers)
        source = "dynamo frontend metrics"
        found = samples(pages["frontend"], (TOTAL, BLOCK_SIZE, MAX_SEQS), source)
        sizes = {name: [count(s.value, name, source) for s in lines] for name, lines in found.items()}
        block, total, most = (min(sizes[n], default=0) for n in (BLOCK_SIZE, TOTAL, MAX_SEQS))
        ranks = tuple(_completed(load, block, total, most) for load in seen.ranks)
        notes = seen.notes
        if block and total:
            notes = tuple(note for note in notes if vllm.CACHE not in note)
        return Observation("dynamo", ranks, workers, notes)

    def pin(self, instance: EngineInstance, rank: int, path: str) -> Pin:
        """By two headers; they win over ``nvext`` in the body."""
        instance.check_rank(rank)
        if instance.mode == "port":
            return Pin(instance.urls[rank])
        if not instance.worker_id:
            raise InputError(
                "no worker id is known, and without it Dynamo ignores the rank",
                where=f"instance {instance.name!r}",
                fix="give worker_id, or let discovery read it from the frontend's /health",
            )
        return Pin(
            instance.urls[0],
            (
                ("x-dynamo-worker-instance-id", instance.worker_id),
                ("x-dynamo-dp-rank", str(instance.first_rank + rank)),
            ),
        )


def _completed(load: RankLoad, block: int, total: int, most: int) -> RankLoad:
    capacity = load.kv_capacity_tokens or (total * block or None)
    context = load.context_tokens
    if context is None and capacity is not None and load.kv_usage is not None:
        context = round(load.kv_usage * capacity)
    return replace(
        load,
        kv_capacity_tokens=capacity,
        context_tokens=context,
        block_tokens=load.block_tokens or block or None,
        max_batch=load.max_batch or most or None,
    )


ADAPTER = Dynamo()
