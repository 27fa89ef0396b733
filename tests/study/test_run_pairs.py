"""Finished runs side by side: what intervals cover, what is paired, what is refused; the numbers once more by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.signal import lfilter

from equipoise.errors import InputError
from equipoise.study.pairs import Measured, RunComparison, compare_runs, pair_words, schema, summarize
from equipoise.study.pairs.figures import Draws, draws, quantile, raw_difference, sums_ratio, units_for
from equipoise.study.pairs.gather import Slo
from equipoise.study.pairs.words import verdict_words
from equipoise.study.statistics import student

TIMES = ("ttft_ms", "tpot_ms", "end_to_end_ms", "queue_wait_ms")


def wave(rng: np.random.Generator, seconds: float, memory_s: float) -> np.ndarray[Any, Any]:
    """A state of the pool that forgets itself in about so many seconds, every half second."""
    rho = math.exp(-0.5 / memory_s)
    noise = rng.normal(size=int(2 * seconds) + 1) * math.sqrt(1 - rho * rho)
    return np.asarray(lfilter([1], [1, -rho], noise, zi=[rho * rng.normal()])[0])


def served(
    seed: int, factor: float, *, n: int = 1500, seconds: float = 600.0, memory_s: float = 2.0, own: int = 0
) -> pl.DataFrame:
    """A run: which requests come depends on the seed; times on a state all runs share, and one of their own."""
    shared, private = np.random.default_rng(seed), np.random.default_rng([seed, own])
    arrived = np.sort(shared.uniform(0, seconds, n))
    output, context = shared.integers(20, 80, n), shared.integers(100, 1000, n)
    state = 0.5 * wave(shared, seconds, memory_s) + 0.5 * wave(private, seconds, memory_s)
    at = (2 * arrived).astype(int)
    ttft = factor * 0.2 * np.exp(0.6 * state[at] + 0.3 * private.normal(size=n))
    tpot = factor * 0.03 * np.exp(0.2 * state[at] + 0.05 * private.normal(size=n))
    first = arrived + ttft
    return pl.DataFrame(
        {
            "context_tokens": context,
            "output_tokens": output,
            "status": ["finished"] * n,
            "arrived_s": arrived,
            "queued_s": arrived,
            "start_s": arrived + 0.5 * ttft,
            "first_token_s": first,
            "ended_s": first + tpot * (output - 1),
            "tokens": output,
            "preemptions": private.poisson(0.2 * factor, n),
            "losses": np.zeros(n, int),
        }
    )


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def writer(name: str, frame: pl.DataFrame) -> str:
        frame.write_parquet(tmp_path / name)
        return str(tmp_path / name)

    return writer


def of(found: RunComparison, pair: int = 0) -> dict[tuple[str, str], Measured]:
    return {(m.quantity, m.statistic): m for m in found.pairs[pair].measured}


# -- against the plain computation ---------------------------------------------------------------------------------


def test_values_are_those_of_a_naive_computation(write: Any) -> None:
    frames = served(0, 1.0), served(0, 1.1, own=1)
    found = of(compare_runs([write("a.parquet", frames[0]), write("b.parquet", frames[1])], slo=Slo(250, 35)))
    for side, frame in zip("ab", frames, strict=True):
        rows = frame.to_dicts()
        lists = {
            "ttft_ms": [1000 * (r["first_token_s"] - r["arrived_s"]) for r in rows],
            "tpot_ms": [1000 * (r["ended_s"] - r["first_token_s"]) / (r["tokens"] - 1) for r in rows],
            "end_to_end_ms": [1000 * (r["ended_s"] - r["arrived_s"]) for r in rows],
            "queue_wait_ms": [1000 * (r["start_s"] - r["queued_s"]) for r in rows],
        }
        for quantity, numbers in lists.items():
            assert getattr(found[quantity, "mean"], side) == pytest.approx(sum(numbers) / len(numbers))
            for name, level in (("p50", 50), ("p99", 99)):
                expected = float(np.percentile(numbers, level))
                assert getattr(found[quantity, name], side) == pytest.approx(expected)
        first, last = rows[0]["arrived_s"], rows[-1]["arrived_s"]
        tokens = sum(r["tokens"] for r in rows if first <= r["ended_s"] <= last)
        good = sum(t <= 250 and p <= 35 for t, p in zip(lists["ttft_ms"], lists["tpot_ms"], strict=True))
        assert getattr(found["tokens_per_s", "mean"], side) == pytest.approx(tokens / (last - first))
        assert getattr(found["goodput_per_s", "mean"], side) == pytest.approx(good / (last - first))
        assert getattr(found["preemptions", "mean"], side) == pytest.approx(frame["preemptions"].mean())
    for m in found.values():
        assert m.difference.mean == pytest.approx(m.b - m.a)
        assert m.ratio[0] == pytest.approx(m.b / m.a)


@pytest.mark.parametrize("level", [0.5, 0.99])
@pytest.mark.parametrize("ties", [False, True])
def test_a_replicate_is_the_quantile_of_the_units_drawn(level: float, ties: bool) -> None:
    rng = np.random.default_rng(3)
    units, n = 40, 5000
    values, unit = rng.lognormal(size=n), np.sort(rng.integers(0, units, n))
    if ties:
        values = np.round(values)
    counts = rng.multinomial(units, np.full(units, 1 / units), size=20).astype(float)
    got = quantile(values, unit, units, level).redrawn(counts)
    for drawn, value in zip(counts, got, strict=True):
        repeated = np.sort(np.repeat(values, drawn[unit].astype(int)))
        # order statistics are kept at 256 levels: at most one of them away, which is far below the uncertainty
        exact = repeated[math.ceil(level * len(repeated) - 1e-9) - 1]
        near = 0.0 if ties else 0.02
        assert value == pytest.approx(exact, rel=near, abs=1e-12)


def test_a_replicate_of_a_mean_is_the_mean_of_the_units_drawn() -> None:
    rng = np.random.default_rng(4)
    values, unit = rng.normal(size=500), rng.integers(0, 40, 500)
    counts = rng.multinomial(40, np.full(40, 1 / 40), size=5).astype(float)
    got = sums_ratio(np.bincount(unit, values, 40), np.bincount(unit, minlength=40).astype(float)).redrawn(
        counts
    )
    for drawn, value in zip(counts, got, strict=True):
        assert value == pytest.approx(np.average(values, weights=drawn[unit]))


def test_the_standard_error_is_that_of_independent_requests_where_they_are() -> None:
    rng = np.random.default_rng(5)
    n, units = 40_000, 512
    unit = np.sort(rng.integers(0, units, n))
    ours = rng.exponential(size=n)
    theirs = ours + rng.normal(1, 1, n)
    held = np.bincount(unit, minlength=units).astype(float)
    a, b = (sums_ratio(np.bincount(unit, v, units), held) for v in (ours, theirs))
    gap, _ = raw_difference(a, b, draws([b.influence - a.influence], units, 1), paired=True)
    assert gap.standard_error == pytest.approx(1 / math.sqrt(n), rel=0.15)
    a, b = (quantile(v, unit, units, 0.5) for v in (ours, rng.exponential(size=n)))
    drawn = draws([a.influence, b.influence], units, 1).apart()
    gap, _ = raw_difference(a, b, drawn, paired=False)
    assert gap.standard_error == pytest.approx(math.sqrt(2) / math.sqrt(n), rel=0.2)


# -- what intervals cover --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], float]:
    """Logarithms of the ratios in a very long run."""
    long = {"n": 250_000, "seconds": 100_000.0}
    folder = tmp_path_factory.mktemp("truth")
    served(1, 1.0, **long).write_parquet(folder / "a.parquet")  # type: ignore[arg-type]
    served(1, 1.1, own=1, **long).write_parquet(folder / "b.parquet")  # type: ignore[arg-type]
    found = compare_runs([str(folder / "a.parquet"), str(folder / "b.parquet")], quantities=TIMES[:2])
    return {k: m.log_ratio.mean for k, m in of(found).items()}


@pytest.mark.proof
def test_planted_differences_are_covered(write: Any, truth: dict[tuple[str, str], float]) -> None:
    """Neighbours depend on each other; each interval holds the truth nearly 19 times in 20, all at once as often."""
    runs = 40
    alone, together, naive = dict.fromkeys(truth, 0), 0, 0
    for seed in range(100, 100 + runs):
        frames = served(seed, 1.0), served(seed, 1.1, own=1)
        paths = [write("a.parquet", frames[0]), write("b.parquet", frames[1])]
        found = of(compare_runs(paths, quantities=TIMES[:2]))
        held = {k: m.log_ratio.low <= truth[k] <= m.log_ratio.high for k, m in found.items()}
        together += all(held.values())
        for key, m in found.items():
            r = m.log_ratio
            single = student(r.mean, r.standard_error, r.freedom, r.method)
            alone[key] += single.low <= truth[key] <= single.high
        logs = [np.log((f["first_token_s"] - f["arrived_s"]).to_numpy()) for f in frames]
        gap = logs[1] - logs[0]
        naive += abs(gap.mean() - math.log(1.1)) <= 1.96 * gap.std() / math.sqrt(len(gap))
    assert len(truth) == 6
    assert together >= 0.85 * runs
    assert min(alone.values()) >= 0.8 * runs  # p99 of 1,500 requests is the hard one
    assert sum(alone.values()) >= 0.87 * len(alone) * runs
    assert naive < 0.8 * runs  # as if requests were independent


@pytest.mark.proof
def test_equal_runs_are_rarely_called_different(write: Any) -> None:
    wrong = 0
    for seed in range(30):
        paths = [write("a.parquet", served(seed, 1.0)), write("b.parquet", served(seed, 1.0, own=1))]
        found = of(compare_runs(paths, quantities=TIMES))
        wrong += any(m.verdict in ("better", "worse") for m in found.values())
    assert wrong <= 5  # 1.5 are expected


def test_a_planted_difference_is_found_and_named(write: Any) -> None:
    found = compare_runs([write("a.parquet", served(0, 1.0)), write("b.parquet", served(0, 1.5, own=1))])
    assert of(found)["tpot_ms", "mean"].verdict == "worse"
    words = pair_words(found.pairs[0])
    assert any(w.startswith("B is worse than A in TTFT (mean +") for w in words)
    back = compare_runs([write("b.parquet", served(0, 1.5, own=1)), write("a.parquet", served(0, 1.0))])
    assert of(back)["tpot_ms", "mean"].verdict == "better"
    assert of(back)["tpot_ms", "mean"].ratio[0] == pytest.approx(1 / of(found)["tpot_ms", "mean"].ratio[0])


def test_pairing_narrows(write: Any) -> None:
    paths = [write("a.parquet", served(0, 1.0)), write("b.parquet", served(0, 1.0, own=1))]
    both = [of(compare_runs(paths, paired=p))["ttft_ms", "mean"].difference for p in (True, False)]
    assert both[0].standard_error < 0.9 * both[1].standard_error


def test_fewer_measures_have_narrower_intervals(write: Any) -> None:
    paths = [write("a.parquet", served(0, 1.0)), write("b.parquet", served(0, 1.0, own=1))]
    few, many = compare_runs(paths, quantities=["ttft_ms"]), compare_runs([*paths, paths[1]])
    assert (few.intervals, many.intervals) == (3, 2 * 14)
    a, b = (of(f)["ttft_ms", "mean"].difference for f in (few, many))
    assert a.standard_error == b.standard_error or a.freedom != b.freedom
    assert a.high - a.low < b.high - b.low


def test_blocks_grow_with_what_requests_share(write: Any) -> None:
    """Blocks are twice as long as a request lives at least, and longer where the pool remembers longer."""
    quick = [write("a.parquet", served(0, 1.0)), write("b.parquet", served(0, 1.0, own=1))]
    slow = [
        write("c.parquet", served(0, 1.0, memory_s=20.0, seconds=4000.0, n=4000)),
        write("d.parquet", served(0, 1.0, memory_s=20.0, seconds=4000.0, n=4000, own=1)),
    ]
    short, long = (compare_runs(p, quantities=TIMES).pairs[0] for p in (quick, slow))
    life_s = of(compare_runs(quick))["end_to_end_ms", "mean"].a / 1000
    assert short.block_s >= 2 * life_s
    assert long.block_s > 2 * short.block_s
    assert short.blocks * short.block_s == pytest.approx(600, rel=0.02)


# -- verdicts --------------------------------------------------------------------------------------------------------


def measured(low: float, high: float, margin: float | None = None, quantity: str = "tpot_ms") -> Measured:
    """A number whose ratio is known to lie between two values."""
    middle, half = (math.log(low) + math.log(high)) / 2, (math.log(high) - math.log(low)) / 2
    b = 10 * math.exp(middle)
    ratio = replace(student(middle, 1.0, 10, "blocks"), low=middle - half, high=middle + half)
    gap = replace(student(b - 10, 1.0, 10, "blocks"), low=10 * low - 10, high=10 * high - 10)
    return Measured(quantity, "mean", 10.0, b, gap, ratio, margin)


@pytest.mark.parametrize(
    ("low", "high", "verdict", "within"),
    [
        (1.02, 1.04, "worse", True),
        (1.02, 1.06, "worse", False),
        (0.9, 0.99, "better", False),
        (0.99, 1.01, "no_difference_shown", True),
        (0.9, 1.1, "no_difference_shown", False),
        (1 / 1.0499, 1.0499, "no_difference_shown", True),
        (0.951, 1.01, "no_difference_shown", False),  # below 1 / 1.05: the same whichever is named first
    ],
)
def test_not_shown_is_not_equal(low: float, high: float, verdict: str, within: bool) -> None:
    m = measured(low, high, 0.05)
    assert (m.verdict, m.within_margin) == (verdict, within)
    assert measured(low, high).within_margin is None
    text = verdict_words(m)
    assert ("equal within 5 %" in text) == (within or verdict == "no_difference_shown")
    assert ("no difference shown" in text) == (verdict == "no_difference_shown" and not within)


def test_more_is_better_for_rates() -> None:
    assert measured(1.1, 1.2, quantity="tokens_per_s").verdict == "better"
    assert measured(1.1, 1.2, quantity="excess").verdict == "worse"
    assert "B has more than A, by +14.9 %" in verdict_words(measured(1.1, 1.2, quantity="tokens_per_s"))


def test_a_run_equals_itself(write: Any) -> None:
    path = write("a.parquet", served(0, 1.0))
    found = compare_runs([path, path], margin_percent=1)
    assert {m.verdict for m in of(found).values()} == {"identical"}
    assert {m.within_margin for m in of(found).values()} == {True}
    assert pair_words(found.pairs[0]) == [
        "Identical in TTFT mean, p50, p99; TPOT mean, p50, p99; end to end mean, p50, p99; queue wait mean, p50, "
        "p99; tokens/s; preemptions a request."
    ]


def test_ties_and_zeros(write: Any) -> None:
    """Waits of mostly 0: the median has no ratio, the mean does."""
    frame = served(0, 1.0)
    idle = frame.with_columns(start_s=pl.col("queued_s"))
    busy = frame.with_columns(
        start_s=pl.when(pl.int_range(pl.len()) % 3 == 0).then("start_s").otherwise("queued_s")
    )
    found = of(compare_runs([write("a.parquet", idle), write("b.parquet", busy)]))
    median, mean = found["queue_wait_ms", "p50"], found["queue_wait_ms", "mean"]
    assert (median.a, median.b, median.verdict) == (0.0, 0.0, "identical")
    assert mean.a == 0.0
    assert math.isnan(mean.log_ratio.mean)
    assert mean.verdict == "worse"
    assert "difference +" in verdict_words(mean)


# -- what is paired --------------------------------------------------------------------------------------------------


def test_other_endings_are_counted_and_named(write: Any) -> None:
    frame = served(0, 1.0)
    row = pl.int_range(pl.len())
    ill = frame.with_columns(
        status=pl.when(row == 7)
        .then(pl.lit("rejected"))
        .when(row % 500 == 20)
        .then(pl.lit("failed"))
        .otherwise("status")
    )
    found = compare_runs([write("a.parquet", frame), write("b.parquet", ill)]).pairs[0]
    assert [(e.a, e.b, e.requests, e.rows) for e in found.endings] == [
        ("finished", "failed", 3, (20, 520, 1020)),
        ("finished", "rejected", 1, (7,)),
    ]
    assert found.requests == (1496, 1496)
    assert "3 requests finished in A and failed in B (rows 20, 520, 1020)." in pair_words(found)
    assert "1 request finished in A and was rejected in B (row 7)." in pair_words(found)


def test_other_arrivals_are_paired_by_row(write: Any) -> None:
    a, b = served(0, 1.0), served(0, 1.0)
    times = [c for c in b.columns if c.endswith("_s")]
    b = b.with_columns(pl.col(times) * 2)
    found = compare_runs([write("a.parquet", a), write("b.parquet", b)])
    m = of(found)["ttft_ms", "p50"]
    assert m.ratio == pytest.approx((2, 2, 2))
    assert any("paired row by row" in n for n in found.pairs[0].notes)


@pytest.mark.parametrize("column", ["context_tokens", "output_tokens"])
def test_other_requests_are_refused(write: Any, column: str) -> None:
    frame = served(0, 1.0)
    other = frame.with_columns(
        pl.when(pl.int_range(pl.len()) == 17).then(1).otherwise(pl.col(column)).alias(column)
    )
    a, b, c = (write(f"{n}.parquet", f) for n, f in zip("abc", (frame, other, frame.head(9)), strict=True))
    with pytest.raises(InputError, match=f"row 17 has {column} .* and 1 in B; .*--unpaired"):
        compare_runs([a, b])
    with pytest.raises(InputError, match="A has 1,500 rows, B 9"):
        compare_runs([a, c])
    assert compare_runs([a, b], paired=False).pairs[0].pairing == "none"


def test_nothing_in_common_is_refused(write: Any) -> None:
    frame = served(0, 1.0)
    none = frame.with_columns(status=pl.lit("failed"))
    with pytest.raises(InputError, match="finished in both"):
        compare_runs([write("a.parquet", frame), write("b.parquet", none)])


def test_a_short_run_has_no_intervals(write: Any) -> None:
    frame = served(0, 1.0).head(25)
    path = write("a.parquet", frame)
    found = compare_runs([path, path])
    assert found.intervals == 0
    assert "No intervals: a block must last" in found.pairs[0].notes[0]
    assert {m.verdict for m in of(found).values()} == {"no_interval"}


def test_all_at_once_has_no_time_to_cut(write: Any) -> None:
    path = write("a.parquet", served(0, 1.0).with_columns(arrived_s=0.0))
    assert compare_runs([path, path]).intervals == 0


# -- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from equipoise.cost import load
    from equipoise.policies import parse
    from equipoise.replay import Pool
    from equipoise.study import ComparePlan, compare
    from equipoise.study.folder import write_data

    root = tmp_path_factory.mktemp("studies")
    policies = [parse("least_batch"), parse("dualpath")]
    for name, ranks, mode, seeds in (
        ("timed", 4, "timed", 2),
        ("small", 4, "saturated", 4),
        ("large", 8, "saturated", 4),
        ("one", 8, "saturated", 1),
    ):
        plan = ComparePlan(
            ["chat-short"], [load("h200")], policies, Pool(ranks=ranks), mode=mode,
            concurrency=64, requests=2500, seeds=seeds,
        )  # fmt: skip
        (root / name).mkdir()
        write_data(compare(plan), root / name)
    return root


def test_cells_of_two_studies_are_matched(studies: Path) -> None:
    found = compare_runs([str(studies / "small"), str(studies / "large")])
    assert [p.cell for p in found.pairs] == [{"label": "least_batch"}, {"label": "dualpath z=1.05"}]
    assert {p.pairing for p in found.pairs} == {"seeds"}
    summaries = [json.loads((studies / n / "summary.json").read_text()) for n in ("small", "large")]
    gaps = [
        y["excess"] - x["excess"] for x, y in zip(*(s["cells"][0]["runs"] for s in summaries), strict=True)
    ]
    m = of(found)["excess", "mean"]
    assert m.difference.mean == pytest.approx(np.mean(gaps))
    assert m.difference.standard_error == pytest.approx(np.std(gaps, ddof=1) / 2)
    assert of(found)["tokens_per_s", "mean"].verdict == "no_interval"
    assert "differ in ranks (4 and 8)" in found.pairs[0].notes[0]


def test_two_policies_of_one_study(studies: Path) -> None:
    path = str(studies / "timed")
    found = compare_runs([f"{path}#least_batch", f"{path}#dualpath"])
    pair = found.pairs[0]
    assert pair.pairing == "requests"
    summary = json.loads((studies / "timed" / "summary.json").read_text())
    window = [summary["cells"][0]["runs"][0][f"{w}_counted_s"] for w in ("first", "last")]
    rows = pl.read_parquet(studies / "timed" / "requests.parquet").filter(
        pl.col("arrival_s").is_between(*window) & pl.col("finish_s").is_finite()
    )
    for side, label in (("a", "least_batch"), ("b", "dualpath z=1.05")):
        tpot = rows.filter(policy=label).select(
            1000 * (pl.col("finish_s") - pl.col("start_s")) / pl.col("output_tokens")
        )
        assert getattr(of(found)["tpot_ms", "mean"], side) == pytest.approx(tpot.to_series().mean())
    # too few seeds: the excess is that of the first one, as the summary has it
    first = [c["runs"][0]["excess"] for c in summary["cells"]]
    m = of(found)["excess", "mean"]
    assert (m.a, m.b) == pytest.approx(first, rel=0.02)
    assert m.difference.method == "blocks"


def test_one_seed_each(studies: Path) -> None:
    path = str(studies / "one")
    m = of(compare_runs([f"{path}#least_batch", f"{path}#dualpath"]))["excess", "mean"]
    summary = json.loads((studies / "one" / "summary.json").read_text())
    assert (m.a, m.b) == pytest.approx([c["excess"]["mean"] for c in summary["cells"]])
    assert m.difference.method == "blocks"


def test_a_simulated_run(tmp_path: Path) -> None:
    from equipoise.cost import load
    from equipoise.fleet import Deployment, KvMemory, Prefill, simulate
    from equipoise.fleet.config import Slo as Bounds
    from equipoise.replay import Pool
    from equipoise.study.run_folder import write_run
    from equipoise.traces import synth

    trace = synth("chat-short", requests=400, seed=0)
    pool = Pool(1, 2, kv_capacity_tokens=100_000)
    deployment = Deployment(
        pool,
        prefill=Prefill("pool", instances=1, s_per_token=2e-6),
        memory=KvMemory(64, "recompute"),
        slo=Bounds(ttft_ms=1000, tpot_ms=50),
    )
    summaries = []
    for name in ("least_batch", "dualpath"):
        result = simulate(trace, deployment, name, load("h200"), rate_scale=4.0, engine="reference")
        write_run(result, tmp_path / name)
        summaries.append(json.loads((tmp_path / name / "summary.json").read_text()))
    found = compare_runs([str(tmp_path / "least_batch"), str(tmp_path / "dualpath")])
    quantities = {q for q, _ in of(found)}
    assert quantities == {*TIMES, "tokens_per_s", "goodput_per_s", "excess", "preemptions"}
    for side, summary in zip("ab", summaries, strict=True):
        # another rule says which requests count (first token, not arrival, in the window), so about the same
        assert getattr(of(found)["tpot_ms", "mean"], side) == pytest.approx(
            summary["requests"]["tpot_ms"]["mean"], rel=0.1
        )
        assert getattr(of(found)["excess", "mean"], side) == pytest.approx(summary["excess"], abs=0.02)


def test_the_summary_fits_its_schema(write: Any, studies: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema())
    a, b = write("a.parquet", served(0, 1.0)), write("b.parquet", served(0, 1.0, own=1))
    timed = str(studies / "timed")
    for found in (
        compare_runs([a, b], margin_percent=5),
        compare_runs([timed, timed, timed]),
        compare_runs([str(studies / "small"), str(studies / "one")]),
    ):
        plain = summarize(found)
        jsonschema.validate(plain, schema())
        assert json.dumps(plain, allow_nan=False) == json.dumps(summarize(found), allow_nan=False)


def test_units_can_be_cut_in_eight() -> None:
    assert {units_for(n) % 8 for n in range(0, 100_000, 7)} == {0}
    assert (units_for(0), units_for(10**9)) == (40, 512)


def test_drawing_apart_keeps_the_first() -> None:
    drawn = draws([np.arange(40.0)], 40, 2)
    apart = drawn.apart()
    assert isinstance(apart, Draws)
    assert np.array_equal(apart.a, drawn.a)
    assert not np.array_equal(apart.b, drawn.b)
    assert (drawn.a.sum(axis=1) == drawn.a.sum(axis=1)[0]).all()
