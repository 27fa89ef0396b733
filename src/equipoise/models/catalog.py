"""Models by name: the presets that come with the package, as data files of config facts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from equipoise._files import preset_texts
from equipoise.errors import ModelError, nearest
from equipoise.models.huggingface import from_config
from equipoise.models.recognise import VARIANT
from equipoise.models.shape import ModelShape

__all__ = ["load", "names"]

OTHER_NAMES = {
    "glm-5.3-flash": "it is another architecture (glm5_next, pooled keys), not a smaller GLM-5.3",
}
"""Names close to a preset that must not be taken for it."""


@cache
def _presets() -> Mapping[str, Mapping[str, Any]]:
    return {name: tomllib.loads(text) for name, text in preset_texts("equipoise.models").items()}


@cache
def _by_spelling() -> Mapping[str, str]:
    spellings = {}
    for name, preset in _presets().items():
        for other in (name, preset["name"], preset["repository"], *preset.get("aliases", ())):
            spellings[_key(_plain(other))] = name
    return spellings


def _plain(name: str) -> str:
    """Lower case, without the owner, one separator: ``zai-org/GLM_5.3`` and ``glm 5.3`` are ``glm-5.3``."""
    short = name.strip().lower().rstrip("/").rpartition("/")[2].rpartition("--")[2]
    return re.sub(r"[-_ ]+", "-", short)


def _key(plain: str) -> str:
    return plain.replace("-", "")


def names() -> list[str]:
    """Names of the presets, sorted."""
    return list(_presets())


def load(name: str) -> ModelShape:
    """Shape of a model that comes with the package.

    Spelling is forgiving: ``glm-5.3``, ``GLM-5.3``, ``zai-org/GLM-5.3`` and ``GLM-5.3-FP8`` are one model,
    for precision does not change what is counted.

    Raises
    ------
    ModelError
        No such preset; the nearest names are in the message.

    Examples
    --------
    >>> [(c.name, c.count) for c in load("zai-org/GLM-5.3").classes]
    [('shared', 57), ('full', 21)]
    """
    spellings = _by_spelling()
    plain = _plain(name)
    while _key(plain) not in spellings:
        if plain in OTHER_NAMES:
            fix = "give its config.json with --config, or describe its layers by hand"
            raise ModelError(f"no preset {name!r}: {OTHER_NAMES[plain]}", where="model", fix=fix)
        shorter = VARIANT.sub("", plain)
        if shorter == plain:
            hint = "for any other model give its config.json: 'equipoise cost derive --config PATH'"
            raise ModelError(
                f"no preset {name!r}", where="model", fix=f"{nearest(_plain(name), names())}; {hint}"
            )
        plain = shorter
    preset = _presets()[spellings[_key(plain)]]
    return replace(from_config(preset["config"], name=preset["name"]), source=preset["source"])
