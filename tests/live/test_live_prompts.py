"""Prompts: exact lengths, shared beginnings only where the trace says so, none between runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import InputError
from equipoise.live.prompts import WORDS, Prompts, Wording
from equipoise.traces import PrefixBlocks, Trace


def trace(lengths: list[int], **more: object) -> Trace:
    n = len(lengths)
    return Trace.from_columns(
        "t",
        np.arange(n, dtype=float),
        np.array(lengths),
        np.full(n, 5),
        **more,  # type: ignore[arg-type]
    )


def ids(prompts: Prompts, request: int, salt: int = 1) -> list[int]:
    found = json.loads(prompts.prompt(request, salt))
    assert isinstance(found, list)
    return found


def shared(a: list[int], b: list[int]) -> int:
    """Tokens that two prompts have in common at their beginning."""
    same = [x == y for x, y in zip(a, b, strict=False)]
    return same.index(False) if False in same else len(same)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=4), st.integers(0, 2**40))
def test_ids_are_as_many_as_planned_and_in_range(lengths: list[int], salt: int) -> None:
    prompts = Prompts(trace(lengths), ids=(7, 1234))
    for request, length in enumerate(lengths):
        found = ids(prompts, request, salt)
        assert len(found) == length
        assert all(7 <= i < 1234 for i in found)


@pytest.mark.parametrize("span", [(0, 16), (7, 1234), (99_990, 100_010)])
def test_every_id_of_the_range_is_written_as_itself(span: tuple[int, int]) -> None:
    prompts = Prompts(trace([5000]), ids=span)
    assert [int(text.strip(b" ,")) for text in prompts._table.tolist()] == list(range(*span))
    assert (len(set(ids(prompts, 0))) == span[1] - span[0]) == (span[1] - span[0] < 1000)


def test_the_same_again_and_nothing_shared_between_runs_or_requests() -> None:
    prompts = Prompts(trace([400, 400]))
    assert ids(prompts, 0) == ids(Prompts(trace([400, 400])), 0)
    assert shared(ids(prompts, 0), ids(prompts, 1)) < 16
    assert shared(ids(prompts, 0, 1), ids(prompts, 0, 2)) < 16


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 4), st.integers(1, 9))
def test_equal_blocks_are_equal_tokens(a: int, b: int, common: int, size: int) -> None:
    """Two requests that share so many blocks share so many tokens, and no more."""
    blocks = [
        list(range(common)) + [100 + i for i in range(9)],
        list(range(common)) + [200 + i for i in range(9)],
    ]
    offsets = np.array([0, len(blocks[0]), len(blocks[0]) + len(blocks[1])])
    prefix = PrefixBlocks(offsets, np.array(blocks[0] + blocks[1]), size)
    wide = Prompts(trace([a, b], prefix=prefix), ids=(0, 100_000), prefixes=True)
    first, second = ids(wide, 0), ids(wide, 1)
    assert (len(first), len(second)) == (a, b)
    # one token more may be equal by chance, two are not
    assert shared(first, second) - min(a, b, common * size) in (0, 1)
    assert shared(first, ids(wide, 0, 2)) <= 1


def test_turns_of_a_session_grow_out_of_each_other() -> None:
    talk = trace([50, 120, 90], session=np.array([4, 4, 5]), turn=np.array([0, 1, 0], dtype=np.int32))
    prompts = Prompts(talk, prefixes=True)
    assert ids(prompts, 1)[:50] == ids(prompts, 0)
    assert shared(ids(prompts, 2), ids(prompts, 0)) < 16
    assert shared(ids(Prompts(talk), 1), ids(Prompts(talk), 0)) < 16


@given(st.integers(1, 500), st.integers(0, 8), st.sampled_from([1.0, 1.25, 2.0]))
def test_words_come_as_near_as_whole_words_can(tokens: int, fixed: int, per_word: float) -> None:
    prompts = Prompts(trace([tokens]), wording=Wording(fixed, per_word))
    words = json.loads(prompts.prompt(0, 1)).split()
    assert set(words) <= {w.decode() for w in WORDS}
    made = fixed + per_word * len(words)
    assert abs(made - tokens) <= per_word / 2 or len(words) == 1


def test_words_are_words() -> None:
    assert len(set(WORDS)) == len(WORDS) > 100
    assert all(w.isalpha() for w in WORDS)


@pytest.mark.parametrize("span", [(5, 5), (10, 20), (-1, 400), (300, 20), (0, 10**9)])
def test_bad_ranges(span: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="token-ids"):
        Prompts(trace([5]), ids=span)
