"""A policy that does not compile: its author is told what and where, in one short sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.policies import get

HEAD = "import json\n\ndef pick(ranks, requests, i, prices, params, memory):\n"

CASES = [
    ("    return ranks.btch[0]\n", "Unknown attribute 'btch' of type Ranks (line 4)"),
    ("    return int(json.loads('0'))\n", "Unknown attribute 'loads' of type Module"),
    ("    return undefined_thing\n", "NameError: name 'undefined_thing' is not defined"),
    ("    return min(range(3), key=lambda r: ranks.batch[r])\n", "Cannot capture the non-constant value"),
    ("    return 'x'\n", "Cannot unify Literal[str](x) and Literal[int](-1)"),
]


@pytest.mark.parametrize(("body", "expected"), CASES, ids=[b.strip() for b, _ in CASES])
def test_the_reason_is_short_and_names_the_line(tmp_path: Path, body: str, expected: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEAD + body)
    note = get(f"{file}:pick").spec.summary
    _, _, reason = note.partition("slower: ")
    assert reason.startswith(expected)
    assert len(reason) <= 180
    assert "\n" not in reason
    assert "nopython" not in reason
