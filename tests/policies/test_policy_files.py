"""A policy in a file of one's own: ``pick``, ``place`` or ``SPEC``; what is wrong with it; edits are seen."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from equipoise._jit import _DigestCache
from equipoise.cost import StepCost, Term
from equipoise.errors import PolicyError
from equipoise.policies import get
from equipoise.policies.api import one_by_one
from equipoise.replay import Pool, replay
from equipoise.testing.policy_contract import ask
from equipoise.testing.rounds import make_round
from equipoise.traces.trace import Trace

COST = StepCost("requests", (Term("all"),))
PICK = """
def pick(ranks, requests, i, prices, params, memory):
    for r in range(len(ranks.batch) - 1, -1, -1):
        if ranks.free_tokens[r] >= requests.context_tokens[i]:
            return r
    return -1
"""
PLACE = """
from equipoise.policies.api import book, fits

def spread(ranks, requests, prices, params, memory, out):
    for i in range(len(out)):
        out[i] = -1
        r = len(ranks.batch) - 1
        if fits(ranks, r, requests.reserve_tokens[i]):
            out[i] = r
            book(ranks, r, requests, i, prices)
"""
SPEC = """
from equipoise.policies import Parameter, PolicySpec
from equipoise.policies.api import one_by_one

def pick(ranks, requests, i, prices, params, memory):
    return int(params[0])

rank = Parameter("rank", 1, "", integer=True)
mine = PolicySpec("mine", one_by_one(pick), "the rank it is told", "me", parameters=(rank,))
"""
TRACE = Trace.from_columns("t", [float(i) for i in range(30)], [7] * 30, [5] * 30)


@pytest.fixture
def write(tmp_path):
    def to(text, name="my_policy.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return to


def first_choice(name, ranks=3, **params):
    policy = get(str(name), **params)
    case = make_round([[]] * ranks, [5], COST)
    return ask(policy, case, case.memory(policy), compiled=policy.compiled).chosen[0]


@pytest.mark.proof
def test_pick_place_and_spec_are_found(write):
    for text, name in ((PICK, "pick"), (PLACE, "spread"), (SPEC, "mine")):
        path = write(text, f"{name}_file.py")
        policy = get(f"{path}:{name}")
        assert policy.compiled
        assert first_choice(f"{path}:{name}") == (1 if name == "mine" else 2)
    assert first_choice(f"{path}:mine", rank=0) == 0
    assert get(f"{write(PICK)}").name == "my_policy:pick"
    run = replay(TRACE, Pool(ranks=3), f"{write(PICK)}:pick", COST, mode="timed")
    assert (run.outcome.rank == 2).all()


@pytest.mark.parametrize(
    ("text", "suffix", "message"),
    [
        ("x = 1", "", "defines no SPEC or place or pick"),
        ("x = 1", ":place", "defines no place"),
        ("def place(a, b): pass", ":place", "place takes 2 arguments"),
        ("def pick(*all): pass", ":pick", "pick takes 1 arguments"),
        ("place = 3", ":place", "defines no place"),
        ("place = min", ":place", "arguments"),
        ("def place(:", "", "SyntaxError"),
        ("import no_such_module_here", "", "ModuleNotFoundError"),
        ("raise RuntimeError('not today')", "", "RuntimeError: not today"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(write, text, suffix, message):
    path = write(text)
    with pytest.raises(PolicyError) as caught:
        get(f"{path}{suffix}")
    assert message in str(caught.value)
    assert path.name in str(caught.value)


def test_a_folder_is_no_policy(tmp_path):
    (tmp_path / "dir.py").mkdir()
    with pytest.raises(PolicyError, match="no file"):
        get(f"{tmp_path}/dir.py:place")


PLAIN_ONLY = """
def pick(ranks, requests, i, prices, params, memory):
    by_load = {int(b): r for r, b in reversed(list(enumerate(ranks.batch)))}
    return by_load[sorted(by_load, key=str)[0]]
"""


def test_code_that_does_not_compile_runs_in_the_slow_twin(write, caplog):
    with caplog.at_level(logging.WARNING):
        policy = get(f"{write(PLAIN_ONLY)}:pick")
    assert not policy.compiled
    assert "does not compile" in caplog.text
    assert "does not compile" in policy.spec.summary
    assert len(caplog.text.splitlines()) == 1
    slow = replay(TRACE, Pool(ranks=3), policy, COST, mode="timed")
    fast = replay(TRACE, Pool(ranks=3), "least_batch", COST, mode="timed")
    assert slow.outcome.rank.tolist() == fast.outcome.rank.tolist()
    with pytest.raises(PolicyError, match="does not compile"):
        replay(TRACE, Pool(ranks=3), policy, COST, mode="timed", engine="kernel")


RAISING = """
def pick(ranks, requests, i, prices, params, memory):
    if ranks.batch[0] > 0:
        raise ValueError("no more")
    return 0
"""


@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_an_exception_inside_a_policy_is_the_policys(write, engine):
    with pytest.raises(PolicyError, match="ValueError: no more; it failed inside its own code"):
        replay(TRACE, Pool(ranks=2), f"{write(RAISING)}:pick", COST, concurrency=4, engine=engine)


@pytest.mark.parametrize("engine", ["kernel", "reference"])
@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ("4", "placed request 0 (7 tokens) on rank 4; use a rank it was shown"),
        ("1 << 40", f"placed request 0 (7 tokens) on rank {1 << 40}; use a rank it was shown"),
        ("-5", "placed request 0 (7 tokens) on rank -5; use a rank it was shown"),
        ("0", "placed request 2 (7 tokens) on rank 0, which is full; check fits"),
        ("-1", "left request 0 (7 tokens) queued for 1000 rounds while the pool was idle"),
    ],
)
def test_forbidden_choices_are_the_policys(write, rank, message, engine):
    path = write(f"def pick(ranks, requests, i, prices, params, memory):\n    return {rank}\n")
    with pytest.raises(PolicyError) as caught:
        replay(TRACE, Pool(ranks=4, max_batch=2), f"{path}:pick", COST, concurrency=8, engine=engine)
    assert message in str(caught.value)


def test_an_edit_is_seen_by_the_same_process(write):
    """The cache knows the file as it is now, not as it was when first read; nor does a size or a time stamp decide."""
    text = "def pick(ranks, requests, i, prices, params, memory):\n    return {}\n"
    for rank in (0, 1, 2, 0, 1):
        path = write(text.format(rank))
        os.utime(path, (1e9, 1e9))
        assert first_choice(f"{path}:pick") == rank


def test_an_edited_helper_is_seen(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(
        "import helper_of_mine\nfrom equipoise._jit import jitable\n"
        "def pick(ranks, requests, i, prices, params, memory):\n    return helper_of_mine.favourite(ranks)\n"
    )
    for rank in (0, 2):
        write(
            f"from equipoise._jit import jitable\nHERE = {rank}\n"
            "@jitable\ndef favourite(ranks):\n    return HERE\n",
            "helper_of_mine.py",
        )
        sys.modules.pop("helper_of_mine", None)
        sys.path_importer_cache.clear()
        for cached in tmp_path.glob("__pycache__/helper_of_mine*"):
            cached.unlink()
        assert first_choice(f"{path}:pick") == rank
    sys.modules.pop("helper_of_mine", None)


RUN = """
import sys
import numpy as np
from equipoise.cost import StepCost, Term
from equipoise.policies import get
from equipoise.policies.views import empty_ranks, waiting_requests
for name in sys.argv[1:]:
    policy, out = get(name), np.full(1, -1)
    ranks, requests = empty_ranks(3, 3, 0, 99, 99), waiting_requests(1)
    requests.context_tokens[:] = requests.reserve_tokens[:] = 5
    prices = StepCost("requests", (Term("all"),)).prices()
    policy.spec.place(ranks, requests, prices, policy.param_array(), policy.new_memory(0, prices, 3), out)
    print(policy.compiled, out[0])
"""


@pytest.mark.proof
def test_what_is_on_disk_is_run_only_for_what_it_was_made_of(write, tmp_path):
    """Across processes: an edit of equal size and time, another file of equal name, a copy, a damaged cache."""
    text = "def pick(ranks, requests, i, prices, params, memory):\n    return {}\n"
    for folder in ("other", "copy"):
        (tmp_path / folder).mkdir()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def in_a_new_process(*paths):
        command = [sys.executable, "-c", RUN, *(f"{p}:pick" for p in paths)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "True" in done.stdout
        assert "False" not in done.stdout
        return [int(word) for word in done.stdout.split() if word.isdigit()]

    other, copy = write(text.format(2), "other/my_policy.py"), write(text.format(1), "copy/my_policy.py")
    for others, rank in (([other], 0), ([], 1)):
        path = write(text.format(rank))
        os.utime(path, (1e9, 1e9))
        assert in_a_new_process(*others, path) == [2] * len(others) + [rank]
    assert in_a_new_process(copy, other, path) == [1, 2, 1]  # all from disk, first of their processes
    made = sorted((tmp_path / "cache").rglob("*.nbc"))
    assert len(made) == 3
    for file in made:
        file.write_bytes(file.read_bytes()[:100])
    assert in_a_new_process(other, path) == [2, 1]


def test_no_two_policies_share_a_cache_index():
    """Numba numbers the entries of an index without a lock; sharing one, two processes could swap two policies."""

    def always(rank):
        def pick(ranks, requests, i, prices, params, memory):
            return rank

        return one_by_one(pick, compile_it=False)

    def other(ranks, requests, i, prices, params, memory):
        return 1

    functions = [always(0), always(1), one_by_one(other, compile_it=False)]
    indices = {_DigestCache(f)._cache_file._index_name for f in functions}
    assert len(indices) == 3
    assert (
        _DigestCache(functions[0])._cache_file._index_name == _DigestCache(always(0))._cache_file._index_name
    )
