"""Counts of the presets against numbers worked out by hand or published, never against the code itself."""

from __future__ import annotations

from fractions import Fraction

import pytest

from equipoise import models
from equipoise.errors import ModelError
from equipoise.models import LayerClass, ModelShape, Work
from equipoise.models.shape import group_layers


def layer(shape: ModelShape, name: str) -> LayerClass:
    return next(c for c in shape.classes if c.name == name)


def test_glm53_counts_are_those_worked_out_by_hand() -> None:
    shape = models.load("glm-5.3")
    assert [(c.name, c.count) for c in shape.classes] == [("shared", 57), ("full", 21)]
    gemm, indexer, core = 165_019_648, 9_371_648, 142_606_336
    shared, full = shape.classes
    assert (shared.per_request("projections"), shared.per_request("core")) == (gemm, core)
    assert (full.per_request("projections"), full.per_request("core")) == (gemm + indexer, core)
    assert shared.per_context_token() == 0
    assert full.per_context_token("scan") == full.per_context_token() == 32 * (128 + 1)


def test_every_projection_of_glm53_is_one_of_the_published_list() -> None:
    full = layer(models.load("glm-5.3"), "full")
    assert {w.name: w.macs for w in full.work if w.kind == "projections"} == {
        "q down": 12_582_912,
        "q up": 33_554_432,
        "kv down": 3_538_944,
        "absorbed key up": 6_291_456,
        "absorbed value up": 8_388_608,
        "output": 100_663_296,
        "indexer q": 8_388_608,
        "indexer k": 786_432,
        "indexer head weights": 196_608,
    }


# (weights, k per 100k context per class, sum of weight * k), as an independent count prints them.
TABLE = {
    "glm-5": ((1,), (1.302,), 1.302),
    "glm-5.1": ((1,), (1.302,), 1.302),
    "glm-5.2": ((0.72482, 0.27518), (0, 1.302), 0.358),
    "glm-5.3": ((0.72482, 0.27518), (0, 1.302), 0.358),
    "deepseek-v3": ((1,), (74.4,), 74.4),
    "deepseek-v3.1": ((1,), (74.4,), 74.4),
    "deepseek-v3.2": ((1,), (1.698,), 1.698),
    "deepseek-v4-flash": ((0.038, 0.574, 0.389), (0, 1.228, 0.428), 0.871),
    "deepseek-v4-pro": ((0.410, 0.590), (0.316, 0.428), 0.382),
    "kimi-k2": ((1,), (68.9,), 68.9),
    "kimi-k2.5": ((1,), (68.9,), 68.9),
    "qwen3-235b-a22b": ((1,), (23.0,), 23.0),
    "minimax-m2.5": ((1,), (27.9,), 27.9),
    "minimax-m3": ((0.038, 0.962), (15.3, 0.354), 0.92),  # that count prints 0.355: 0.35447, rounded twice
    "gpt-oss-120b": ((0.510, 0.490), (0, 30.9), 15.1),
}


def as_printed(value: float, printed: float) -> bool:
    digits = len(str(printed).partition(".")[2]) if isinstance(printed, float) else 0
    return round(value, digits) == printed


@pytest.mark.parametrize("name", TABLE)
def test_weights_and_context_prices_match_an_independent_count(name: str) -> None:
    weights, slopes, total = TABLE[name]
    shape = models.load(name)
    whole = sum(c.count * c.per_request() for c in shape.classes)
    got_weights = [c.count * c.per_request() / whole for c in shape.classes]
    got_slopes = [float(c.per_context_token()) * 1e5 / c.per_request() for c in shape.classes]
    assert len(got_weights) == len(weights)
    assert all(as_printed(g, p) for g, p in zip(got_weights, weights, strict=True)), got_weights
    assert all(as_printed(g, p) for g, p in zip(got_slopes, slopes, strict=True)), got_slopes
    got_total = sum(w * s for w, s in zip(got_weights, got_slopes, strict=True))
    assert as_printed(got_total, total), got_total


def test_v41_has_the_published_classes_and_total() -> None:
    shape = models.load("deepseek-v4.1-flash")
    counts = {c.name: c.count for c in shape.classes}
    assert counts == {
        "window": 2,
        "ratio-2 full": 3,
        "ratio-2 reuse": 15,
        "ratio-1 full": 1,
        "ratio-1 reindex": 4,
        "ratio-1 reuse": 15,
    }
    assert layer(shape, "ratio-2 full").per_context_token() == 4128 // 2
    assert layer(shape, "ratio-1 full").per_context_token() == 4128
    whole = sum(c.count * c.per_request() for c in shape.classes)
    total = sum(c.count * c.per_context_token() for c in shape.classes) * 100_000 / whole
    assert as_printed(float(total), 0.147)
    batch_only = sum(c.count * c.per_request() for c in shape.classes if not c.per_context_token()) / whole
    assert batch_only == pytest.approx(0.896, abs=0.003)  # "about" there, with an overlapping compressor


def test_v41_reindex_layers_scan_only_the_candidates() -> None:
    reindex = layer(models.load("deepseek-v4.1-flash"), "ratio-1 reindex")
    scan = next(w for w in reindex.work if w.kind == "scan")
    assert (scan.saturation_tokens, scan.per_request) == (2048 * 8, 2048 * 8 * 32 * 129)


def test_kimi_k3_layers_counted_by_hand() -> None:
    shape = models.load("kimi-k3")
    kda, mla = shape.classes
    width = 96 * 128
    low_rank = 7168 * 128 + 128 * width
    # q, k, v, full-rank gate and output are hidden x width each; decay is low rank; beta is one value a head.
    assert kda.per_request("projections") == 5 * 7168 * width + low_rank + 7168 * 96
    assert kda.per_request("state") == 4 * 3 * width + 3 * 96 * 128 * 128
    q = 7168 * 1536 + 1536 * 96 * 192
    kv = 7168 * 576 + 2 * 96 * 128 * 512
    assert mla.per_request() == q + kv + 2 * 7168 * width  # output and its gate
    assert (kda.count, mla.count, mla.per_context_token()) == (69, 24, 96 * 1088)


def test_qwen35_layers_counted_by_hand() -> None:
    linear, full = models.load("qwen3.5-397b-a17b").classes
    assert (linear.count, full.count) == (45, 15)
    assert linear.per_request("projections") == 4096 * (2048 + 2048 + 8192 + 8192 + 128) + 8192 * 4096
    assert linear.per_request("state") == 4 * 12_288 + 3 * 64 * 128 * 128
    assert full.per_request() == 4096 * 8192 * 2 + 4096 * 1024 + 8192 * 4096  # q and gate, k and v, output
    assert full.per_context_token() == 32 * 2 * 256


def test_llama4_attends_in_chunks_in_three_layers_of_four() -> None:
    chunked, full = models.load("llama-4-maverick").classes
    assert (chunked.count, full.count) == (36, 12)
    core = next(w for w in chunked.work if w.kind == "core")
    assert (core.saturation_tokens, core.per_context_token) == (8192, 40 * 2 * 128)


# Growing KV bytes per token and layout, as published.
KV = [
    ("glm-5", "bf16", 89_856 + 10_296),
    ("glm-5", "fp8", 51_168 + 10_296),
    ("glm-5.3", "bf16", 89_856 + 2_772),
    ("glm-5.3", "fp8", 53_940),
    ("deepseek-v3", "bf16", 70_272),
    ("deepseek-v3", "fp8", 35_136),
    ("deepseek-v3.2", "bf16", 70_272 + 8_052),
    ("deepseek-v3.2", "fp8", 40_016 + 8_052),
    ("kimi-k2.5", "bf16", 70_272),
    ("kimi-k2", "fp8", 35_136),
    ("qwen3-235b-a22b", "bf16", 192_512),
    ("qwen3.5-397b-a17b", "bf16", 30_720),
    ("minimax-m2.5", "bf16", 253_952),
    ("minimax-m3", "bf16", 122_880 + 57 * 256),
    ("gpt-oss-120b", "bf16", 36_864),
    ("llama-4-maverick", "bf16", 49_152),
    ("kimi-k3", "bf16", 27_648),
    ("deepseek-v4.1-flash", "bf16", 3_200),
    ("deepseek-v4.1-flash", "fp8", 1_650),
    ("deepseek-v4.1-flash", "fp4", 890),
    ("deepseek-v4-flash", "fp8", 21 * (584 + 132) / 4 + 20 * 584 / 128),
]


@pytest.mark.parametrize(("name", "layout", "expected"), KV)
def test_kv_bytes_per_token(name: str, layout: str, expected: float) -> None:
    assert models.load(name).kv_bytes_per_token(layout) == expected


def test_default_kv_layout_is_the_one_engines_use() -> None:
    assert models.load("glm-5.3").kv_bytes_per_token() == 53_940
    assert models.load("deepseek-v4.1-flash").kv_bytes_per_token() == 890
    assert models.load("qwen3-235b-a22b").kv_bytes_per_token() == 192_512


def test_an_unknown_kv_layout_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'fp4' is not known for GLM-5\.3; known: bf16, fp8"):
        models.load("glm-5.3").kv_bytes_per_token("fp4")


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("glm-5.3", 2048),
        ("deepseek-v3", 2048),
        ("deepseek-v4-flash", 2731),
        ("deepseek-v4.1-flash", 4096),
        ("kimi-k2", 3072),
        ("kimi-k3", 3584),
        ("qwen3.5-397b-a17b", 3277),
        ("minimax-m3", 2048),
    ],
)
def test_global_batch_at_which_an_expert_meets_64_tokens(name: str, batch: int) -> None:
    assert models.load(name).global_batch_for_m(64) == batch


def test_the_three_kinds_of_the_article_fall_out_of_the_shape() -> None:
    seen = {
        (w.kind, w.grows_with, w.batched_across_requests) for w in layer(models.load("glm-5.3"), "full").work
    }
    assert seen == {("projections", "batch", True), ("core", "batch", False), ("scan", "context", False)}


def test_work_past_its_bound_is_priced_per_request() -> None:
    bounded = Work("core", "window", 10, tokens_per_row=4, max_rows=3)
    assert (bounded.saturation_tokens, bounded.per_request) == (12, 30)
    assert bounded.per_context_token == Fraction(10, 4)
    assert bounded.per_context_token * bounded.saturation_tokens == bounded.per_request


def test_layers_of_one_name_but_different_work_stay_apart() -> None:
    one = LayerClass("a", 1, (Work("projections", "p", 1),))
    other = LayerClass("a", 1, (Work("projections", "p", 2),))
    assert [c.count for c in group_layers([one, other, one])] == [2, 1]
