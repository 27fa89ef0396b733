"""The contract suite fails a policy that breaks the contract: one mutant for every clause."""

from __future__ import annotations

import importlib
import itertools
import sys
from types import SimpleNamespace

import pytest

from equipoise.errors import PolicyError
from equipoise.policies.api import PolicySpec, book, fewest_requests, fits, one_by_one, placement
from equipoise.policies.registry import Policy
from equipoise.testing.policy_contract import PolicyContract

FAR = 1 << 62


def contract_of(place, **attributes):
    policy = Policy(PolicySpec("mutant", place, "", "", memory_size=lambda context: (1, 1)), {})
    return type("Mutant", (PolicyContract,), {"policy": policy, "examples": 40, **attributes})()


def slowly(pick):
    return one_by_one(pick, compile_it=False)


def good(ranks, requests, i, prices, params, memory):
    return fewest_requests(ranks, requests.reserve_tokens[i], FAR)


def test_a_good_policy_passes_every_clause():
    contract = contract_of(slowly(good), symmetric=True)
    for name in dir(contract):
        if name.startswith("test_") and name not in (
            "test_compiled_equals_plain_python",
            "test_largest_round",
        ):
            getattr(contract, name)()


def test_no_such_rank():
    contract = contract_of(slowly(lambda ranks, *rest: len(ranks.batch) - 1))
    with pytest.raises(AssertionError, match="has room for"):
        contract.test_chooses_a_rank_with_room_or_stays()

    def beyond(ranks, requests, prices, params, memory, out):
        out[:] = len(ranks.batch)

    with pytest.raises(AssertionError, match="was placed on rank"):
        contract_of(beyond).test_chooses_a_rank_with_room_or_stays()


def test_full_ranks():
    with pytest.raises(AssertionError, match="no rank has room"):
        contract_of(slowly(lambda *arguments: 0)).test_full_ranks_keep_everything_queued()


def test_unanswered_requests():
    def silent(ranks, requests, prices, params, memory, out):
        if len(out) > 1:
            out[0] = -1

    with pytest.raises(AssertionError, match="got no answer"):
        contract_of(silent).test_chooses_a_rank_with_room_or_stays()


def test_choices_that_are_not_booked():
    def forgetful(ranks, requests, prices, params, memory, out):
        out[:] = -1
        if fits(ranks, 0, requests.reserve_tokens[0]):
            out[0] = 0

    with pytest.raises(AssertionError, match="call book"):
        contract_of(forgetful).test_books_what_it_chose()


def test_bookings_that_are_not_chosen():
    def tentative(ranks, requests, prices, params, memory, out):
        out[:] = -1
        book(ranks, 0, requests, 0, prices)

    with pytest.raises(AssertionError, match="call book"):
        contract_of(tentative).test_books_what_it_chose()


def test_state_outside_memory():
    calls = itertools.count()

    def remembering(ranks, requests, i, prices, params, memory):
        return good(ranks, requests, i, prices, params, memory) if next(calls) % 3 else -1

    with pytest.raises(AssertionError, match="keep state in memory only"):
        contract_of(slowly(remembering)).test_same_memory_same_choice()


@pytest.mark.parametrize("spoil", ["requests.context_tokens", "prices.batch", "params", "ranks.instance"])
def test_inputs_that_are_written(spoil):
    def vandal(ranks, requests, prices, params, memory, out):
        out[:] = -1
        if spoil == "requests.context_tokens":
            requests.context_tokens[0] += 1
        elif spoil == "prices.batch":
            prices.batch[0, 0] += 1
        elif spoil == "params":
            params[0] = 1
        else:
            ranks.instance[0] += 1

    contract = contract_of(vandal)
    if spoil == "params":
        spec = contract.policy.spec
        parameters = (SimpleNamespace(name="z", choices=(), words=(), default=0.0),)
        object.__setattr__(contract.policy, "params", {"z": 0.0})
        object.__setattr__(spec, "parameters", parameters)
    with pytest.raises(AssertionError, match=spoil):
        contract.test_touches_nothing_else()


class TwoFaced:
    """A compiled policy whose Python source says something else."""

    def __init__(self, compiled, plain):
        self.compiled, self.py_func = compiled, plain

    def __call__(self, *arguments):
        self.compiled(*arguments)


def stay(ranks, requests, prices, params, memory, out):
    for i in range(len(out)):
        out[i] = -1


def test_writes_beside_an_array():
    @placement
    def beside(ranks, requests, prices, params, memory, out):
        for i in range(len(out) + 1):
            out[i] = -1

    # compiled code checks no index: plain Python would raise
    with pytest.raises(IndexError):
        contract_of(beside).test_touches_nothing_else()
    with pytest.raises(AssertionError, match="beside out"):
        contract_of(TwoFaced(beside, stay)).test_compiled_equals_plain_python()


def test_compiled_code_that_differs():
    with pytest.raises(AssertionError, match="plain Python"):
        contract_of(TwoFaced(slowly(good), stay)).test_compiled_equals_plain_python()


def test_false_claim_of_symmetry():
    def first_fitting(ranks, requests, i, prices, params, memory):
        for r in range(len(ranks.batch)):
            if fits(ranks, r, requests.reserve_tokens[i]):
                return r
        return -1

    with pytest.raises(AssertionError):
        contract_of(slowly(first_fitting), symmetric=True).test_relabelled_ranks_get_relabelled_choices()


def test_requests_left_for_ever():
    with pytest.raises(PolicyError, match="while the pool was idle"):
        contract_of(slowly(lambda *arguments: -1)).test_serves_every_request_in_replay()


def test_oversized_round():
    def short_sighted(ranks, requests, prices, params, memory, out):
        out[:1000] = -1

    with pytest.raises(AssertionError, match="request 1000 got no answer"):
        contract_of(short_sighted).test_largest_round(None)


def test_missing_test_libraries_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    for name in [n for n in sys.modules if n.startswith("equipoise.testing.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="pip install hypothesis pytest"):
        importlib.import_module("equipoise.testing.policy_contract")
