"""How much to ask of a deployment: a load that it can hold, and the arrival rate at which it holds it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.fleet.arrays import cached_prefix
from equipoise.fleet.config import Deployment
from equipoise.replay.engine import DEFAULT_BATCH
from equipoise.study.workloads import decode_mean_of_least, load_source
from equipoise.traces.resolve import preset_of
from equipoise.traces.statistics import describe
from equipoise.traces.synthetic import synth
from equipoise.traces.trace import Trace
from equipoise.types import Ints

__all__ = ["rate_for", "recorded_rate_per_s", "redrawn", "usual_concurrency"]

FILLED = 0.6
"""Share of the KV cache that the usual load fills on average: lengths scatter, and a full rank preempts."""
PROBE_REQUESTS = 20_000
"""Requests of a preset that its lengths are looked up in."""


def usual_concurrency(trace: str, deployment: Deployment) -> int:
    """Requests in the pool unless told otherwise: 32 a rank, or fewer where the KV caches hold fewer of this traffic.

    Parameters
    ----------
    trace : str
        A file, folder or preset.
    deployment : Deployment
    """
    pool = deployment.pool
    each = float(DEFAULT_BATCH)
    if pool.kv_capacity_tokens is not None:
        room = pool.kv_capacity_tokens - pool.growth_reserve_tokens
        each = min(each, FILLED * room / _decode_context(trace))
    return max(1, round(each * pool.total_ranks))


@lru_cache(maxsize=64)
def _decode_context(trace: str) -> float:
    """Mean context of a running request, in tokens."""
    preset = preset_of(trace)
    source = synth(preset.removeprefix("preset:"), requests=PROBE_REQUESTS) if preset else load_source(trace)
    assert source is not None
    return float(describe(source).decode.mean)


def rate_for(trace: Trace, cost: StepCost, deployment: Deployment, concurrency: int) -> float:
    """Factor on the arrival rate at which about so many requests run at a time.

    Little's law: rate = N x (tokens a request and step) / (output tokens x step time). The step is priced at its ideal
    for N requests of the trace's output-weighted context: attention (query tokens, with speculation), fixed overhead,
    padding of all ranks to a captured size, experts, communication; and where ranks compute prompts, the chunks that
    the arrivals bring: a rank computes u = N/R x tokens a step x prompt tokens / (output tokens x chunk) of a chunk
    in a step, and the step waits for one with chance 1 - (1 - u)^R. Not priced: unevenness, preemption, queues; the
    real pool is slower, so somewhat more than N will run. A load belongs to a rate only where a step has a fixed part:
    see `equipoise.study.workloads.rate_for`, which this equals for a plain pool.

    Parameters
    ----------
    trace : Trace
    cost : StepCost
    deployment : Deployment
    concurrency : int

    Raises
    ------
    InputError
        All requests arrive at once; or the ranks cannot compute the prompts of so many requests at any rate.
    """
    pool, speculation = deployment.pool, deployment.speculation
    each, more = divmod(concurrency, pool.instances)
    requests = max(1, each + (2 * more >= pool.instances))  # of one instance
    queries = 1 + speculation.drafts
    reads = 1.0 + speculation.query_reads * speculation.drafts
    tokens = 1.0 + sum(speculation.survival)
    batch = _spread(requests * queries, pool.ranks)
    if deployment.step.graph_sizes:
        batch = np.full(pool.ranks, _captured(int(batch.max()), deployment.step.graph_sizes))
    context = _spread(round(requests * describe(trace).decode.mean * reads), pool.ranks)
    saturated = [
        _spread(round(requests * decode_mean_of_least(trace, length) * reads), pool.ranks)
        for length in cost.saturation_tokens
    ]
    K = np.array(saturated, dtype=np.int64).reshape(-1, pool.ranks).T
    step_s = float(cost.ideal(batch, context, K)) * cost.us_per_unit * 1e-6
    step_s += _beyond_attention_us(deployment, float(batch.mean())) * 1e-6
    if deployment.prefill.where == "ranks":
        step_s += _mixed_s(trace, cost, deployment, requests / pool.ranks * tokens)
    wanted_per_s = concurrency * tokens / (float(trace.output_tokens.mean()) * step_s)
    return wanted_per_s * _span_s(trace) / len(trace)


def redrawn(trace: Trace, preset: str, seed: int, factor: float) -> Trace:
    """A preset's trace at so many times the rate: turns of a conversation keep their thinking times.

    `sessions` mode takes only first turns from the arrivals; pressing them together would not bring the later ones
    sooner. Drawn anew, more conversations are open at once.
    """
    return _drawn(preset.removeprefix("preset:"), len(trace), seed, recorded_rate_per_s(trace) * factor)


@lru_cache(maxsize=4)
def _drawn(preset: str, requests: int, seed: int, rate_per_s: float) -> Trace:
    """The policies of a setting ask for it one after the other."""
    return synth(preset, requests=requests, seed=seed, rate_per_s=rate_per_s)


def _beyond_attention_us(deployment: Deployment, queries_per_rank: float) -> float:
    """Overhead, experts and communication of an evenly loaded step, in microseconds."""
    step = deployment.step
    ffn = (step.ffn_us_per_mean_token + step.ffn_us_per_max_token) * queries_per_rank * step.ep_skew
    comm = step.comm_us + (step.comm_us_per_mean_token + step.comm_us_per_max_token) * queries_per_rank
    return step.overhead_us + ffn + comm


def _mixed_s(trace: Trace, cost: StepCost, deployment: Deployment, tokens_per_rank: float) -> float:
    """What prompts add to a mean step, in seconds; `tokens_per_rank`: output tokens a rank yields in a step."""
    prefill = deployment.prefill
    prompt = trace.context_tokens - (cached_prefix(trace) if prefill.prefix_cache else 0)
    chunks = (
        tokens_per_rank * float(prompt.mean()) / (float(trace.output_tokens.mean()) * prefill.chunk_tokens)
    )
    if chunks >= 1.0:
        raise InputError(
            f"the prompts of so many requests take {chunks:.2f} chunks a rank and step",
            where="prefill.where = 'ranks'",
            fix="lower the load, or raise prefill.chunk_tokens",
        )
    chunk_s = prefill.chunk_tokens * prefill.s_per_token
    if cost.prefill is not None:
        offset = round(float(trace.context_tokens.mean()))
        chunk_s = float(cost.prefill.cost([[offset]], [[prefill.chunk_tokens]])) * cost.us_per_unit * 1e-6
    return (1.0 - (1.0 - chunks) ** deployment.pool.ranks) * chunk_s


def _captured(batch: int, sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size >= batch), batch)


def recorded_rate_per_s(trace: Trace) -> float:
    """Requests a second of a trace.

    Raises
    ------
    InputError
        All arrive at once.
    """
    return len(trace) / _span_s(trace)


def _span_s(trace: Trace) -> float:
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    if span_s <= 0:
        raise InputError(
            "all requests arrive at once, so no rate can be set",
            where=f"trace {trace.name!r}",
            fix="use saturated mode",
        )
    return span_s


def _spread(total: int, ranks: int) -> Ints:
    """A total over ranks, as evenly as whole numbers go."""
    return np.full(ranks, total // ranks) + (np.arange(ranks) < total % ranks)
