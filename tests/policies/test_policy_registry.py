"""Names, aliases, parameters and the command-line form of policies; policies of other packages."""

from __future__ import annotations

import pickle
from contextlib import suppress
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cost import StepCost, Term
from equipoise.errors import PolicyError
from equipoise.policies import Policy, PolicySpec, get, names, parse, registry, spec
from equipoise.policies.api import Parameter, one_by_one
from equipoise.policies.registry import ALIASES, BUILT_IN
from equipoise.testing.strategies import policies

PRICES = StepCost("requests", (Term("all"),)).prices()


def test_every_built_in_name_and_alias_leads_to_its_policy():
    assert names()[: len(BUILT_IN)] == list(BUILT_IN)
    for name in BUILT_IN:
        assert spec(name).name == name
        assert isinstance(get(name), Policy)
        assert get(name).compiled
        for alias in spec(name).aliases:
            assert spec(alias) is spec(name)
    assert {a.lower() for name in BUILT_IN for a in spec(name).aliases} == set(ALIASES)


@pytest.mark.parametrize("name", ["DualPath", " dualpath ", "D", "d"])
def test_names_ignore_case_and_space(name):
    assert spec(name).name == "dualpath"
    assert spec("round-robin").name == "round_robin"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dualpth", "did you mean 'dualpath'"),
        ("", "no policy named ''"),
        ("least-batches", "did you mean 'least_batch'"),
        ("dualpath,z", "write parameters as name=value"),
        ("dualpath,=1", "write parameters as name=value"),
        ("dualpath,z=", "write parameters as name=value"),
        ("dualpath,", "write parameters as name=value"),
        ("dualpath,z=1,z=2", "'z' twice"),
        ("dualpath,zz=1", "did you mean 'z'"),
        ("dualpath,z=x", "'x' is not a number"),
        ("dualpath,z=nan", "out of bounds"),
        ("dualpath,z=-0.1", "must be a number from 0 to inf"),
        ("dualpath,average=mean", "use one of projected, current"),
        ("length_split,window=0", "must be a whole number from 1 to 100000"),
        ("length_split,window=2.5", "not a whole number"),
        ("length_split,window=inf", "out of bounds"),
        ("length_split,percentile=100.5", "out of bounds"),
        ("length_split,swapped=maybe", "use true or false"),
        ("least_batch,z=1", "it takes none"),
        ("no/such/file.py:place", "no file 'no/such/file.py'"),
        ("no/such/file.py", "no file 'no/such/file.py'"),
    ],
)
def test_what_cannot_be_used_is_named(text, message):
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(max_size=30))
def test_any_text_gives_a_policy_or_a_policy_error(text):
    with suppress(PolicyError):
        assert isinstance(parse(text), Policy)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(policies())
def test_the_command_line_form_says_it_all(policy):
    again = parse(",".join([policy.name, *(f"{k}={v}" for k, v in policy.params.items())]))
    assert again == policy
    assert again.param_array().tobytes() == policy.param_array().tobytes()


def test_parameters_become_numbers():
    assert get("dualpath").param_array().tolist() == [1.05, 0.0]
    assert get("dualpath", z="1.2", average="current").param_array().tolist() == [1.2, 1.0]
    split = get("length_split", window="7", swapped="yes")
    assert split.params == {"window": 7, "percentile": 80.0, "swapped": True}
    assert isinstance(split.params["window"], int)
    assert split.param_array().tolist() == [7.0, 80.0, 1.0]
    unbounded = PolicySpec("p", None, "", "", parameters=(Parameter("n", 1, "", integer=True),))
    with pytest.raises(PolicyError, match="not a whole number"):
        registry._checked(unbounded.name, unbounded.parameters[0], "inf")


def test_labels_show_what_matters():
    assert get("dualpath").label == "dualpath z=1.05"
    assert get("dualpath", z=1.2, average="current").label == "dualpath z=1.2 average=current"
    assert get("length_split").label == "length_split"
    assert get("length_split", swapped=True).label == "length_split swapped=true"
    assert get("least_batch").label == "least_batch"


def test_memories_are_fresh_and_seeded():
    for name in BUILT_IN:
        policy = get(name)
        first, second = (policy.new_memory(1, PRICES, 4) for _ in range(2))
        assert not np.shares_memory(first.ints, second.ints) or first.ints.size == 0
        assert first.ints.tolist() == second.ints.tolist()
    one, two = (get("random").new_memory(seed, PRICES, 4).ints.tolist() for seed in (1, 2))
    assert one != two


OTHERS_POLICY = PolicySpec(
    "first_rank", one_by_one(lambda *arguments: 0, compile_it=False), "always the first", "another package"
)
NOT_A_POLICY = "text"


@pytest.fixture
def other_packages(monkeypatch):
    """Entry points as installed packages would bring them."""

    def install(*pairs):
        points = [EntryPoint(name, value, registry.ENTRY_POINTS) for name, value in pairs]
        monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])

    return install


def test_policies_of_other_packages(other_packages):
    other_packages(("First-Rank", f"{__name__}:OTHERS_POLICY"), ("zebra", f"{__name__}:OTHERS_POLICY"))
    assert names() == [*BUILT_IN, "first_rank", "zebra"]
    for name in ("first_rank", "First-Rank", "FIRST_RANK"):
        assert spec(name) is OTHERS_POLICY
    assert not get("first_rank").compiled
    with pytest.raises(PolicyError, match="did you mean 'first_rank'"):
        spec("first_ranks")


def test_other_packages_do_not_shadow_built_in_names(other_packages):
    other_packages(("dualpath", f"{__name__}:OTHERS_POLICY"), ("D", f"{__name__}:OTHERS_POLICY"))
    assert spec("dualpath").name == spec("D").name == "dualpath"
    assert names() == list(BUILT_IN)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (f"{__name__}:NOT_A_POLICY", "the entry point must name a PolicySpec"),
        ("no_such_module_here:SPEC", "ModuleNotFoundError"),
        (f"{__name__}:missing", "AttributeError"),
    ],
)
def test_broken_packages_are_named(other_packages, value, message):
    other_packages(("broken", value))
    with pytest.raises(PolicyError, match=message):
        get("broken")


@settings(deadline=None, derandomize=True)
@given(policies())
def test_text_is_the_policy(policy):
    """What is written into a result file reads back as the same policy, to the last digit."""
    again = parse(policy.text)
    assert again == policy
    assert again.text == policy.text


def test_labels_and_texts_tell_apart_what_differs_in_the_last_digit():
    near, exact = get("dualpath", z=1.0500000001), get("dualpath", z=1.05)
    assert (near.label, exact.label) == ("dualpath z=1.0500000001", "dualpath z=1.05")
    assert near.text != exact.text
    assert parse(near.text).params["z"] == 1.0500000001


def test_a_policy_travels_to_another_process(tmp_path, monkeypatch):
    policy = get("length_split", window=7, percentile=33.3)
    assert pickle.loads(pickle.dumps(policy)) == policy
    (tmp_path / "mine.py").write_text("def pick(ranks, requests, i, prices, params, memory):\n    return 0\n")
    monkeypatch.chdir(tmp_path)
    own = get("mine.py:pick")
    assert own.text == "mine.py:pick"
    assert own.digest is not None
    travelled = pickle.dumps(own)
    monkeypatch.chdir(tmp_path.parent)  # the other process may stand elsewhere
    assert pickle.loads(travelled).digest == own.digest
    assert policy.digest is None


def test_a_policy_made_in_code_does_not_travel():
    with pytest.raises(pickle.PicklingError, match=r"give it as file\.py:SPEC"):
        pickle.dumps(Policy(OTHERS_POLICY, {}))


def test_a_file_may_not_take_a_built_in_name(tmp_path):
    text = "import equipoise.policies as p\nSPEC = p.PolicySpec('Dual-Path', None, '', '')\n"
    for name in ("least-batch", "D"):
        (tmp_path / "own.py").write_text(text.replace("Dual-Path", name))
        with pytest.raises(PolicyError, match="as a built-in policy; rename it"):
            get(f"{tmp_path / 'own.py'}:SPEC")
