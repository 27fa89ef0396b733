"""The invariants of ``scripts/fuzz``, on what engines answered, cut and damaged, and on what fuzzing has found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "engines" / "fixtures"
pytest.importorskip("envoy", reason="needs equipoise[envoy]")
sys.path.insert(0, str(ROOT / "scripts"))
from fuzz_targets import TARGETS, seeds  # noqa: E402

SEEDS = seeds(FIXTURES)
FOUND = {
    "facts": [b'{"input_ids":[1],"sampling_params":{"ma\xc5":5}}', b'{"model":"\xff","session_id":"\xfe"}'],
}
"""Bytes that once broke a reader."""


@pytest.mark.parametrize("name", TARGETS)
def test_recorded_and_found(name: str) -> None:
    for data in (b"", *SEEDS[name], *FOUND.get(name, ())):
        TARGETS[name](data)


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("name", TARGETS)
def test_damaged(name: str, data: st.DataObject) -> None:
    page = bytearray(data.draw(st.sampled_from(SEEDS[name])))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(page)))
        what = data.draw(st.sampled_from(("byte", "cut", "insert", "twice")))
        if what == "byte" and at < len(page):
            page[at] = data.draw(st.integers(0, 255))
        elif what == "cut":
            del page[at : at + data.draw(st.integers(1, 40))]
        elif what == "insert":
            page[at:at] = data.draw(st.binary(max_size=9))
        else:
            page[at:at] = page[at : at + data.draw(st.integers(1, 200))]
    TARGETS[name](bytes(page))
