"""vLLM 0.33: gauges by ``engine`` label, ranks by header ``X-data-parallel-rank`` or by port.

``vllm/v1/metrics/loggers.py`` (metrics), ``vllm/entrypoints/generate/base/serving.py`` (header),
``vllm/v1/engine/input_processor.py`` (range of the rank). vLLM exports no context tokens: they are made from the share
of used KV blocks, in which a shared prefix counts once. It exports neither its ``--max-num-seqs``.
"""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.engines.adapter import Page
from equipoise.engines.exposition import Sample, samples
from equipoise.engines.numbering import numbered
from equipoise.engines.types import EngineInstance, Observation, Pin, RankLoad
from equipoise.engines.values import count, label_rank, share
from equipoise.errors import EngineError

__all__ = ["ADAPTER", "Vllm", "read_metrics"]

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
USAGE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
CACHE = "vllm:cache_config_info"


def read_metrics(page: bytes, kind: str = "vllm") -> Observation:
    """Loads of the ranks on a page of metrics with vLLM's names.

    Parameters
    ----------
    page : bytes
        ``GET /metrics``.
    kind : str
        Whose page it is: Dynamo's workers use the same names.

    Raises
    ------
    EngineError
        It has no running requests by engine, or a number in it is none.
    """
    source = f"{kind} metrics"
    found = samples(page, (RUNNING, WAITING, USAGE, PREEMPTIONS, CACHE), source)
    running = _by_rank(found[RUNNING], RUNNING, source)
    if not running:
        raise EngineError(f"{source}: there is no {RUNNING}; this is no page of a vLLM with stats enabled.")
    waiting = _by_rank(found[WAITING], WAITING, source)
    usage = _by_rank(found[USAGE], USAGE, source)
    preempted = _by_rank(found[PREEMPTIONS], PREEMPTIONS, source)
    cache = {label_rank(s.labels.get("engine"), "engine", source): s.labels for s in found[CACHE]}
    notes = []
    if not usage:
        notes.append(f"{kind} does not export {USAGE}: foreign load is known in requests only.")
    if not cache:
        notes.append(f"{kind} does not export {CACHE}: the KV capacity has to be configured.")
    loads = []
    for rank in sorted(running):
        block, capacity = _capacity(cache.get(rank, {}))
        used = share(usage.get(rank), USAGE, source)
        loads.append(
            RankLoad(
                rank=rank,
                running=count(running[rank], RUNNING, source),
                waiting=count(waiting.get(rank, 0), WAITING, source),
                context_tokens=None if used is None or capacity is None else round(used * capacity),
                kv_usage=used,
                kv_capacity_tokens=capacity,
                block_tokens=block,
                preemptions=count(preempted[rank], PREEMPTIONS, source) if rank in preempted else None,
            )
        )
    return Observation(kind, tuple(loads), notes=tuple(notes))


def _by_rank(found: list[Sample], name: str, source: str) -> dict[int, float]:
    values: dict[int, float] = {}
    for labels, value in found:
        rank = label_rank(labels.get("engine"), f"engine of {name}", source)
        values[rank] = max(value, values.get(rank, value))
    return values


def _capacity(labels: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Tokens of a block and of the whole cache; an engine that is still starting shows ``None``."""

    def number(name: str) -> int | None:
        text = labels.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) else None

    block, tokens, blocks = number("block_size"), number("kv_cache_size_tokens"), number("num_gpu_blocks")
    if tokens is None and block is not None and blocks is not None:
        tokens = block * blocks
    return block, tokens


class Vllm:
    """The adapter."""

    kind = "vllm"
    pages = (Page("metrics", "/metrics"),)

    def read(self, pages: Mapping[str, bytes]) -> Observation:
        """Loads of the ranks from ``metrics``."""
        return read_metrics(pages["metrics"])

    def pin(self, instance: EngineInstance, rank: int, path: str) -> Pin:
        """By port, or by header on every route that generates.

        A server of one rank refuses any header rank above 0, even its own number: with a port a rank nothing is set.
        """
        instance.check_rank(rank)
        if instance.mode == "port":
            return Pin(instance.urls[rank])
        return Pin(instance.urls[0], (("X-data-parallel-rank", str(numbered(instance, rank))),))


ADAPTER = Vllm()
