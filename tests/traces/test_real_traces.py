"""The real files beside the checkout, against the statistics published with them."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from trace_cases import assert_same, blocks_of

from equipoise.traces import cycle, describe, generate, read, read_with_report, spread_ticks, write
from equipoise.traces.readers import detect
from equipoise.traces.servegen import load_pool

pytestmark = pytest.mark.shared

CODE = "azure-llm-2023/AzureLLMInferenceTrace_code.csv.gz"
CONV = "azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz"
MOONCAKE = "mooncake-fast25/conversation_trace.jsonl.gz"
SESSIONS = "claude-code-weka/claude_code_sessions.csv.gz"
RAW = "claude-code-weka/raw-sample"
R1 = "servegen/deepseek-r1_clients_arrival.csv.gz"


@pytest.fixture(scope="module")
def folder(shared_dir: Path) -> Path:
    return shared_dir / "traces"


@pytest.mark.parametrize(
    ("file", "format", "rows", "span_s", "rate", "context", "output", "shares", "decode", "correlation"),
    [
        (
            *(MOONCAKE, "mooncake", 12_031, 3537, 3.40),
            *((12_035, 6909, 27_367, 85_400, 126_195), (343, 350, 597, 1119, 2000), (0.069, 0.0052)),
            *((13_100, 1.26, 90_000), 0.05),
        ),
        (
            *(CODE, "azure", 8819, 3436, 2.57),
            *((2048, 1469, 5188, 7436, 7437), (28, 13, 55, 251, 1899), (0, 0), None, None),
        ),
        (
            *(CONV, "azure", 19_366, 3502, 5.53),
            *((1155, 1020, 2734, 4142, 14_050), (211, 129, 424, 601, 1000), (0, 0), (1200, 0.58, None), 0.09),
        ),
    ],
)
def test_published_statistics(
    folder: Path,
    file: str,
    format: str,
    rows: int,
    span_s: float,
    rate: float,
    context: tuple[float, ...],
    output: tuple[float, ...],
    shares: tuple[float, float],
    decode: tuple[float, float, float | None] | None,
    correlation: float | None,
) -> None:
    assert detect(folder / file).name == format
    s = describe(read(folder / file))
    assert s.requests == rows
    assert s.arrivals.span_s == pytest.approx(span_s, abs=1)
    assert s.arrivals.rate_per_s == pytest.approx(rate, abs=0.005)
    for got, wanted in ((s.context, context), (s.output, output)):
        values = (got.mean, got.p50, got.p90, got.p99, got.max)
        assert values == pytest.approx(wanted, abs=0.75)
    assert (s.share_above_32k, s.share_above_100k) == pytest.approx(shares, abs=5e-4)
    if decode is not None:
        assert s.decode.mean == pytest.approx(decode[0], rel=0.03)
        assert s.decode.cv == pytest.approx(decode[1], abs=0.01)
        if decode[2] is not None:
            assert s.decode.p99 == pytest.approx(decode[2], rel=0.04)
    if correlation is not None:
        assert s.log_correlation == pytest.approx(correlation, abs=0.005)


def test_burstiness_of_azure_and_prefix_reuse_of_mooncake(folder: Path) -> None:
    code, conv = (describe(read(folder / name)).arrivals for name in (CODE, CONV))
    assert code.gap_cv == pytest.approx(13.2, abs=0.1)
    assert conv.gap_cv == pytest.approx(1.09, abs=0.01)
    assert code.counts_variance_over_mean == pytest.approx(161, rel=0.03)
    # published as 20.6, with the last, unfinished minute counted as a whole one; 16.1 over whole minutes
    assert conv.counts_variance_over_mean == pytest.approx(16.1, abs=0.1)
    mooncake = describe(read(folder / MOONCAKE))
    assert mooncake.arrivals.counts_variance_over_mean == pytest.approx(2.9, abs=0.05)
    assert mooncake.prefix_hit_share == pytest.approx(0.37, abs=0.005)


def test_the_three_second_grid_of_mooncake(folder: Path) -> None:
    trace = read(folder / MOONCAKE)
    assert describe(trace).arrivals.tick_s == 3.0
    assert np.unique(trace.arrival_s, return_counts=True)[1].max() == 28
    spread = spread_ticks(trace, seed=0)
    after = describe(spread)
    assert after.arrivals.tick_s is None
    assert after.arrivals.gap_cv == pytest.approx(1.0, abs=0.05)
    assert np.unique(spread.arrival_s, return_counts=True)[1].max() == 1
    assert after.prefix_hit_share == pytest.approx(0.37, abs=0.005)


def test_every_value_of_the_files_arrives(folder: Path) -> None:
    """Against the standard library's readers."""
    with gzip.open(folder / CONV, "rt") as file:
        rows = list(csv.DictReader(file))
    trace = read(folder / CONV)
    assert trace.context_tokens.tolist() == [int(row["ContextTokens"]) for row in rows]
    assert trace.output_tokens.tolist() == [int(row["GeneratedTokens"]) for row in rows]
    minutes = [row["TIMESTAMP"].partition(" ")[2].split(":") for row in rows]
    seconds = [3600 * int(h) + 60 * int(m) + float(s) for h, m, s in minutes]
    np.testing.assert_allclose(trace.arrival_s, np.array(seconds) - seconds[0], atol=1e-6)
    with gzip.open(folder / MOONCAKE, "rt") as file:
        records = [json.loads(line) for line in file]
    trace = read(folder / MOONCAKE)
    assert trace.context_tokens.tolist() == [r["input_length"] for r in records]
    assert blocks_of(trace) == [r["hash_ids"] for r in records]


def test_claude_code_sessions(folder: Path) -> None:
    trace, report = read_with_report(folder / SESSIONS)
    assert report.format == "claude-sessions"
    # 31,879 rows; 14 calls have no output, they were aborted
    assert report.rows + sum(report.dropped.values()) == 31_879
    assert report.dropped == {"aborted calls (0 output tokens)": 14}
    assert not trace.arrivals_known
    s = describe(trace)
    assert s.sessions is not None
    assert s.sessions.count == 471
    assert s.sessions.turns_mean == pytest.approx(67.7, abs=0.1)
    # published for all 49,334 calls: 122,379 / 103,659 / 233,633 / 498,519 and 128k, CV 0.77, p99 529k
    assert s.context.mean == pytest.approx(122_379, rel=0.002)
    assert s.context.p50 == pytest.approx(103_659, rel=0.01)
    assert s.context.p90 == pytest.approx(233_633, rel=0.02)
    assert s.context.p99 == pytest.approx(498_519, rel=0.03)
    assert s.context.max == 894_371
    assert s.output.mean == pytest.approx(440, rel=0.01)
    assert s.output.max == 18_195
    assert s.decode.mean == pytest.approx(128_000, rel=0.015)
    assert s.decode.cv == pytest.approx(0.77, abs=0.01)
    assert s.decode.p99 == pytest.approx(529_000, rel=0.025)
    assert s.log_correlation == pytest.approx(0.07, abs=0.005)
    assert s.sessions.think_p50_s == 10


def test_claude_code_sessions_interleave_and_the_mix_is_stationary(folder: Path) -> None:
    trace = read(folder / SESSIONS)
    # requests of many sessions between two of the same one
    changes = (trace.session[1:] != trace.session[:-1]).mean()
    assert changes > 0.7
    tenths = [part.mean() for part in np.array_split(trace.context_tokens, 10)]
    assert max(tenths) / min(tenths) < 1.5  # some 45 sessions in 2,048 requests: a tenth still swings by 8 %
    # each session as recorded: its turns in order, its gaps unchanged
    with gzip.open(folder / SESSIONS, "rt") as file:
        rows = [r for r in csv.DictReader(file) if r["session"] == "1" and int(r["output_tokens"]) > 0]
    mine = trace.session == 1
    assert {r["thread"] for r in rows} == {"0"}
    wanted = np.array([float(r["t"]) for r in rows])
    np.testing.assert_allclose(
        trace.arrival_s[mine] - trace.arrival_s[mine][0], wanted - wanted[0], atol=1e-6
    )
    assert trace.turn[mine].tolist() == list(range(len(rows)))
    other = read(folder / SESSIONS, seed=1)
    assert not np.array_equal(other.context_tokens, trace.context_tokens)
    assert sorted(other.context_tokens.tolist()) == sorted(trace.context_tokens.tolist())
    window = read(folder / SESSIONS, rate_per_s=30.0)
    assert len(window) / window.arrival_s[-1] == pytest.approx(30, rel=0.02)
    tenths = [part.mean() for part in np.array_split(window.context_tokens, 10)]
    assert max(tenths) / min(tenths) < 1.12
    long = cycle(trace, 100_000)
    assert len(np.unique(long.session)) > 3 * 450


def test_raw_sessions_agree_with_the_slim_file(folder: Path) -> None:
    raw, report = read_with_report(folder / RAW)
    assert report.files == 4
    slim = read(folder / SESSIONS)
    for number in (277, 353):
        a, b = raw.session == number, slim.session == number
        assert sorted(raw.context_tokens[a].tolist()) == sorted(slim.context_tokens[b].tolist())
        offsets = [t.arrival_s[m] - t.arrival_s[m][0] for t, m in ((raw, a), (slim, b))]
        # sub-agents: recorded to the millisecond in one, derived from the call before in the other
        np.testing.assert_allclose(*offsets, atol=3.0)
    single = read(folder / RAW / "trace_0277.json.gz")
    assert len(single) == 53
    # inside a session nearly all of the context has been seen before
    assert describe(raw).prefix_hit_share == pytest.approx(0.93, abs=0.02)


def test_servegen_r1_day(folder: Path) -> None:
    assert detect(folder / R1).name == "servegen"
    s = describe(read(folder / R1))
    assert s.arrivals.rate_per_s == pytest.approx(16.0, abs=0.05)
    assert s.arrivals.span_s == pytest.approx(86_400, abs=5)
    for got, wanted in (
        (s.context, (1268, 208, 2092, 23_423, 57_284)),
        (s.output, (1527, 792, 3432, 12_607, 32_768)),
    ):
        assert (got.mean, got.p50, got.p90, got.p99, got.max) == pytest.approx(wanted, rel=0.03)
    assert s.share_above_32k == pytest.approx(0.0015, abs=2e-4)
    with pytest.raises(Exception, match="holds 2 models; Known: deepseek-r1, m-large"):
        read(folder / "servegen")
    few = generate(folder / "servegen", "m-large", requests=1000)
    assert len(few) == 1000
    assert load_pool(folder / "servegen", "m-large").left_out == pytest.approx(0.37, abs=0.01)


@pytest.mark.parametrize("file", [CODE, MOONCAKE, SESSIONS, RAW])
def test_parquet_round_trip(folder: Path, tmp_path: Path, file: str) -> None:
    trace = read(folder / file)
    write(trace, tmp_path / "t.parquet")
    assert_same(read(tmp_path / "t.parquet"), trace)
