"""`PrefillCost`: the barrier, scaling, files, what is refused; and the count that `derive_prefill` makes of a shape."""

from __future__ import annotations

import doctest
import importlib
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import cost, models
from equipoise.cost import PrefillCost, PrefillTerm, Saturation, StepCost, Term, derive_prefill
from equipoise.errors import CostError
from equipoise.models import LayerClass, ModelShape, Work

sizes = st.integers(0, 40).map(lambda eighths: eighths / 8)
saturations = st.lists(st.builds(Saturation, st.integers(1, 40), sizes.map(lambda s: s * 1e5)), max_size=2)
terms = st.builds(
    PrefillTerm,
    name=st.sampled_from("abc"),
    per_token=sizes,
    per_100k_pairs=sizes.map(lambda s: s * 1e5),
    saturations=saturations.map(tuple),
)
prefills = st.builds(
    PrefillCost,
    terms=st.lists(terms, min_size=1, max_size=3).map(tuple),
    constant=st.integers(1, 9).map(float),
    us_per_unit=st.sampled_from([1.0, 74.0]),
    barrier=st.sampled_from(["layer", "step"]),
    source=st.text(max_size=10),
)
chunks = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**32 - 1)).map(
    lambda n: np.random.default_rng(n[2]).integers(0, 30, (2, n[0], n[1]))
)


def by_hand(prefill: PrefillCost, offset: Any, tokens: Any) -> float:
    """The slow twin: one position after another."""
    shares = []
    for rank in range(len(tokens)):
        share = []
        for term in prefill.terms:
            price = 0.0
            for o, t in zip(offset[rank], tokens[rank], strict=True):
                for p in range(int(o) + 1, int(o) + int(t) + 1):
                    price += term.per_token + term.per_100k_pairs * p / 1e5
                    price += sum(s.per_100k * min(p, s.tokens) / 1e5 for s in term.saturations)
            share.append(price)
        shares.append(share)
    if prefill.barrier == "step":
        return prefill.constant + max(sum(share) for share in shares)
    return prefill.constant + sum(max(column) for column in zip(*shares, strict=True))


@given(prefills, chunks)
def test_cost_is_a_walk_over_positions(prefill: PrefillCost, load: Any) -> None:
    offset, tokens = load
    assert float(prefill.cost(offset, tokens)) == pytest.approx(by_hand(prefill, offset, tokens), rel=1e-12)


@given(prefills, chunks)
def test_ideal_and_barriers_are_ordered(prefill: PrefillCost, load: Any) -> None:
    layer, step = replace(prefill, barrier="layer"), replace(prefill, barrier="step")
    ideal, one, each = (float(f(*load)) for f in (prefill.ideal, step.cost, layer.cost))
    assert ideal <= one * (1 + 1e-12)
    assert one <= each * (1 + 1e-12)


@given(prefills, chunks, st.sampled_from([0.125, 2.0, 64.0]))
def test_scaling_scales_every_price(prefill: PrefillCost, load: Any, factor: float) -> None:
    assert np.array_equal(prefill.scaled(factor).cost(*load), factor * prefill.cost(*load))
    in_us = prefill.in_us()
    assert (in_us.unit, in_us.us_per_unit) == ("us", 1.0)
    assert in_us.cost(*load) == pytest.approx(prefill.us_per_unit * prefill.cost(*load), rel=1e-12)


@given(prefills, chunks)
def test_several_steps_at_once_are_those_steps(prefill: PrefillCost, load: Any) -> None:
    offset, tokens = load
    other = tokens[::-1]
    both = prefill.cost(np.stack([offset, offset]), np.stack([tokens, other]))
    assert both.tolist() == [float(prefill.cost(offset, tokens)), float(prefill.cost(offset, other))]


@given(prefills, st.integers(0, 50), st.integers(1, 50))
def test_a_chunk_of_no_tokens_is_no_chunk(prefill: PrefillCost, offset: int, tokens: int) -> None:
    assert prefill.cost([[7, offset]], [[0, tokens]]) == prefill.cost([[offset]], [[tokens]])
    assert float(prefill.cost([[offset]], [[0]])) == prefill.constant


@given(prefills)
def test_the_crossover_is_the_first_prompt_whose_pairs_pay_as_much_as_the_rest(prefill: PrefillCost) -> None:
    found = prefill.crossover_tokens
    pair = sum(t.per_100k_pairs for t in prefill.terms) / 1e5
    quadratic = linear = 0.0
    for position in range(1, 200):
        quadratic += pair * position
        linear += sum(
            t.per_token + sum(s.per_100k * min(position, s.tokens) / 1e5 for s in t.saturations)
            for t in prefill.terms
        )
        crossed = pair > 0 and quadratic >= linear
        assert crossed == (found is not None and position >= found), (position, found)


def test_crossovers_far_out() -> None:
    assert PrefillCost((PrefillTerm("a", 1.0),)).crossover_tokens is None
    # T = P: n = n (n + 1) / 2 * price
    assert PrefillCost((PrefillTerm("a", 1.0, 0.2),)).crossover_tokens == 10**6 - 1
    assert PrefillCost((PrefillTerm("a", 1.0, 1e-30),)).crossover_tokens is None


@given(prefills, st.sampled_from(["request", "us"]))
def test_one_file_gives_decode_and_prefill_back_to_the_last_bit(prefill: PrefillCost, unit: Any) -> None:
    clock = 1.0 if unit == "us" else prefill.us_per_unit
    prefill = replace(prefill, unit=unit, us_per_unit=clock)
    whole = StepCost("whole", (Term("a"),), unit=unit, us_per_unit=clock, prefill=prefill)
    assert cost.from_toml(cost.to_toml(whole)) == whole
    assert cost.from_dict(json.loads(json.dumps(cost.to_dict(whole)))) == whole


def test_a_cost_without_prefill_is_written_as_before() -> None:
    plain = StepCost("plain", (Term("a"),))
    assert "prefill" not in cost.to_dict(plain)
    assert cost.from_dict(cost.to_dict(plain)).prefill is None


def test_a_step_cost_takes_its_prefill_along() -> None:
    whole = cost.derive(models.load("glm-5.3"))
    assert whole.prefill is not None
    assert whole.scaled(2.0).prefill == whole.prefill.scaled(2.0)
    assert whole.in_us().prefill == whole.prefill.in_us()
    assert whole.in_us().in_us() == whole.in_us()


def test_two_units_in_one_cost_are_refused() -> None:
    prefill = PrefillCost((PrefillTerm("a", 1.0),), unit="us")
    with pytest.raises(CostError, match="prefill is in us of 1 us, decode in request of 74 us"):
        StepCost("c", (Term("a"),), us_per_unit=74.0, prefill=prefill)


FILE = """
name = "c"
[[terms]]
name = "a"
[prefill]
constant = 2.0
[[prefill.terms]]
name = "a"
per_token = 0.5
saturations = [{tokens = 8, per_100k = 1e5}]
"""


def test_a_written_table_is_read() -> None:
    prefill = cost.from_toml(FILE).prefill
    assert prefill == PrefillCost((PrefillTerm("a", 0.5, 0.0, (Saturation(8, 1e5),)),), 2.0)
    assert float(prefill.cost([[0]], [[10]])) == 2 + 5 + 36 + 16


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("constant = 2.0", "constant = -1", "prefill: constant = -1; must be a number from 0 to 1e"),
        ("constant = 2.0", 'unit = "us"', "prefill: unit is set; leave it out"),
        ("constant = 2.0", "us_per_unit = 74.0", "us_per_unit is set; leave it out"),
        ("constant = 2.0", 'barrier = "rank"', "prefill: barrier = 'rank'; use 'layer' or 'step'"),
        ("constant = 2.0", "constnat = 2.0", "unknown key 'constnat'; did you mean 'constant'?"),
        ("per_token = 0.5", "per_tokens = 0.5", "prefill, terms[0]: unknown key 'per_tokens'"),
        ("per_token = 0.5", "per_token = nan", "per_token = nan; must be a number from"),
        ("tokens = 8", "tokens = 0", "tokens = 0; must be a whole number from 1 to 2147483647"),
        ("tokens = 8", "tokens = 2147483648", "tokens = 2147483648; must be a whole number"),
        ('name = "a"\nper_token = 0.5', "per_token = 0.5", "prefill, terms[0]: name is missing"),
        ("[[prefill.terms]]", "[prefill.terms]", "terms = {"),
        ("[prefill]\nconstant = 2.0\n[[prefill.terms]]", "[prefill]\nx = [{}]\n[[x]]", "unknown key 'x'"),
    ],
)
def test_mistakes_in_the_table_are_named(old: str, new: str, says: str) -> None:
    assert old in FILE
    with pytest.raises(CostError) as caught:
        cost.from_toml(FILE.replace(old, new, 1), "c.toml")
    assert str(caught.value).startswith("c.toml")
    assert says in str(caught.value)


def test_a_table_without_terms_is_refused() -> None:
    with pytest.raises(CostError, match=r"prefill: no term; give at least one \[\[prefill.terms\]\] table"):
        cost.from_toml('name = "c"\nterms = [{name = "a"}]\n[prefill]\nconstant = 1.0')


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"terms": ()}, "no term"),
        ({"constant": float("nan")}, "constant = nan"),
        ({"us_per_unit": 0.0}, "us_per_unit = 0.0"),
        ({"unit": "ms"}, "unit = 'ms'"),
        ({"terms": (PrefillTerm("a", float("inf")),)}, "a.per_token = inf"),
        ({"terms": (PrefillTerm("a", 1.0, saturations=(Saturation(0, 1.0),)),)}, "saturations.tokens = 0"),
        ({"terms": (PrefillTerm("a"),)}, "every price is 0"),
    ],
)
def test_senseless_costs_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(CostError) as caught:
        PrefillCost(**{"terms": (PrefillTerm("a", 1.0),), **arguments})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("offset", "tokens", "says"),
    [
        ([1, 2], [1, 2], "must be [..., ranks, chunks]"),
        ([[1, 2]], [[1]], "must be [..., ranks, chunks]"),
        (np.empty((0, 2), int), np.empty((0, 2), int), "at least one rank"),
        ([[-1]], [[1]], "offset_tokens = -1"),
        ([[0, 0, 0]], [[2**31 - 1] * 3], "more than 2**62 pairs"),
    ],
)
def test_senseless_loads_are_refused(offset: Any, tokens: Any, says: str) -> None:
    with pytest.raises(CostError) as caught:
        PrefillCost((PrefillTerm("a", 1.0),)).cost(offset, tokens)
    assert says in str(caught.value)


def test_sums_of_another_shape_are_refused() -> None:
    with pytest.raises(CostError, match=r"must be \[..., ranks\]"):
        PrefillCost((PrefillTerm("a", 1.0),)).work_of_sums([1], [1, 2], np.empty((1, 0)))


@pytest.mark.parametrize("module", ["attended", "prefill", "prefill_derivation"])
def test_the_examples_in_the_docstrings(module: str) -> None:
    tested = doctest.testmod(importlib.import_module(f"equipoise.cost.{module}"))
    assert tested.attempted > 0
    assert tested.failed == 0


# What is derived


@pytest.fixture(params=models.names())
def shape(request: pytest.FixtureRequest) -> ModelShape:
    return models.load(request.param)


def decode_multiply_adds(work: Work, context: int) -> Fraction:
    """What one decode token of a request with this context costs one layer, rows beyond a bound not read."""
    if not work.tokens_per_row:
        return Fraction(work.macs)
    rows = Fraction(context, work.tokens_per_row)
    return work.macs * (rows if work.max_rows is None else min(rows, work.max_rows))


def exact_prompt(shape: ModelShape, tokens: int) -> Fraction:
    """A prompt from its start, in multiply-adds, by the closed forms."""
    total = Fraction(0)
    for layer in shape.classes:
        for w in layer.work:
            if not w.tokens_per_row:
                total += layer.count * w.macs * tokens
            else:
                bound = w.saturation_tokens
                reads = cost.pairs(0, tokens) if bound is None else cost.saturated_pairs(0, tokens, bound)
                total += layer.count * w.per_context_token * int(reads)
    return total


@pytest.mark.parametrize("tokens", [1, 127, 3000])
def test_a_prompt_costs_what_decode_would_token_by_token(shape: ModelShape, tokens: int) -> None:
    """The strong law, in exact fractions; and the prices are those fractions."""
    naive = sum(
        (
            layer.count * decode_multiply_adds(w, p)
            for layer in shape.classes
            for w in layer.work
            for p in range(1, tokens + 1)
        ),
        Fraction(0),
    )
    assert naive == exact_prompt(shape, tokens)
    unit = sum(c.count * c.per_request() for c in shape.classes)
    priced = derive_prefill(shape, latent="absorbed").cost([[0]], [[tokens]])
    assert float(priced) == pytest.approx(float(naive / unit), rel=1e-13)


def test_every_price_is_the_nearest_float_to_its_fraction(shape: ModelShape) -> None:
    prefill, unit = (
        derive_prefill(shape, latent="absorbed"),
        sum(c.count * c.per_request() for c in shape.classes),
    )
    per_pair = sum(c.count * c.per_context_token() for c in shape.classes)
    assert sum(t.per_100k_pairs for t in prefill.terms) == pytest.approx(
        float(per_pair * 100_000 / unit), rel=1e-15
    )
    # A token past every bound: the unit.
    past = sum(t.per_token + sum(s.per_100k * s.tokens for s in t.saturations) / 1e5 for t in prefill.terms)
    assert past == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize("kind", ["v1", "v2"])
def test_prefill_is_decode_v1_priced_exactly(shape: ModelShape, kind: Any) -> None:
    decode, prefill = cost.derive(shape, "v1", saturate=True), derive_prefill(shape, latent="absorbed")
    both = cost.derive(shape, kind)
    assert both.prefill == derive_prefill(shape)
    assert (prefill.unit, prefill.us_per_unit, prefill.constant) == ("request", 74.0, 0.0)
    assert [t.name for t in prefill.terms] == [t.name for t in decode.terms]
    for mine, theirs in zip(prefill.terms, decode.terms, strict=True):
        assert mine.per_token == pytest.approx(theirs.weight * theirs.per_request, rel=1e-14)
        assert mine.per_100k_pairs == pytest.approx(theirs.weight * theirs.per_100k_context, rel=1e-14)
        assert [s.tokens for s in mine.saturations] == [s.tokens for s in theirs.saturations]
        for one, other in zip(mine.saturations, theirs.saturations, strict=True):
            assert one.per_100k == pytest.approx(theirs.weight * other.per_100k, rel=1e-14)


def test_one_token_of_prefill_is_one_token_of_decode(shape: ModelShape) -> None:
    """Ranks that each have one request: a step of decode, or a prefill step of one token behind the same context."""
    decode, prefill = cost.derive(shape, "v1", saturate=True), derive_prefill(shape, latent="absorbed")
    context = np.random.default_rng(5).integers(1, 300_000, (20, 4))
    bounds = np.array(decode.saturation_tokens, dtype=np.int64)
    K = np.minimum(context[..., None], bounds)
    one = np.ones((20, 4), dtype=np.int64)
    got = prefill.cost(context[..., None] - 1, one[..., None])
    assert got == pytest.approx(decode.cost(one, context, K), rel=1e-12)


@given(name=st.sampled_from(models.names()), cuts=st.lists(st.integers(1, 200_000), min_size=1, max_size=6))
def test_chunks_of_a_prompt_cost_as_much_as_the_whole(name: str, cuts: list[int]) -> None:
    prefill, edges = derive_prefill(models.load(name)), [0, *sorted(cuts)]
    offset, tokens = np.array(edges[:-1]), np.diff(edges)
    alone = prefill.cost(offset[:, None, None], tokens[:, None, None]).sum()
    assert alone == pytest.approx(float(prefill.cost([[0]], [[edges[-1]]])), rel=1e-11)


def test_the_numbers_of_glm53() -> None:
    prefill = derive_prefill(models.load("glm-5.3"))
    assert prefill.saturation_tokens == (2048,)
    assert sum(t.per_100k_pairs for t in prefill.terms) == pytest.approx(0.35834, rel=1e-5)
    assert prefill.crossover_tokens == 557_660
    # 100k tokens: one request each past 2,048, and 5e9 pairs at 0.358 a 100k.
    assert float(prefill.cost([[0]], [[100_000]])) == pytest.approx(1e5 + 0.35834 * 50_000.5 - 471, rel=1e-5)


def test_a_shape_without_work_per_request_is_refused() -> None:
    shape = ModelShape("p", "by hand", 0, (LayerClass("a", 3, (Work("scan", "s", 5, tokens_per_row=1),)),))
    with pytest.raises(CostError, match="no work per request"):
        derive_prefill(shape)


def test_a_saved_derivation_holds_both(tmp_path: Path) -> None:
    derived = cost.derive(models.load("deepseek-v4.1-flash"), "v2")
    cost.save(derived, tmp_path / "c.toml")
    assert "[prefill]" in (tmp_path / "c.toml").read_text()
    assert cost.load(tmp_path / "c.toml") == derived
    assert cost.load("glm-5.3:v1").prefill == cost.derive(models.load("glm-5.3")).prefill


DENSE_LATENT = ("deepseek-v3", "deepseek-v3.1", "kimi-k2", "kimi-k2.5", "kimi-k3")


def test_only_dense_latent_attention_is_computed_otherwise_in_chunks(shape: ModelShape) -> None:
    expanded, absorbed = derive_prefill(shape), derive_prefill(shape, latent="absorbed")
    dense = shape.name in {models.load(name).name for name in DENSE_LATENT}
    assert (expanded != absorbed) == dense
    if dense:
        a, b = (next(t.per_100k_pairs for t in p.terms if t.per_100k_pairs) for p in (expanded, absorbed))
        # 128 + 64 for the score and 128 for the value, against 512 + 64 and 512.
        assert a / b == pytest.approx(320 / 1088, rel=1e-14)
        assert [t.per_token for t in expanded.terms] == [t.per_token for t in absorbed.terms]


def test_a_senseless_form_of_latent_attention_is_refused() -> None:
    with pytest.raises(CostError, match="latent = 'mha'; must be 'expanded' or 'absorbed'"):
        derive_prefill(models.load("kimi-k2"), latent="mha")  # type: ignore[arg-type]
