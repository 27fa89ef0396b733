"""The measured presets: what they say of themselves, their exchange rates, and the data they were fitted to."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from equipoise import cost, models
from equipoise.cost import StepCost

pytestmark = pytest.mark.proof

ROOT = Path(__file__).resolve().parents[2]
MEASURED = [n for n in cost.names() if n not in ("h200", "v1", "v2")]
TABLE = Path("calib") / "aic-decode-attention" / "aic_decode_attention.csv.gz"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("measured_costs")
    sys.path.remove(str(ROOT / "scripts"))


def about(name: str) -> dict[str, Any]:
    return dict(cost.load(name).metadata["fit"])


def model_of(name: str) -> str:
    return name.split("-", 2)[2]


@pytest.mark.parametrize("name", MEASURED)
def test_a_preset_is_the_whole_model_and_says_what_it_is_not(name: str) -> None:
    loaded, fit = cost.load(name), about(name)
    layers = {c.name: c.count for c in models.load(model_of(name)).classes}
    assert {t.name: t.weight for t in loaded.terms} == layers
    assert {c["name"] for c in fit["classes"]} == set(layers)
    assert (loaded.name, loaded.unit, loaded.barrier) == (name, "us", "layer")
    assert "only" in loaded.source
    assert "Apache-2.0" in loaded.source
    assert "attention layers only" in fit["caveats"][0]
    assert fit["heldout_mape"] <= 0.06
    assert fit["beyond_mape"] <= 0.10
    assert fit["heldout_mape"] == max(c["heldout_mape"] for c in fit["classes"])
    stack = name.split("-")[1]
    for c in fit["classes"]:
        own = stack == "mixed" or c["framework"] == stack.upper()
        assert own or "instead" in c
        assert c["rows"] >= 40


@pytest.mark.parametrize("name", MEASURED)
def test_what_a_request_weighs_is_that_of_its_kind_of_attention(name: str) -> None:
    rate = cost.load(name).request_in_context_tokens
    if model_of(name) in ("deepseek-v3", "kimi-k2"):
        assert 1_000 < rate < 10_000  # dense: every token of context is read
    else:
        assert 10_000 < rate < 110_000  # sparse or compressed: only scanned
    fit = about(name)
    if "request_in_context_tokens" in fit:
        span = fit["request_in_context_tokens"]
        assert span["low"] <= rate <= span["high"]
        assert rate == pytest.approx(span["value"], rel=1e-3)


@pytest.mark.parametrize("name", MEASURED)
def test_even_loads_are_the_ideal_and_uneven_ones_cost_more(name: str) -> None:
    loaded = cost.load(name)
    even = np.full(8, 32), np.full(8, 2_000_000)
    uneven = np.array([4, 60] * 4), np.array([3_900_000, 100_000] * 4)
    # No concave table of batches: its convex envelope would make even loads look uneven.
    assert float(loaded.cost(*even)) == pytest.approx(float(loaded.ideal(*even)), rel=1e-12)
    assert loaded.cost(*uneven) > loaded.ideal(*uneven)


def test_newer_machines_are_faster() -> None:
    B, C = np.full(4, 64), np.full(4, 4_000_000)
    for stack in (
        "vllm-glm-5",
        "vllm-deepseek-v3",
        "trtllm-deepseek-v3",
        "vllm-deepseek-v4-flash",
        "mixed-glm-5.3",
    ):
        assert cost.load(f"b200-{stack}").cost(B, C) < cost.load(f"h200-{stack}").cost(B, C)


def test_the_mixed_preset_is_what_the_hand_made_one_rounds() -> None:
    mixed, by_hand = cost.load("h200-mixed-glm-5.3"), cost.load("h200")
    for B, C in ((8, 500_000), (32, 2_000_000), (128, 8_000_000)):
        assert float(mixed.cost([B], [C])) == pytest.approx(float(by_hand.cost([B], [C])), rel=0.08)


def test_the_page_shows_the_presets_as_they_are(script: ModuleType) -> None:
    markers = importlib.import_module("markers")
    page = script.PAGE.read_text("utf-8")
    assert list(script.shipped()) == [n for n in script.shipped() if n in MEASURED]
    assert set(script.shipped()) == set(MEASURED)
    assert markers.replace(page, "presets", script.SCRIPT, script.presets_part()) == page
    stale = page.replace("| `h200-vllm-glm-5` | 78 full |", "| `h200-vllm-glm-5` | 77 full |")
    assert stale != page
    assert markers.replace(stale, "presets", script.SCRIPT, script.presets_part()) == page


def test_the_page_has_every_group() -> None:
    page = (ROOT / "docs" / "reference" / "measured-costs.md").read_text("utf-8")
    tables = "".join(re.findall(r"<!-- table .*?-->(.*?)<!-- /table", page, re.DOTALL))
    rows = [line.split(" | ") for line in tables.splitlines() if re.match(r"\| G?[HB]\d+ ", line)]
    assert sum(len(r[3].split(" / ")) for r in rows) == 348
    errors = [float(e) for r in rows for e in r[10].split(" / ")]
    assert np.median(errors) <= 5
    glm = [r for r in rows if r[0] == "| H200 vLLM 0.24.0, GLM-5"]
    assert len(glm) == 2
    assert all(float(e) <= 4 for r in glm for e in r[10].split(" / "))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["h200-vllm-glm-5", "b200-trtllm-glm-5", "h200-mixed-glm-5.3"])
def test_a_fresh_fit_gives_the_shipped_preset(name: str, script: ModuleType, shared_dir: Path) -> None:
    (preset,) = (p for p in script.presets.tried() if p.name == name)
    found = preset.fits(script.groups(shared_dir / TABLE))
    assert script.presets.verdict(found, preset) == ("", "")
    fresh, shipped = cost.from_toml(script.presets.to_toml(preset, found)), cost.load(name)
    assert fresh.source == shipped.source
    for a, b in zip(flat(fresh), flat(shipped), strict=True):
        assert a == pytest.approx(b, rel=2e-3, abs=2e-3)


def flat(priced: StepCost) -> list[float]:
    numbers = [priced.constant]
    for t in priced.terms:
        numbers += [t.weight, t.per_request, t.per_100k_context, t.batch_floor, *t.batch_table]
        numbers += [x for s in t.saturations for x in (s.tokens, s.per_100k)]
    return numbers


@pytest.mark.shared
@pytest.mark.parametrize("name", MEASURED)
def test_a_preset_is_close_to_the_sum_of_the_measured_layers(name: str, shared_dir: Path) -> None:
    """Without any of the fitting code: layers times latencies, where all classes were measured at the same point."""
    import polars as pl

    loaded = cost.load(name)
    table = pl.scan_csv(shared_dir / TABLE).collect()
    total: dict[tuple[int, int], float] | None = None
    for c in about(name)["classes"]:
        labels = ("system", "framework", "op_name", "model", "num_heads", "kv_cache_dtype", "gemm_type")
        own = table.filter(*(pl.col(k) == c[k] for k in labels))
        own = own.filter(
            pl.col("batch_size").is_between(c["batch_low"], c["batch_high"]),
            pl.col("context_len") >= c["context_a_request_low"],
        )
        (layers,) = (t.weight for t in loaded.terms if t.name == c["name"])
        points = {
            (b, n): layers * ms * 1000
            for b, n, ms in own.select("batch_size", "context_len", "latency_ms").iter_rows()
        }
        total = points if total is None else {k: total[k] + v for k, v in points.items() if k in total}
    assert total is not None
    assert len(total) >= 20
    batch, length = np.array(list(total)).T
    K = np.minimum(length[:, None], np.array(loaded.saturation_tokens, dtype=int)) * batch[:, None]
    predicted = loaded.cost(batch[:, None], (batch * length)[:, None], K[:, None, :])
    errors = np.abs(predicted / np.array(list(total.values())) - 1)
    assert errors.mean() <= about(name)["heldout_mape"]
