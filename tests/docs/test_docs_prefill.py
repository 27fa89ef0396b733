"""The counted numbers of the page on prefill are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from pages import text_of

from equipoise import cost, models
from equipoise.cost import PrefillCost, PrefillTerm, derive_prefill

PAGE = text_of("explain/prefill-cost.md")
ROWS = re.findall(r"^\| `([\w.-]+)` \| .*$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", ROWS)
def test_counted_rows(name: str) -> None:
    prefill = derive_prefill(models.load(name))
    per_token = [float(prefill.cost([[0]], [[n]])) / n for n in (8192, 65536, 131072)]
    pairs = sum(t.per_100k_pairs for t in prefill.terms)
    cells = [f"`{name}`", f"{pairs:.3f}", f"{prefill.crossover_tokens:,}", *(f"{x:.2f}" for x in per_token)]
    assert f"| {' | '.join(cells)} |" in PAGE


def test_the_table_has_models() -> None:
    assert len(ROWS) >= 10


def test_two_chunks_of_equal_size() -> None:
    for name, ratio, tokens in (("glm-5.3", "1.51", 5_446), ("kimi-k2", "14.3", 590)):
        prefill = derive_prefill(models.load(name))
        first, second = prefill.work([[0], [120_000]], [[8192], [8192]]).sum(axis=0)
        assert f"{second / first:.3g}" == ratio
        as_long = [float(prefill.work([[120_000]], [[n]]).sum()) for n in (tokens, tokens + 1)]
        assert as_long[0] <= first < as_long[1]
        assert ratio in PAGE
        assert f"{tokens:,}" in PAGE


def test_the_crossovers_of_layers() -> None:
    """The last column of the measured table, and what decode's count would give."""
    flash = derive_prefill(models.load("deepseek-v4-flash"))
    layers = {t.name: PrefillCost((t,)) for t in flash.terms}
    counted = {
        "153k": derive_prefill(models.load("glm-5")),
        "117k": derive_prefill(models.load("deepseek-v3.2")),
        "9.1k": derive_prefill(models.load("deepseek-v3")),
        "163k": layers["csa"],
        "467k": layers["hca"],
    }
    for shown, prefill in counted.items():
        assert prefill.crossover_tokens is not None
        decimals = 1 if "." in shown else 0
        assert f"{prefill.crossover_tokens / 1000:.{decimals}f}k" == shown
        assert re.search(rf"\| {re.escape(shown)} \|$", PAGE, re.MULTILINE)
    absorbed = derive_prefill(models.load("deepseek-v3"), latent="absorbed")
    assert f"cross at {absorbed.crossover_tokens:,} tokens" in PAGE


def test_every_key_of_the_table_is_in_the_reference() -> None:
    page = text_of("reference/cost-files.md").partition("## Prefill")[2]
    keys = {f.name for f in fields(PrefillCost)} - {"unit", "us_per_unit"} | {
        f.name for f in fields(PrefillTerm)
    }
    for key in keys:
        assert f"| `{key}` |" in page, key


def test_the_example_file_has_a_prefill_cost() -> None:
    text = re.findall(
        r"<!-- cost: prefill -->\n```toml\n(.*?)```", text_of("reference/cost-files.md"), re.DOTALL
    )
    prefill = cost.from_toml(text[0]).prefill
    assert prefill is not None
    counted = derive_prefill(models.load("glm-5.3"))
    assert prefill.cost([[0]], [[100_000]]) == pytest.approx(counted.cost([[0]], [[100_000]]), rel=1e-5)
