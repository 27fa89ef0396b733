"""`derive`: the article's constants, the two forms against each other, and exact pricing of bounded reads."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise import models
from equipoise.cost import StepCost, derive
from equipoise.cost.summary import breakdown, derivation_summary
from equipoise.errors import CostError
from equipoise.models import LayerClass, ModelShape, Work


@pytest.fixture(params=models.names())
def shape(request: pytest.FixtureRequest) -> ModelShape:
    return models.load(request.param)


def term(cost: StepCost, name: str) -> tuple[float, float, float]:
    t = next(t for t in cost.terms if t.name == name)
    return t.weight, t.per_request, t.per_100k_context


@pytest.mark.parametrize("name", ["glm-5.2", "glm-5.3"])
def test_the_seven_constants_of_the_article(name: str) -> None:
    v1, v2 = derive(models.load(name), "v1"), derive(models.load(name), "v2")
    got = (
        term(v1, "shared")[0], term(v1, "full")[0], term(v1, "full")[2],
        v2.constant, term(v2, "shared")[0], term(v2, "full")[0], term(v2, "full")[2],
    )  # fmt: skip
    assert got == pytest.approx((0.72482, 0.27518, 1.30219, 4.32158, 0.336, 0.1238, 2.89453), rel=1e-4)
    printed = [f"{value:.6f}" for value in got]
    assert printed == ["0.724824", "0.275176", "1.302218", "4.321606", "0.336007", "0.123792", "2.894682"]


def test_the_glm53_terms_are_the_two_of_the_article() -> None:
    v1 = derive(models.load("glm-5.3"), "v1")
    assert [t.name for t in v1.terms] == ["shared", "full"]
    assert term(v1, "shared")[1:] == (1.0, 0.0)
    assert (v1.constant, v1.unit, v1.barrier, v1.us_per_unit) == (0.0, "request", "layer", 74.0)


def test_one_short_request_costs_one_under_v1(shape: ModelShape) -> None:
    assert float(derive(shape, "v1").cost([1, 0], [0, 0])) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("b0", [1, 8, 200])
def test_v2_is_v1_where_every_batch_is_b0(shape: ModelShape, b0: int) -> None:
    rng = np.random.default_rng(b0)
    batch = np.full((20, 8), b0)
    context = rng.integers(0, 5_000_000, (20, 1)).repeat(8, axis=1)
    v1, v2 = derive(shape, "v1"), derive(shape, "v2", b0)
    assert v2.cost(batch, context) == pytest.approx(v1.cost(batch, context), rel=1e-12)


def test_v2_is_cheaper_past_b0_and_dearer_below_it(shape: ModelShape) -> None:
    v1, v2 = derive(shape, "v1"), derive(shape, "v2", 8)
    context = np.zeros(4, dtype=np.int64)
    assert float(v2.cost(np.full(4, 9), context)) < float(v1.cost(np.full(4, 9), context))
    assert float(v2.cost(np.full(4, 7), context)) > float(v1.cost(np.full(4, 7), context))


def test_the_price_of_context_is_the_same_in_both_forms(shape: ModelShape) -> None:
    v1, v2 = derive(shape, "v1"), derive(shape, "v2")
    slope = [sum(t.weight * t.per_100k_context for t in c.terms) for c in (v1, v2)]
    assert slope[0] == pytest.approx(slope[1], rel=1e-12)


def test_v1_equals_a_naive_sum_over_layers(shape: ModelShape) -> None:
    """The oracle walks the layers one by one and every layer waits for its slowest rank."""
    rng = np.random.default_rng(7)
    batch, context = rng.integers(0, 60, 6), rng.integers(0, 4_000_000, 6)
    whole = sum(c.count * c.per_request() for c in shape.classes)
    naive = 0
    for layer in shape.classes:
        for _ in range(layer.count):
            naive += max(
                layer.per_request() * int(b) + layer.per_context_token() * int(c)
                for b, c in zip(batch, context, strict=True)
            )
    assert float(derive(shape, "v1").cost(batch, context)) == pytest.approx(float(naive / whole), rel=1e-12)


def test_exact_pricing_agrees_for_requests_past_every_bound(shape: ModelShape) -> None:
    for kind in ("v1", "v2"):
        plain, exact = derive(shape, kind), derive(shape, kind, saturate=True)
        batch = np.array([[3, 5], [8, 1]])
        context = batch * 100_000
        assert exact.cost(batch, context) == pytest.approx(plain.cost(batch, context), rel=1e-9)
        assert exact.request_in_context_tokens == pytest.approx(plain.request_in_context_tokens, rel=1e-12)


def test_exact_pricing_equals_a_naive_count_of_short_requests(shape: ModelShape) -> None:
    rng = np.random.default_rng(11)
    lengths = [rng.integers(1, 40_000, n) for n in (4, 9, 2)]
    cost = derive(shape, "v1", saturate=True)
    bounds = cost.saturation_tokens
    K = np.array([[np.minimum(rank, b).sum() for b in bounds] for rank in lengths]).reshape(3, len(bounds))
    whole = sum(c.count * c.per_request() for c in shape.classes)
    naive = 0.0
    for layer in shape.classes:
        per_rank = []
        for rank in lengths:
            price = 0.0
            for request in rank:
                for w in layer.work:
                    if not w.tokens_per_row:
                        price += w.macs
                    else:
                        rows = int(request) / w.tokens_per_row
                        price += w.macs * (rows if w.max_rows is None else min(rows, w.max_rows))
            per_rank.append(price)
        naive += layer.count * max(per_rank)
    got = cost.cost([len(r) for r in lengths], [int(r.sum()) for r in lengths], K)
    assert float(got) == pytest.approx(naive / whole, rel=1e-9)


def test_short_requests_are_cheaper_when_priced_exactly() -> None:
    shape = models.load("glm-5.3")
    plain, exact = derive(shape, "v1"), derive(shape, "v1", saturate=True)
    assert float(exact.cost([10], [10 * 100])) < float(plain.cost([10], [10 * 100]))
    assert exact.saturation_tokens == (2048,)


def test_v41_has_three_barriers_and_merges_those_that_grow_with_the_batch() -> None:
    cost = derive(models.load("deepseek-v4.1-flash"), "v1")
    assert len(cost.terms) == 3
    merged = cost.terms[0]
    assert set(merged.name.split(" + ")) == {"window", "ratio-2 reuse", "ratio-1 reuse", "ratio-1 reindex"}
    assert (merged.per_request, merged.per_100k_context) == (1.0, 0.0)


def test_dense_attention_keeps_no_price_per_request_in_v2() -> None:
    cost = derive(models.load("kimi-k2"), "v2")
    only = cost.terms[0]
    assert (cost.constant, only.weight, only.per_request) == (8.0, 1.0, 0.0)
    assert only.per_100k_context == pytest.approx(68.8594, rel=1e-6)
    assert cost.request_in_context_tokens == 0


def test_a_model_that_is_all_projections_costs_its_constant_in_v2() -> None:
    shape = ModelShape("p", "by hand", 0, (LayerClass("a", 3, (Work("projections", "w", 5),)),))
    cost = derive(shape, "v2", 4)
    assert float(cost.cost([9, 1], [0, 0])) == 4.0
    assert float(derive(shape, "v1").cost([9, 1], [5, 0])) == 9.0


def test_a_model_without_work_per_request_is_refused() -> None:
    shape = ModelShape("p", "by hand", 0, (LayerClass("a", 3, (Work("scan", "s", 5, tokens_per_row=1),)),))
    with pytest.raises(CostError, match="no work per request"):
        derive(shape)


@pytest.mark.parametrize("b0", [0, -1, 1.5, True, 10**9, float("nan")])
def test_a_senseless_b0_is_refused(b0: int) -> None:
    with pytest.raises(CostError, match=r"b0 = .*must be a whole number from 1 to 65536"):
        derive(models.load("glm-5.3"), "v2", b0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CostError, match="kind = 'v3'"):
        derive(models.load("glm-5.3"), "v3")  # type: ignore[arg-type]


def test_the_summary_has_the_fixed_face() -> None:
    shape = models.load("glm-5.3")
    summary = derivation_summary(shape, {k: derive(shape, k) for k in ("v1", "v2")})
    assert summary["schema"] == "equipoise.cost/1"
    assert summary["kv_bytes_per_token"] == 53_940
    assert summary["batch_for_m64"] == 2048
    assert summary["request_in_context_tokens"]["v1"] == pytest.approx(1e5 / 0.35834, rel=1e-4)
    assert summary["request_in_context_tokens"]["v2"] == pytest.approx(0.4598 / 0.35834 * 1e5, rel=1e-4)
    model = summary["models"]["v2"]
    assert {"unit", "barrier", "constant", "terms"} <= set(model)
    assert list(model["terms"][1]) == ["name", "weight", "per_request", "per_100k_context"]


def test_the_breakdown_is_the_figure_of_the_article() -> None:
    full = models.load("glm-5.3").classes[1]
    rows = {r["kind"]: r for r in breakdown(full)}
    assert [*rows] == ["projections", "core", "scan"]
    assert [r["batched_across_requests"] for r in rows.values()] == [True, False, False]
    assert [r["grows_with"] for r in rows.values()] == ["batch", "batch", "context"]
    assert rows["core"]["saturation_tokens"] == 2048
    assert rows["scan"]["multiply_adds"] == 4128
