"""SGLang 0.5.23: ``GET /v1/loads`` (or gauges by ``dp_rank``), ranks by header, override header or body field.

``entrypoints/v1_loads.py``, ``managers/load_snapshot.py`` (loads), ``observability/metrics_collector.py`` (metrics),
``entrypoints/openai/serving_base.py`` and ``entrypoints/request_headers.py`` (headers), ``managers/io_struct.py``
(``routed_dp_rank``). A snapshot is written every 15 decode iterations unless ``--load-snapshot-publish-interval`` says
otherwise; its age is the difference of two times that the same server wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from equipoise.engines.adapter import Page
from equipoise.engines.exposition import samples
from equipoise.engines.types import MAX_RANKS, EngineInstance, Observation, Pin, RankLoad
from equipoise.engines.values import count, json_document, label_rank, optional_count, share
from equipoise.errors import EngineError

__all__ = ["ADAPTER", "Sglang", "read_loads", "read_metrics", "read_server_info"]

PREFIX = "sglang:"
RUNNING, QUEUE, USED, USAGE, CAPACITY, LENGTHS, RETRACTED = (
    PREFIX + name
    for name in (
        "num_running_reqs",
        "num_queue_reqs",
        "num_used_tokens",
        "token_usage",
        "max_total_num_tokens",
        "decode_sum_seq_lens",
        "num_retracted_requests_total",
    )
)
OLDEST_S = 86_400.0
"""An age beyond a day is a clock that was set, not an age."""


def read_loads(page: bytes) -> Observation:
    """Loads of the ranks from the JSON of ``GET /v1/loads``.

    Raises
    ------
    EngineError
        It is no such document, a rank stands in it twice, or a number in it is none.
    """
    source = "sglang /v1/loads"
    document = json_document(page, source)
    loads = document.get("loads") if isinstance(document, dict) else None
    if not isinstance(loads, list):
        raise EngineError(f"{source}: there is no list of loads.")
    if len(loads) > MAX_RANKS:
        raise EngineError(f"{source}: it lists {len(loads):,} ranks; the limit is {MAX_RANKS:,}.")
    now_s = _clock(document.get("timestamp"))
    ranks: dict[int, RankLoad] = {}
    for load in loads:
        if not isinstance(load, dict):
            raise EngineError(f"{source}: a load is no object.")
        read = _load(load, now_s, source)
        if read.rank in ranks:
            raise EngineError(f"{source}: rank {read.rank} stands in it twice.")
        ranks[read.rank] = read
    notes = () if now_s is not None else ("sglang does not date /v1/loads: its reports are taken as fresh.",)
    return Observation("sglang", tuple(ranks[r] for r in sorted(ranks)), notes=notes)


def _load(load: Mapping[str, Any], now_s: float | None, source: str) -> RankLoad:
    rank = count(load.get("dp_rank", 0), "dp_rank", source)
    if rank >= MAX_RANKS:
        raise EngineError(f"{source}: dp_rank = {rank}; ranks are 0 to {MAX_RANKS - 1}.")
    active = optional_count(load.get("num_active_tokens"), "num_active_tokens", source)
    used = optional_count(load.get("num_used_tokens"), "num_used_tokens", source)
    capacity = optional_count(load.get("max_total_num_tokens"), "max_total_num_tokens", source)
    most = optional_count(load.get("max_running_requests"), "max_running_requests", source)
    taken_s = _clock(load.get("timestamp"))
    age_s = 0.0
    if now_s is not None and taken_s is not None and taken_s > 0:
        age_s = min(max(now_s - taken_s, 0.0), OLDEST_S)
    # A server older than num_active_tokens has resident tokens only; 0 next to used tokens means the same.
    context = used if active is None or (active == 0 and used) else active
    return RankLoad(
        rank=rank,
        running=count(load.get("num_running_reqs"), "num_running_reqs", source),
        waiting=count(load.get("num_waiting_reqs", 0), "num_waiting_reqs", source),
        context_tokens=context,
        exact_context=context is not None,
        kv_usage=share(load.get("token_usage"), "token_usage", source),
        kv_capacity_tokens=capacity or None,
        max_batch=most or None,
        age_s=age_s,
    )


def read_metrics(page: bytes) -> Observation:
    """Loads of the ranks from ``GET /metrics`` (``--enable-metrics``); several series of a rank: the largest.

    Raises
    ------
    EngineError
        It has no running requests by rank, or a number in it is none.
    """
    source = "sglang metrics"
    found = samples(page, (RUNNING, QUEUE, USED, USAGE, CAPACITY, LENGTHS, RETRACTED), source)
    by_rank: dict[str, dict[int, float]] = {}
    for name, lines in found.items():
        values = by_rank[name] = {}
        for labels, value in lines:
            rank = label_rank(labels.get("dp_rank"), f"dp_rank of {name}", source)
            values[rank] = max(value, values.get(rank, value))
    if not by_rank[RUNNING]:
        raise EngineError(f"{source}: there is no {RUNNING}; start SGLang with --enable-metrics.")

    def number(name: str, rank: int) -> int | None:
        return optional_count(by_rank[name].get(rank), name, source)

    loads = []
    for rank in sorted(by_rank[RUNNING]):
        lengths, used = number(LENGTHS, rank), number(USED, rank)
        loads.append(
            RankLoad(
                rank=rank,
                running=count(by_rank[RUNNING][rank], RUNNING, source),
                waiting=number(QUEUE, rank) or 0,
                context_tokens=lengths or used,
                exact_context=bool(lengths),
                kv_usage=share(by_rank[USAGE].get(rank), USAGE, source),
                kv_capacity_tokens=number(CAPACITY, rank) or None,
                preemptions=number(RETRACTED, rank),
            )
        )
    return Observation("sglang", tuple(loads))


def read_server_info(page: bytes) -> int:
    """Number of ranks from the JSON of ``GET /server_info``.

    Raises
    ------
    EngineError
        It is no JSON object, or its ``dp_size`` is no number of ranks.
    """
    source = "sglang /server_info"
    document = json_document(page, source)
    if not isinstance(document, dict):
        raise EngineError(f"{source}: it is no object.")
    size = document.get("dp_size")
    if size is None and isinstance(document.get("server_args"), dict):
        size = document["server_args"].get("dp_size")
    ranks = count(1 if size is None else size, "dp_size", source)
    if not 1 <= ranks <= MAX_RANKS:
        raise EngineError(f"{source}: dp_size = {ranks}; it is from 1 to {MAX_RANKS}.")
    return ranks


def _clock(value: Any) -> float | None:
    """Seconds since 1970 of a number or an ISO time; a time without a zone is UTC."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e12 else None  # NaN and inf are not
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


class Sglang:
    """The adapter."""

    kind = "sglang"
    pages = (Page("loads", "/v1/loads?include=core"),)

    def read(self, pages: Mapping[str, bytes]) -> Observation:
        """Loads of the ranks from ``loads``, or from ``metrics`` where that is what was read."""
        return read_loads(pages["loads"]) if "loads" in pages else read_metrics(pages["metrics"])

    def pin(self, instance: EngineInstance, rank: int, path: str) -> Pin:
        """By header on OpenAI routes; on ``/generate`` by body field, or by override header where that is enabled."""
        instance.check_rank(rank)
        if instance.mode == "port":
            return Pin(instance.urls[rank])
        number = instance.first_rank + rank  # SGLang knows one numbering, that of the whole instance
        if path.partition("?")[0].rstrip("/").startswith("/v1/"):
            return Pin(instance.urls[0], (("X-Data-Parallel-Rank", str(number)),))
        if instance.header_overrides:
            return Pin(instance.urls[0], (("x-override-routed-dp-rank", str(number)),))
        return Pin(instance.urls[0], body=(("routed_dp_rank", number),))


ADAPTER = Sglang()
