"""The AIPerf-shaped export: names, units and statistics as published, values against the frame of requests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import fleet_runs as runs
import numpy as np
import polars as pl
import pytest

from equipoise.errors import InputError
from equipoise.fleet import Deployment, Slo, aiperf_blocks

RECORDS = {
    "request_latency": "ms",
    "time_to_first_token": "ms",
    "decode_duration": "ms",
    "inter_token_latency": "ms",
    "output_token_throughput_per_user": "tokens/sec/user",
    "e2e_output_token_throughput": "tokens/sec/user",
    "output_sequence_length": "tokens",
    "output_token_count": "tokens",
    "input_sequence_length": "tokens",
}
TOTALS = {
    "request_throughput": "requests/sec",
    "output_token_throughput": "tokens/sec",
    "request_count": "requests",
    "error_request_count": "requests",
    "total_osl": "tokens",
    "total_output_tokens": "tokens",
    "total_isl": "tokens",
    "benchmark_duration": "sec",
    "good_request_count": "requests",
    "good_request_fraction": "ratio",
    "goodput": "requests/sec",
}
STATISTICS = {"unit", "avg", "min", "max", "std", "count", "sum"} | {
    f"p{p}" for p in (1, 5, 10, 25, 50, 75, 90, 95, 99)
}


@pytest.mark.parametrize("over", ["counted", "run"])
@pytest.mark.parametrize("name", runs.NAMES)
def test_blocks_have_the_published_shape(name: str, over: Any) -> None:
    blocks = aiperf_blocks(runs.known(name), over=over)
    json.dumps(blocks, allow_nan=False)
    assert blocks.pop("schema_version") == "1.5"
    assert blocks.pop("equipoise_version")
    errors = name == "stormy"
    assert set(blocks) == RECORDS.keys() | (
        TOTALS.keys() - ({"error_request_count"} if not errors else set())
    )
    for metric, block in blocks.items():
        if metric in RECORDS:
            assert (set(block), block["unit"]) == (STATISTICS, RECORDS[metric])
        else:
            assert (set(block), block["unit"]) == ({"unit", "avg"}, TOTALS[metric])


@pytest.mark.parametrize("over", ["counted", "run"])
@pytest.mark.parametrize("name", runs.NAMES)
def test_values_are_those_of_the_requests(name: str, over: Any) -> None:
    result = runs.known(name)
    frame = result.requests_frame()
    chosen = frame.filter(pl.col("status") == "finished")
    seconds = frame["ended_s"].fill_nan(None).max() - frame["arrived_s"].fill_nan(None).min()  # type: ignore[operator]
    if over == "counted":
        first, last = result.counted_s
        chosen = chosen.filter((pl.col("first_token_s") > first) & (pl.col("first_token_s") <= last))
        seconds = last - first
    latency = 1e3 * (chosen["ended_s"] - chosen["arrived_s"])
    ttft = 1e3 * (chosen["first_token_s"] - chosen["arrived_s"])
    several = (chosen["tokens"] > 1).to_numpy()
    itl = ((latency - ttft) / (chosen["tokens"] - 1)).to_numpy()[several]
    blocks = aiperf_blocks(result, over=over)
    for metric, values in (
        ("request_latency", latency.to_numpy()),
        ("time_to_first_token", ttft.to_numpy()),
        ("inter_token_latency", itl),
        ("output_sequence_length", chosen["tokens"].to_numpy()),
        ("input_sequence_length", chosen["context_tokens"].to_numpy()),
    ):
        block = blocks[metric]
        assert block["count"] == len(values)
        assert block["avg"] == pytest.approx(values.mean())
        assert block["sum"] == pytest.approx(values.sum())
        assert block["std"] == pytest.approx(
            np.sqrt(((values - values.mean()) ** 2).sum() / (len(values) - 1))
        )
        for p in (1, 5, 10, 25, 50, 75, 90, 95, 99):
            assert block[f"p{p}"] == pytest.approx(np.percentile(values, p))
    duration = blocks["benchmark_duration"]["avg"]
    assert duration == pytest.approx(seconds)
    assert blocks["request_throughput"]["avg"] == pytest.approx(chosen.height / duration)
    assert blocks["output_token_throughput"]["avg"] == pytest.approx(chosen["tokens"].sum() / duration)
    assert blocks["total_isl"]["avg"] == chosen["context_tokens"].sum()


def test_goodput_by_hand() -> None:
    """Where our own goodput forgives a request of one token its TPOT, AIPerf's does not."""
    result = replace(runs.by_hand(), deployment=Deployment(runs.POOL, slo=Slo(tpot_ms=500.0)))
    assert result.goodput is not None
    assert result.goodput.requests == 2
    blocks = aiperf_blocks(result)
    assert blocks["good_request_count"]["avg"] == 1
    assert blocks["good_request_fraction"]["avg"] == pytest.approx(1 / 5)
    assert blocks["goodput"]["avg"] == pytest.approx(0.1)
    assert blocks["error_request_count"]["avg"] == 2


def test_no_bound_no_goodput() -> None:
    blocks = aiperf_blocks(replace(runs.by_hand(), deployment=Deployment(runs.POOL)))
    assert not {"goodput", "good_request_count", "good_request_fraction"} & set(blocks)


def test_nobody_counts() -> None:
    base = runs.by_hand()
    blocks = aiperf_blocks(replace(base, more=base.more._replace(status=np.full(7, 2, np.int32))))
    assert not RECORDS.keys() & set(blocks)
    assert blocks["request_count"]["avg"] == 0
    assert blocks["good_request_fraction"]["avg"] == 0
    json.dumps(blocks, allow_nan=False)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="use 'counted' or 'run'"):
        aiperf_blocks(runs.by_hand(), over="all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="keep_requests=True"):
        aiperf_blocks(runs.run(runs.DEPLOYMENTS["plain"], keep_requests=False))
