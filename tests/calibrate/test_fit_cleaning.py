"""What a fit leaves out, and that it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.calibrate import fit
from equipoise.calibrate.clean import clean, is_grid
from equipoise.calibrate.planted import plant
from equipoise.calibrate.records import Drop, Flag, StepRecords
from equipoise.cost import StepCost, Term
from equipoise.errors import CalibrationError

ONE = StepCost("one", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")


def log(**changed: Any) -> StepRecords:
    """Ten steps of two ranks."""
    columns: dict[str, Any] = {
        "step": np.repeat(np.arange(10), 2),
        "rank": np.tile([0, 1], 10),
        "batch": np.arange(20) % 7 + 1,
        "context_tokens": (np.arange(20) % 7 + 1) * 5000,
        "time_s": np.repeat(np.linspace(0.01, 0.02, 10), 2),
        "clock_s": np.repeat(np.arange(10.0), 2),
        "line": np.arange(1, 21),
    }
    return StepRecords.build({**columns, **changed}, source="a.log")


def changed(name: str, row: int, value: float) -> dict[str, Any]:
    column = np.array(getattr(log(), name))
    column[row] = value
    return {name: column}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (changed("flags", 5, Flag.MIXED), "prefill or mixed step"),
        (changed("flags", 4, Flag.PREFILL), "prefill or mixed step"),
        (changed("context_tokens", 5, -1), "context length is not logged"),
        (changed("batch", 5, -3), "negative batch"),
        (changed("rank", 5, 0), "a rank twice in one step"),
    ],
)
def test_one_bad_rank_takes_its_step_out(changes: dict[str, Any], reason: str) -> None:
    found = clean(log(**changes))
    assert len(found.samples) == 9
    assert found.dropped == (Drop(reason, 2, "a.log:5"),)


def test_times_that_are_none_take_their_step_out() -> None:
    for bad in (-1.0, 0.0, np.nan, np.inf):
        times = np.array(log().time_s)
        times[4:6] = bad
        assert clean(log(time_s=times)).dropped == (Drop("step time is not above 0", 2, "a.log:5"),)


def test_steps_with_missing_ranks() -> None:
    records = log().select(np.arange(20) != 5)
    assert clean(records).dropped == (Drop("ranks are missing", 1, "a.log:5"),)
    kept = clean(records, missing_ranks_are_idle=True)
    assert len(kept.samples) == 10
    assert kept.dropped == ()
    assert "taken as idle" in kept.notes[0]


def test_idle_ranks_stay_and_idle_steps_go() -> None:
    batch, context = np.array(log().batch), np.array(log().context_tokens)
    batch[[5, 8, 9]] = 0
    context[[5, 8, 9]] = -1
    found = clean(log(batch=batch, context_tokens=context))
    assert found.dropped == (Drop("no rank decodes", 2, "a.log:9"),)
    assert found.samples.context[5] == 0


def test_first_step_after_a_pause() -> None:
    flags = np.zeros(20, dtype=np.uint8)
    flags[5] = Flag.FIRST
    assert clean(log(flags=flags)).dropped == (), (
        "the other rank was at work: the step before it was no pause"
    )
    flags[4] = Flag.FIRST
    assert clean(log(flags=flags)).dropped == (Drop("first step after a pause", 2, "a.log:5"),)


def test_rank_that_waited_was_slowest() -> None:
    flags = np.zeros(20, dtype=np.uint8)
    flags[5] = Flag.FIRST
    own = np.array(log().time_s)
    own[5] *= 3
    assert clean(log(flags=flags, time_s=own)).dropped == (Drop("first step after a pause", 2, "a.log:5"),)


def test_warm_up_and_range() -> None:
    found = clean(log(), warmup_steps=2)
    assert found.dropped == (Drop("warm-up", 4, "a.log:1"),)
    found = clean(log(), max_batch=6)
    assert found.dropped[0].reason == "batch above 6"
    assert len(found.samples) + len(found.outside) == 10
    assert found.outside.rows == found.dropped[0].rows
    found = clean(log(context_tokens=np.array(log().batch) * np.repeat([1000, 9000], 10)), min_context=2048)
    assert found.dropped == (Drop("context below 2,048 tokens a request", 10, "a.log:1"),)


def test_prefill_steps_are_handed_on_whole() -> None:
    found = clean(log(**changed("flags", 5, Flag.MIXED)))
    assert found.prefill.line.tolist() == [5, 6]


def test_tables_are_told_from_logs_without_a_clock() -> None:
    B, length = (g.ravel() for g in np.meshgrid(2 ** np.arange(8), 2 ** np.arange(11, 17)))
    table = StepRecords.build({"batch": B, "context_tokens": B * length, "time_s": np.ones(48)})
    assert is_grid(table)
    records = plant(ONE, steps=100, ranks=1, seed=1)
    names = ("batch", "context_tokens", "time_s")
    assert not is_grid(StepRecords.build({name: getattr(records, name) for name in names}))
    assert not is_grid(
        StepRecords.build({name: getattr(table, name) for name in names} | {"clock_s": np.arange(48.0)})
    )


def test_the_observed_time_is_the_slowest_ranks() -> None:
    own = np.linspace(0.01, 0.02, 20)
    np.testing.assert_allclose(clean(log(time_s=own)).samples.time_us, own[1::2] * 1e6)


def test_averaged_rows_count_as_their_steps_and_say_so() -> None:
    found = clean(log(steps=100.0, flags=Flag.AVERAGED))
    assert (found.samples.weight == 100).all()
    assert "means over several steps" in found.notes[0]


def test_nothing_left_says_where_it_went_and_what_to_do() -> None:
    with pytest.raises(
        CalibrationError, match=r"a.log:1: has no decode step .*20 rows: context .*log the sum"
    ):
        clean(log(context_tokens=np.tile([-1, 5000], 10)))
    assert (
        len(clean(log(context_tokens=-1)).samples) == 10
    )  # none is logged at all: the batch still has a price
    with pytest.raises(CalibrationError, match="holds no step"):
        clean(log().select(np.zeros(20, dtype=bool)))


def test_pauses_are_dropped_and_counted() -> None:
    records = plant(ONE, steps=300, ranks=4, seed=1)
    slow = np.repeat(np.where(np.arange(300) % 50 == 49, 40.0, 1.0), 4)
    paused = StepRecords.build(
        {
            n: getattr(records, n)
            for n in ("step", "rank", "batch", "context_tokens", "context_variance", "clock_s")
        }
        | {"time_s": records.time_s * slow}
    )
    result = fit(paused, terms=1, batch_shape="linear", saturation_tokens=None, replicates=100)
    assert [(d.reason.split(" (")[0], d.rows) for d in result.dropped] == [("pause or clock jump", 24)]
    low, high = result.intervals["decode.per_100k_context"]
    assert low < 80 < high


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_shape": "linaer"}, "batch_shape = 'linaer'; did you mean 'linear'"),
        ({"barrier": "rank"}, "barrier = 'rank'"),
        ({"terms": 3}, "terms = 3"),
        ({"loss": "l1"}, "loss = 'l1'"),
        ({"max_batch": 1}, "no decode step to fit"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        fit(log(), **options)


def test_logs_of_two_formats_are_refused() -> None:
    first, second = (StepRecords.build({"batch": [1], "time_s": [1.0]}, format=f) for f in ("fpm", "vllm"))
    with pytest.raises(CalibrationError, match=r"several formats .fpm, vllm"):
        fit([first, second])
    with pytest.raises(CalibrationError, match="no step records"):
        fit([])


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(CalibrationError, match="holds 5 decode steps"):
        fit(log().select(np.arange(20) < 10))


def test_ranks_that_are_nowhere_are_warned_of() -> None:
    whole = clean(log()).notes
    assert not any("logs of all ranks" in n for n in whole)
    one = log().select(log().rank == 0)
    assert any("Every step shows one rank." in n for n in clean(one).notes)
    other = log(rank=np.tile([0, 3], 10))
    assert any(n.startswith("Ranks 1, 2 are nowhere") for n in clean(other).notes)
    assert any(n.startswith("Rank 0 is nowhere") for n in clean(log().select(log().rank == 1)).notes)
    bench = StepRecords.build({"batch": np.arange(1, 10), "time_s": np.ones(9)}, format="vllm_bench_forward")
    assert not clean(bench).notes


def test_one_row_is_one_row() -> None:
    one = log().select(np.arange(20) == 4)
    with pytest.raises(CalibrationError, match=r"\(1 row: batch above 1\)"):
        clean(one, max_batch=1)
