"""Presets by name, and layers by hand."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import models
from equipoise.errors import ModelError
from equipoise.models.by_hand import EXAMPLE, parse_layers

REQUIRED = [
    "GLM-5", "GLM-5.1", "GLM-5.2", "GLM-5.3", "DeepSeek-V3", "DeepSeek-V3.1", "DeepSeek-V3.2",
    "DeepSeek-V4-Flash", "DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash", "Kimi-K2", "Kimi-K2.5", "Kimi-K3",
    "Qwen3-235B", "Qwen3.5-397B",
    "MiniMax-M2.5", "MiniMax-M3", "gpt-oss-120b", "Llama-4-Maverick",
]  # fmt: skip


@pytest.mark.parametrize("name", REQUIRED)
def test_every_promised_model_is_there_under_its_plain_name(name: str) -> None:
    shape = models.load(name)
    assert shape.layers > 0
    assert shape.source
    assert shape.notes == () or "chunk" in shape.notes[0]


def test_names_lists_what_load_takes() -> None:
    assert len(models.names()) == len(REQUIRED)
    assert models.names() == sorted(models.names())
    assert len({models.load(n).name for n in models.names()}) == len(REQUIRED)


@pytest.mark.parametrize(
    "spelling",
    [
        "glm-5.3", "GLM-5.3", "zai-org/GLM-5.3", "zai-org--GLM-5.3", " glm_5.3 ", "glm5.3", "GLM-5.3-FP8",
        "nvidia/GLM-5.3-NVFP4", "someone/glm-5.3-AWQ", "GLM-5.3-FP8-2507", "zai-org/GLM-5.3/",
    ],
)  # fmt: skip
def test_spelling_and_precision_do_not_matter(spelling: str) -> None:
    assert models.load(spelling).name == "GLM-5.3"


@pytest.mark.parametrize("name", ["glm-5.4", "deepseek-v4", "", "   ", "kimi", "glm-5.3-flash", "-fp8", "/"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ModelError):
        models.load(name)


def test_nearest_names_are_offered() -> None:
    with pytest.raises(ModelError, match=r"did you mean 'glm-5.3'.*Known: deepseek-v3, .*--config"):
        models.load("glm-5.33")


def test_a_smaller_model_of_another_architecture_is_not_taken_for_it() -> None:
    with pytest.raises(ModelError, match="glm5_next"):
        models.load("zai-org/GLM-5.3-Flash-FP8")


@given(st.text(max_size=30))
def test_any_name_gives_a_shape_or_a_model_error(name: str) -> None:
    with contextlib.suppress(ModelError):
        models.load(name)


def test_the_template_is_glm53_described_by_hand() -> None:
    by_hand, preset = parse_layers(EXAMPLE, "template"), models.load("glm-5.3")
    for a, b in zip(by_hand.classes, preset.classes, strict=True):
        assert (a.name, a.count) == (b.name, b.count)
        assert a.per_request("projections") == b.per_request("projections")
        assert a.per_request() == b.per_request()
        assert a.per_context_token() == b.per_context_token()
        assert [w.saturation_tokens for w in a.work if w.kind == "core"] == [2048]
    assert by_hand.kv_bytes_per_token() == preset.kv_bytes_per_token()
    assert by_hand.global_batch_for_m(64) == 2048


def test_layers_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(EXAMPLE)
    assert models.from_layers(path).layers == 78


MINIMAL = """
schema = "equipoise.layers/1"
name = "m"
[[layers]]
name = "a"
count = 2
[[layers.work]]
kind = "projections"
multiply_adds = 10
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("equipoise.layers/1", "equipoise.layers/2"), "schema = 'equipoise.layers/2'"),
        (('schema = "equipoise.layers/1"', ""), "schema = ''"),
        (("count = 2", "count = 0"), r"layers\[0\]: count = 0; must be a whole number from 1 to 10000"),
        (("count = 2", "count = 2.5"), "count = 2.5"),
        (("count = 2", ""), "count is missing"),
        (("count", "cuont"), "count is missing"),
        (("count = 2", "count = 2\ncuont = 3"), "unknown key 'cuont'; did you mean 'count'"),
        (('name = "m"', 'nam = "m"'), "name is missing"),
        (
            ('kind = "projections"', 'kind = "gemm"'),
            "kind = 'gemm'; must be one of projections, core, scan, state",
        ),
        (("multiply_adds = 10", ""), "give either multiply_adds or matrices"),
        (
            ("multiply_adds = 10", "multiply_adds = 10\nmatrices = [[1]]"),
            "give either multiply_adds or matrices",
        ),
        (("multiply_adds = 10", "matrices = []"), "must be a list of lists"),
        (("multiply_adds = 10", "matrices = [[]]"), "no list empty"),
        (("multiply_adds = 10", "matrices = [[3, 0]]"), r"matrices\[0\]\[1\] = 0"),
        (("multiply_adds = 10", "matrices = [7]"), r"matrices\[0\] = 7; must be a list"),
        (("multiply_adds = 10", "matrices = [[1000000000, 1000000000, 2]]"), "matrices make 2e"),
        (("multiply_adds = 10", "multiply_adds = 10\nmax_rows = 3"), "unknown key 'max_rows'"),
        (("multiply_adds = 10", "multiply_adds = -1"), "multiply_adds = -1"),
        (("multiply_adds = 10", "multiply_adds = nan"), "multiply_adds = nan"),
        (("[[layers.work]]", "[[layers.wrok]]"), "unknown key 'wrok'; did you mean 'work'"),
        (('name = "m"', 'name = "m"\nexperts = 4'), "experts_per_token is missing"),
        (("[[layers]]", "[layers]"), "layers = .*must be a list"),
        (('schema = "equipoise.layers/1"', "schema = "), "is not TOML"),
    ],
)
def test_mistakes_in_layers_by_hand_are_named(change: tuple[str, str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_layers(MINIMAL.replace(*change), "m.toml")


def test_two_classes_of_one_name_are_refused() -> None:
    twice = MINIMAL + MINIMAL[MINIMAL.index("[[layers]]") :]
    with pytest.raises(ModelError, match="two layer classes are named 'a'"):
        parse_layers(twice, "m.toml")


def test_a_file_that_is_no_layer_description(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        models.from_layers(tmp_path)
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="is not text"):
        models.from_layers(tmp_path / "b.toml")
