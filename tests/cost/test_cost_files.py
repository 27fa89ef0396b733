"""Costs as files and by name: exact round trips, strict reading, the presets."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import cost, models
from equipoise.cost import Saturation, StepCost, Term
from equipoise.cost.files import read
from equipoise.errors import CostError

prices = st.floats(0, 1e30)
any_terms = st.builds(
    Term,
    name=st.text(max_size=10),
    weight=st.floats(1e-300, 1e30),
    per_request=prices,
    per_100k_context=prices,
    batch_floor=st.integers(0, 65_536),
    batch_table=st.lists(prices, max_size=5).map(lambda values: tuple(sorted(values))),
    saturations=st.lists(st.builds(Saturation, st.integers(1, 10**9), prices), max_size=3).map(tuple),
)
any_costs = st.builds(
    StepCost,
    name=st.text(max_size=20),
    terms=st.lists(any_terms, min_size=1, max_size=3).map(tuple),
    constant=st.floats(1e-300, 1e30),  # a cost of nothing is refused
    barrier=st.sampled_from(["layer", "step"]),
    us_per_unit=st.floats(1e-6, 1e6),
    source=st.text(max_size=30),
)


@given(any_costs)
def test_toml_gives_the_same_cost_back_to_the_last_bit(written: StepCost) -> None:
    assert cost.from_toml(cost.to_toml(written)) == written


@given(any_costs)
def test_json_gives_the_same_cost_back_to_the_last_bit(written: StepCost) -> None:
    assert cost.from_dict(json.loads(json.dumps(cost.to_dict(written)))) == written


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("saturate", [False, True])
def test_derived_costs_survive_a_file(tmp_path: Path, name: str, saturate: bool) -> None:
    for kind in ("v1", "v2"):
        derived = cost.derive(models.load(name), kind, saturate=saturate)
        cost.save(derived, tmp_path / "c.toml")
        assert cost.load(tmp_path / "c.toml") == derived
    assert [p.name for p in tmp_path.iterdir()] == ["c.toml"]


def test_the_presets_are_the_article_and_the_measurement() -> None:
    assert {"h200", "v1", "v2"} <= set(cost.names())
    assert cost.names() == sorted(cost.names())
    v1, v2, h200 = cost.load("v1"), cost.load("V2"), cost.load("h200")
    assert [(t.name, t.weight, t.per_100k_context) for t in v1.terms] == [
        ("shared", 0.72482, 0),
        ("full", 0.27518, 1.30219),
    ]
    assert (v1.constant, v1.us_per_unit, v2.us_per_unit) == (0, 74, 74)
    assert [(t.name, t.weight, t.per_100k_context) for t in v2.terms] == [
        ("shared", 0.336, 0),
        ("full", 0.1238, 2.89453),
    ]
    assert v2.constant == 4.32158
    assert (h200.unit, h200.constant) == ("us", pytest.approx(57 * 95.5 + 21 * 216.8))
    # About 10.0 ms + 74 us a request + 81 us per 100k tokens on one rank.
    assert float(h200.cost([0], [0])) == pytest.approx(10_000, rel=1e-3)
    assert float(h200.cost([1], [0]) - h200.cost([0], [0])) == pytest.approx(74, rel=6e-3)
    assert float(h200.cost([0], [100_000]) - h200.cost([0], [0])) == pytest.approx(81.5, rel=1e-3)


GOOD = """
schema = "equipoise.step-cost/1"
name = "mine"
[[terms]]
name = "a"
weight = 0.5
"""


def test_defaults_of_a_short_file() -> None:
    assert cost.from_toml(GOOD) == StepCost("mine", (Term("a", 0.5),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("equipoise.step-cost/1", "equipoise.cost/9"),
            "schema = 'equipoise.cost/9'; must be 'equipoise.step-cost/1'",
        ),
        (('name = "mine"', ""), "f.toml: name is missing"),
        (('name = "mine"', 'name = "mine"\nbarier = "step"'), "unknown key 'barier'; did you mean 'barrier'"),
        (("weight = 0.5", "wieght = 0.5"), r"terms\[0\]: unknown key 'wieght'; did you mean 'weight'"),
        (("weight = 0.5", 'weight = "0.5"'), "weight = '0.5'; must be a number from 0 to 1e"),
        (("weight = 0.5", "weight = nan"), "weight = nan"),
        (("weight = 0.5", "weight = inf"), "weight = inf"),
        (("weight = 0.5", "weight = 1e308"), r"weight = 1e\+308; must be a number from 0 to 1e\+30$"),
        (("weight = 0.5", "batch_table = []"), r"terms\[0\]: batch_table is empty; give prices"),
        (("weight = 0.5", "weight = -0.5"), "weight = -0.5"),
        (("weight = 0.5", "weight = true"), "weight = True"),
        (("weight = 0.5", f"weight = {10**400}"), "weight = a number of more than 30 digits"),
        (("weight = 0.5", "batch_table = [1, 0]"), "batch_table falls"),
        (("weight = 0.5", "batch_table = 3"), "batch_table = 3; must be a list"),
        (("weight = 0.5", "saturations = [{tokens = 0, per_100k = 1}]"), "tokens = 0"),
        (("weight = 0.5", "saturations = [{tokens = 5}]"), "per_100k is missing"),
        (("weight = 0.5", "saturations = [{tokens = 5, per_100k = 1, x = 2}]"), "unknown key 'x'"),
        (('name = "mine"', 'name = "mine"\nunit = "s"'), "unit = 's'; use 'request' or 'us'"),
        (
            ('name = "mine"', 'name = "mine"\nunit = "us"\nus_per_unit = 74'),
            "us_per_unit = 74.0; leave it out",
        ),
        (("[[terms]]", "[terms]"), "terms = .*must be a list"),
        (("[[terms]]", "[[trems]]"), "unknown key 'trems'; did you mean 'terms'"),
        (("schema", "schema ="), "is not TOML"),
    ],
)
def test_mistakes_in_a_cost_file_are_named(change: tuple[str, str], message: str) -> None:
    with pytest.raises(CostError, match=message) as caught:
        cost.from_toml(GOOD.replace(*change), "f.toml")
    assert "f.toml" in str(caught.value)


def test_a_cost_without_terms_is_refused() -> None:
    with pytest.raises(CostError, match="no term"):
        cost.from_toml('name = "x"')


def test_what_is_neither_preset_nor_file(tmp_path: Path) -> None:
    with pytest.raises(CostError, match=r"did you mean 'v[12]' or 'v[12]'"):
        cost.load("v3")
    for name in ("", "a" * 5000, "a\0b", "no.toml", tmp_path / "no.toml", tmp_path, "."):
        with pytest.raises(CostError):
            cost.load(name)


def test_json_files_and_derivations_mistaken_for_costs(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(cost.to_dict(cost.load("v2"))))
    assert read(path) == cost.load("v2")
    path.write_text('{"schema": "equipoise.cost/1", "models": {}}')
    with pytest.raises(CostError, match="holds several models"):
        read(path)
    for content in ("[]", "nope", "[" * 100_000):
        path.write_text(content)
        with pytest.raises(CostError):
            read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CostError, match="is not text"):
        read(path)


@pytest.mark.parametrize("where", ["absent/c.toml", ".", "a\0b.toml"])
def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, where: str) -> None:
    with pytest.raises(CostError, match="cannot be written"):
        cost.save(cost.load("v1"), tmp_path / where)
    assert list(tmp_path.iterdir()) == []


@given(st.text(max_size=60) | st.just(GOOD).map(lambda text: text[:40]))
def test_any_text_is_a_cost_or_a_cost_error(text: str) -> None:
    with contextlib.suppress(CostError):
        cost.from_toml(text)
