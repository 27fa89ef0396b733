"""Which family a config belongs to: by its names, names made from known ones, or keys only one family has."""

from __future__ import annotations

import re
from collections.abc import Iterator

from equipoise.errors import ModelError, nearest
from equipoise.models.families import FAMILIES, FOREIGN_WORDS, HARMLESS, OTHER_MODELS, Family
from equipoise.models.reader import Reader

__all__ = ["BY_HAND", "VARIANT", "known_architectures", "recognise", "refuse_foreign"]

VARIANT = re.compile(
    r"[-_](fp8|fp4|nvfp4|mxfp4|mxfp8|awq|gptq|int4|int8|w4a16|w8a8|bf16|instruct|chat|base|thinking|\d{4})$",
    re.IGNORECASE,
)
"""Endings that change weights or precision, not the shape of the layers."""

BY_HAND = (
    "describe its layers by hand: 'equipoise cost layers-example > my-model.toml' writes a template, "
    "'equipoise cost derive --layers my-model.toml' reads it"
)


def known_architectures() -> list[str]:
    """Model types that can be read, sorted."""
    return sorted(t for family in FAMILIES for t in family.model_types)


def recognise(outer: Reader, inner: Reader) -> tuple[Family, str, str | None]:
    """Find the family of a config.

    Returns
    -------
    family : Family
    label : str
        The name it was found under.
    guess : str or None
        Why it was taken for this family where neither of its names says so; `refuse_foreign` must then agree.

    Raises
    ------
    ModelError
        No family fits.
    """
    readers = (outer,) if inner is outer else (inner, outer)
    types = [r.text("model_type") for r in readers if r.has("model_type")]
    classes = [a for r in readers for a in r.texts("architectures") or ()]
    for model_type in types:
        if model_type in OTHER_MODELS:
            what = f"model_type {model_type!r} is not supported ({OTHER_MODELS[model_type]})"
            raise ModelError(what, where=outer.where, fix=BY_HAND)
    for name in (*types, *classes):
        for family in FAMILIES:
            if name in family.model_types or name in family.architectures:
                return family, name, None
    for name in (*types, *classes):
        for family, known in _derived_from(name):
            return family, name, f"{name} is not known; read as a variant of {known}"
    label = (types or classes or ["unnamed"])[0]
    for family in FAMILIES:
        if family.marks and all(inner.has(key) for key in family.marks):
            told = f"architecture {label!r} is not known" if types or classes else "no architecture is named"
            return family, label, f"{told}; read as {family.name} because of {', '.join(family.marks)}"
    raise _unknown(outer.where, types, classes)


def _derived_from(name: str) -> Iterator[tuple[Family, str]]:
    """Families whose name, with something in front or a precision behind, makes `name`; longest first."""
    plain = name
    while VARIANT.search(plain):
        plain = VARIANT.sub("", plain)
    known = [(f, k) for f in FAMILIES for k in (*f.model_types, *f.architectures)]
    for family, candidate in sorted(known, key=lambda pair: -len(pair[1])):
        prefixed = plain.endswith(candidate if candidate in family.architectures else f"_{candidate}")
        if plain == candidate or prefixed:
            yield family, candidate


def refuse_foreign(family: Family, config: Reader, label: str) -> None:
    """Refuse a guess if a key announces a way of attending that the family has not read.

    Raises
    ------
    ModelError
    """
    for key, value in config.values.items():
        foreign = any(word in key.lower() for word in FOREIGN_WORDS) and not key.endswith(HARMLESS)
        if foreign and key not in config.used and value not in (None, False, 0, [], {}):
            what = (
                f"architecture {label!r} is not known, nor plain {family.name}: nothing there reads {key!r}"
            )
            raise ModelError(what, where=config.where, fix=BY_HAND)


def _unknown(where: str, types: list[str], classes: list[str]) -> ModelError:
    known = known_architectures()
    if not types and not classes:
        what = "names no architecture (neither model_type nor architectures) and has no tell-tale keys"
        return ModelError(what, where=where, fix=f"{BY_HAND}. Known: {', '.join(known)}")
    label = types[0] if types else classes[0]
    also = f" ({classes[0]})" if types and classes else ""
    near = nearest(label, known)
    what = f"architecture {label!r}{also} is not known"
    return ModelError(what, where=where, fix=f"{BY_HAND}. {near[:1].upper()}{near[1:]}")
