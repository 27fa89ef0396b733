"""Envoy as the data path: it carries every byte, and asks this picker where a request is to go.

`ext_proc` is the picker's gRPC side, `picker` what it decides, `access_log` how requests ended, `lengths` what is
learnt of them, `config` writes Envoy's file. The gRPC side needs the extra ``envoy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.serve.envoy.config import envoy_config
    from equipoise.serve.envoy.ext_proc import PickerServer
    from equipoise.serve.envoy.held import Held, Refusal
    from equipoise.serve.envoy.lengths import AnswerLengths
    from equipoise.serve.envoy.options import EnvoyOptions
    from equipoise.serve.envoy.picker import Picker
    from equipoise.serve.envoy.service import PickerService, picker_config

__all__ = [
    "AnswerLengths",
    "EnvoyOptions",
    "Held",
    "Picker",
    "PickerServer",
    "PickerService",
    "Refusal",
    "envoy_config",
    "picker_config",
]

__getattr__ = lazy(
    __name__,
    {
        "config": ("envoy_config",),
        "ext_proc": ("PickerServer",),
        "held": ("Held", "Refusal"),
        "lengths": ("AnswerLengths",),
        "options": ("EnvoyOptions",),
        "picker": ("Picker",),
        "service": ("PickerService", "picker_config"),
    },
)
