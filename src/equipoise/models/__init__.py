"""Model shapes: what the attention layers of a model compute for one decode token.

`load` takes a name, `from_config` a Hugging Face ``config.json``, `from_layers` a description by hand.
"""

from equipoise.models.by_hand import from_layers
from equipoise.models.catalog import load, names
from equipoise.models.huggingface import from_config
from equipoise.models.recognise import known_architectures
from equipoise.models.shape import CacheRow, LayerClass, ModelShape, Work

__all__ = [
    "CacheRow",
    "LayerClass",
    "ModelShape",
    "Work",
    "from_config",
    "from_layers",
    "known_architectures",
    "load",
    "names",
]
