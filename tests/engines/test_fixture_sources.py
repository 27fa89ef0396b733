"""Pages written after an engine's source, held against that source: a wheel as for the plug-ins' tests."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import plugin_engines as played
import pytest
from recordings import recorded

SECTIONS = {"memory", "speculative", "lora", "disaggregation", "queues"}


def families(page: bytes) -> dict[str, str]:
    """Name and help text of every family of a page."""
    return dict(re.findall(r"^# HELP (\S+) (.*)$", page.decode(), re.MULTILINE))


def joined(text: str) -> str:
    """A source with the pieces of its string literals joined."""
    return re.sub(r'"\s*\n\s*"', "", text)


@pytest.mark.parametrize("wheel", played.wheels("EQUIPOISE_TEST_SGLANG", "sglang==0.5.23"))
def test_sglang_metrics_are_those_of_its_source(wheel: Any) -> None:
    text = joined(played.source(wheel, "sglang/srt/observability/metrics_collector.py"))
    for name in families(recorded("sglang-metrics.txt")):
        assert f'"{name}"' in text, name
    for label in set(re.findall(rb'(\w+)="', recorded("sglang-metrics.txt"))):
        assert f'"{label.decode()}"' in text, label


@pytest.mark.parametrize("wheel", played.wheels("EQUIPOISE_TEST_SGLANG", "sglang==0.5.23"))
def test_sglang_loads_have_the_fields_of_its_snapshot(wheel: Any) -> None:
    tree = ast.parse(played.source(wheel, "sglang/srt/managers/load_snapshot.py"))
    (snapshot,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "LoadSnapshot"]
    fields = [
        n.target.id for n in snapshot.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    ]
    page = json.loads(recorded("sglang-loads.json"))
    for load in page["loads"]:
        assert list(load) == [name for name in fields if name not in SECTIONS]
    answer = played.source(wheel, "sglang/srt/entrypoints/v1_loads.py")
    assert re.findall(r'^        "(\w+)": ', answer, re.MULTILINE) == list(page)


@pytest.mark.parametrize("wheel", played.wheels("EQUIPOISE_TEST_VLLM", "vllm==0.33.0"))
@pytest.mark.parametrize("page", ["vllm-033-metrics.txt"])
def test_vllm_metrics_are_those_of_its_source(wheel: Any, page: str) -> None:
    text = joined(played.source(wheel, "vllm/v1/metrics/loggers.py"))
    for name in families(recorded(page)):
        plain = re.sub("_(total|created)$", "", name)
        assert f'"{plain}"' in text or f'"{name}"' in text, name
