"""Costs by name or file: the presets that come with the package are files like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from equipoise._files import preset_texts
from equipoise.cost.files import from_toml, read
from equipoise.cost.step_cost import StepCost
from equipoise.errors import CostError

__all__ = ["load", "names"]


@cache
def _presets() -> Mapping[str, str]:
    return preset_texts("equipoise.cost")


def names() -> list[str]:
    """Names of the presets, sorted."""
    return list(_presets())


def load(name_or_path: str | Path) -> StepCost:
    """Step cost of a preset (``v1``, ``h200-vllm-glm-5``), derived from a model, or of a TOML or JSON file.

    Parameters
    ----------
    name_or_path : str or Path
        A preset's name, ``MODEL:v1`` or ``MODEL:v2`` with a model preset's name, or a path; in this order.

    Raises
    ------
    CostError
        None of these, or a file that is not a step cost.
    ModelError
        No such model.

    Examples
    --------
    >>> load("v1").formula()
    '0.72482 * max(B) + 0.27518 * max(B + 1.30219 * C/100k)'
    """
    preset = str(name_or_path).strip().lower()
    if preset in _presets():
        return from_toml(_presets()[preset], f"preset {preset}")
    model, colon, kind = preset.rpartition(":")
    if colon and kind in ("v1", "v2"):
        from equipoise import models
        from equipoise.cost.derivation import derive

        return replace(derive(models.load(model), "v1" if kind == "v1" else "v2"), name=preset)
    path = Path(name_or_path)
    looks_like_file = path.suffix.lower() in (".toml", ".json") or path.name != str(name_or_path)
    if looks_like_file or _is_file(path):
        return read(path)
    raise CostError(
        f"no cost {str(name_or_path)!r}",
        where="cost",
        fix=f"{_close(preset)}'equipoise cost list' names the presets; or give MODEL:v1, MODEL:v2 or a cost "
        "file, such as 'equipoise cost derive --model NAME --kind v1 --output FILE.toml' writes",
    )


def _close(name: str) -> str:
    """Presets that a mistyped name may mean; there are too many to list them all in a message."""
    near = get_close_matches(name, names(), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long a name, a null byte
        return False
