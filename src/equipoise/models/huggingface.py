"""`from_config`: a Hugging Face ``config.json`` becomes a `ModelShape`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.errors import ModelError
from equipoise.models.families import Family
from equipoise.models.reader import Reader
from equipoise.models.recognise import recognise, refuse_foreign
from equipoise.models.shape import ModelShape

__all__ = ["from_config"]

NESTED = ("text_config", "language_config", "llm_config")
"""Where multimodal configs keep their language model."""

MAX_CONFIG_BYTES = 16_000_000
"""A config.json holds kilobytes; anything larger is another file."""


def from_config(source: str | Path | Mapping[str, Any], *, name: str | None = None) -> ModelShape:
    """Read a model's attention layers from its Hugging Face config.

    Parameters
    ----------
    source : path or mapping
        A ``config.json``, the folder that holds one, or its content.
    name : str, optional
        Name of the model; by default taken from the path.

    Returns
    -------
    ModelShape

    Raises
    ------
    ModelError
        Not a config, an architecture that is not known, or a key that is missing or senseless.

    Examples
    --------
    >>> shape = from_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
    ...                      "num_attention_heads": 4, "num_key_value_heads": 2})
    >>> [(c.name, c.count, c.per_request()) for c in shape.classes]
    [('full', 2, 12288)]
    """
    if isinstance(source, Mapping):
        values, where, label = source, "config", name
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        values, where, label = _load_json(path), str(path), name or _name_from(path)
    return _shape(values, where, label)


def _load_json(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelError("is too large for a config", where=str(path), fix="give the model's config.json")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(
            f"cannot be read ({reason})", where=str(path), fix="give the model's config.json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"is not JSON ({error})", where=str(path), fix="give the config.json that comes with the weights"
        ) from None
    if not isinstance(values, dict):
        raise ModelError(
            f"holds a {type(values).__name__}",
            where=str(path),
            fix="a config.json is one object of keys and values",
        )
    return values


def _name_from(path: Path) -> str:
    stem = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return stem.removesuffix("_config").rpartition("--")[2]


def _shape(values: Mapping[str, Any], where: str, name: str | None) -> ModelShape:
    outer = Reader(values, where)
    inner = outer
    for key in NESTED:
        nested = outer.table(key)
        if nested is not None and "num_hidden_layers" in nested.values:
            inner = nested
    family, architecture, guess = recognise(outer, inner)
    classes, kv_layout, notes = family.build(inner)
    if guess:
        refuse_foreign(family, inner, architecture)
        notes = (guess, *notes)
    experts = inner.integer("n_routed_experts", "num_experts", "num_local_experts", low=0, default=0)
    per_token = shared = 0
    if experts > 1:
        per_token = inner.integer(
            "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", high=experts
        )
        shared = _shared_experts(inner, family)
    return ModelShape(
        name=name or architecture,
        architecture=architecture,
        hidden=inner.integer("hidden_size"),
        classes=classes,
        max_context_tokens=inner.optional_integer("max_position_embeddings"),
        experts=experts if experts > 1 else 0,
        experts_per_token=per_token,
        shared_experts=shared,
        kv_layout=kv_layout,
        source=where,
        notes=notes,
    )


def _shared_experts(config: Reader, family: Family) -> int:
    told = config.optional_integer("n_shared_experts", "num_shared_experts", low=0)
    if told is not None:
        return told
    width = config.optional_integer("shared_expert_intermediate_size", "shared_intermediate_size", low=0)
    return int(width > 0) if width is not None else family.shared_experts
