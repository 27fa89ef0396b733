"""Groups of a measured table: picked by their labels, and named by what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from equipoise.calibrate.records import StepRecords
from equipoise.errors import CalibrationError, nearest

__all__ = ["select", "told_apart", "words"]

SAME_AS = {"op_name": "layer", "architecture": "model"}
"""Labels that say what another one says: not used in names where that one is there."""

ORDER = ("system", "framework", "model", "layer", "table", "kv_cache_dtype", "gemm_type", "num_heads")
"""Labels that tell groups apart are looked for in this order, then in the source's."""

SHORT = {
    "kv_cache_dtype": "kv",
    "gemm_type": "gemm",
    "mla_dtype": "mla",
    "attn_dtype": "attn",
    "num_heads": "heads",
    "tp_size": "tp",
    "kernel_source": "kernel",
    "compress_ratio": "compress",
}
SPEAK = ("system", "framework", "model", "layer", "table", "op_name", "architecture")
"""Labels whose values speak for themselves."""


def select(parts: Sequence[StepRecords], wanted: Mapping[str, Sequence[str]]) -> list[StepRecords]:
    """Groups whose labels match.

    Parameters
    ----------
    parts : sequence of StepRecords
        As `equipoise.calibrate.readers.read` returns them.
    wanted : mapping of str to sequence of str
        For each label the values taken, ``*`` and ``?`` standing for anything; the case does not matter. Of a model's
        name the part after the slash is enough.

    Raises
    ------
    CalibrationError
        No group has such a label, or none such a value; what there is is named.
    """
    kept = list(parts)
    for label, values in wanted.items():
        known = sorted({name for p in parts for name in _plain(p.labels)})
        if label not in known:
            fix = nearest(label, known) if known else "this source has no groups"
            raise CalibrationError(f"no group has a label {label!r}", where="--group", fix=fix)
        there = sorted({_plain(p.labels)[label] for p in kept if label in _plain(p.labels)})
        kept = [p for p in kept if any(_matches(_plain(p.labels).get(label), v) for v in values)]
        if not kept:
            found = f"{label}={' or '.join(values)}"
            raise CalibrationError(f"no group has {found}", where="--group", fix=f"there are {_few(there)}")
    return kept


def told_apart(groups: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What all groups have in common, and for each what tells it from the others.

    Returns
    -------
    common : dict
    own : list of dict
    """
    plain = [_plain(g) for g in groups]
    names = list(dict.fromkeys(n for g in plain for n in g))
    names = [n for n in names if not (n in SAME_AS and all(SAME_AS[n] in g for g in plain))]
    names.sort(key=lambda n: ORDER.index(n) if n in ORDER else len(ORDER))
    common = {n: plain[0][n] for n in names if n in plain[0] and len({g.get(n) for g in plain}) == 1}
    varying = [n for n in names if n not in common]
    # A label that follows from those before it tells nothing new.
    telling: list[str] = []
    for name in varying:
        with_it = {tuple(g.get(n) for n in (*telling, name)) for g in plain}
        if len(with_it) > len({tuple(g.get(n) for n in telling) for g in plain}):
            telling.append(name)
    return common, [{n: g[n] for n in telling if n in g} for g in plain]


def words(labels: Mapping[str, Any]) -> str:
    """Labels in one line: values that speak for themselves alone, the others with short names."""
    parts = []
    for name, value in _plain(labels).items():
        if SAME_AS.get(name) in labels:
            continue
        if name in SPEAK:
            parts.append(value.rpartition("/")[2].replace("_generation_module", ""))
        else:
            parts.append(f"{SHORT.get(name, name)}={value.replace('bfloat16', 'bf16')}")
    return " ".join(parts)


def _plain(labels: Mapping[str, Any]) -> dict[str, str]:
    return {n: str(v) for n, v in labels.items() if isinstance(v, str | int | float)}


def _matches(value: str | None, pattern: str) -> bool:
    if value is None:
        return False
    value, pattern = value.lower(), pattern.lower()
    return fnmatchcase(value, pattern) or fnmatchcase(value.rpartition("/")[2], pattern)


def _few(values: Sequence[str]) -> str:
    shown = ", ".join(values[:12])
    return shown if len(values) <= 12 else f"{shown} and {len(values) - 12} more"
