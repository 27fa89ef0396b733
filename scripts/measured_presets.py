"""Presets of measured attention steps: which are tried, which are good enough, and their TOML."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise import cost, models
from equipoise.calibrate import FitResult, StepRecords, fit
from equipoise.cost import Saturation, StepCost, Term
from equipoise.cost.files import SCHEMA
from measured_fits import AFTER_TOP_K, Measured, summary

FOLDER = Path(cost.__file__).parent / "presets"
"""Of the package that is imported: a checkout, or what was installed."""
WRITTEN_BY = "# Written by scripts/measured_costs.py"

HELDOUT, BEYOND, ROWS = 0.06, 0.10, 40
"""A preset is shipped if every class's held-out error is at most the first, the error beyond the fitted context range
(mean over the classes, by their share of the constant) at most the second, and every class has that many rows."""

COMMIT = "095f58a51c4ca8e61b66ec108d86f223f8d559ce"
DATA = f"NVIDIA AIConfigurator, github.com/ai-dynamo/aiconfigurator, commit {COMMIT}"

SYSTEMS = {"h200": "h200_sxm", "b200": "b200_sxm", "gb200": "gb200", "gb300": "gb300"}
STACKS = {"vllm": "VLLM", "trtllm": "TRTLLM", "sglang": "SGLang"}


@dataclass(frozen=True)
class Source:
    """The group a layer class is taken from; keys are labels of the table, with all values that are meant.

    Parameters
    ----------
    labels : mapping of str to sequence of str
    options : mapping
        Options of the fit, and why they are not the default.
    instead : str
        What was taken where the class itself was not measured.
    context : bool
        Whether the context prices are taken along.
    """

    labels: Mapping[str, Sequence[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    instead: str = ""
    context: bool = True


@dataclass(frozen=True)
class Preset:
    """A preset that is tried.

    Parameters
    ----------
    name, model : str
        Its name, and the model whose layers are counted.
    classes : mapping of str to Source
        For every layer class of the model, where its price comes from.
    """

    name: str
    model: str
    classes: Mapping[str, Source]

    def fits(self, records: Sequence[StepRecords]) -> dict[str, Measured] | None:
        """Fit every class; None if one was not measured."""
        found: dict[str, Measured] = {}
        for name, source in self.classes.items():
            own = [r for r in records if all(r.labels.get(k) in v for k, v in source.labels.items())]
            if not own:
                return None
            if len(own) > 1:
                raise SystemExit(f"{self.name}: {len(own)} groups are {dict(source.labels)}")
            found[name] = summary(_straight(own[0], source.options))
        return found


def _straight(records: StepRecords, options: Mapping[str, Any]) -> FitResult:
    """Fit without a table of batches: a line, or a line that is flat at first, whichever predicts better.

    Measured tables rise steeply to a batch of eight or so, then less, then more: they are not convex. The ideal is
    taken on the convex envelope, so that under such a price perfectly even loads would show an excess of up to a
    tenth, which no router can win back.
    """
    fits = [fit(records, batch_shape=shape, **options) for shape in ("linear", "roofline")]
    return min(fits, key=lambda found: found.heldout_mape)


def _source(system: str, stack: str, op: str, checkpoints: Sequence[str], heads: int, **more: Any) -> Source:
    labels = {
        "system": [SYSTEMS[system]],
        "framework": [STACKS[stack]],
        "op_name": [f"{op}_generation_module"],
        "model": checkpoints,
        "num_heads": [heads],
        "kv_cache_dtype": ["fp8", "fp8_e4m3"],
        "gemm_type": ["fp8_block"],
    }
    if stack == "trtllm" and op == "dsa":
        more = {"options": {"min_context": AFTER_TOP_K}, **more}
    return Source(labels, **more)


V3, V32, GLM = (
    ("deepseek-ai/DeepSeek-V3",),
    ("deepseek-ai/DeepSeek-V3.2",),
    ("zai-org/GLM-5", "zai-org/GLM-5-FP8"),
)
FLASH = ("sgl-project/DeepSeek-V4-Flash-FP8",)
PRO = ("deepseek-ai/DeepSeek-V4-Pro", "sgl-project/DeepSeek-V4-Pro-FP8")
NO_WINDOW = "no window-only layer was measured: HCA layers without their context price"
SHARED = "no shared layer was measured on vLLM: taken from SGLang"


def _classes(system: str, stack: str, model: str) -> dict[str, Source]:
    def of(op: str, checkpoints: Sequence[str], heads: int, **more: Any) -> Source:
        return _source(system, stack, op, checkpoints, heads, **more)

    if model == "deepseek-v3":
        return {"dense": of("mla", V3, 128)}
    if model == "kimi-k2":
        return {"dense": of("mla", V3, 64, instead="DeepSeek-V3 with 64 heads, which is Kimi K2's shape")}
    if model == "deepseek-v3.2":
        return {"full": of("dsa", V32, 128)}
    if model == "glm-5":
        return {"full": of("dsa", GLM, 64)}
    if model == "deepseek-v4-pro":
        return {"hca": of("dsv4_hca", PRO, 128), "csa": of("dsv4_csa", PRO, 128)}
    if model == "deepseek-v4-flash":
        return {
            "window": of("dsv4_hca", FLASH, 64, instead=NO_WINDOW, context=False),
            "csa": of("dsv4_csa", FLASH, 64),
            "hca": of("dsv4_hca", FLASH, 64),
        }
    raise SystemExit(f"no layer classes for {model}")


def _mixed(system: str) -> dict[str, Source]:
    """GLM-5.2 and 5.3: full layers as vLLM's GLM-5 has them, shared ones from the only framework that has them."""
    shared = _source(system, "sglang", "dsa", ("zai-org/GLM-5.2-FP8",), 64, instead=SHARED)
    labels = {**shared.labels, "op_name": ["dsa_generation_module_skip_indexer"]}
    return {
        # A shared layer reads the top-k rows whatever the context; the fit gives it 1 % of a full one's price or less.
        "shared": Source(labels, {"saturation_tokens": None}, SHARED, context=False),
        "full": _source(system, "vllm", "dsa", ("zai-org/GLM-5",), 64),
    }


def tried() -> list[Preset]:
    """All presets that are tried, whether they turn out good enough or not."""
    found = [
        Preset(f"{system}-{stack}-{model}", model, _classes(system, stack, model))
        for model in (
            "glm-5",
            "deepseek-v3",
            "deepseek-v3.2",
            "deepseek-v4-flash",
            "deepseek-v4-pro",
            "kimi-k2",
        )
        for stack in STACKS
        for system in SYSTEMS
        if not _left_out(system, stack, model)
    ]
    return [*found, *(Preset(f"{s}-mixed-glm-5.3", "glm-5.3", _mixed(s)) for s in ("h200", "b200"))]


def _left_out(system: str, stack: str, model: str) -> bool:
    """What would only make the list longer."""
    if stack == "trtllm" and system in ("gb200", "gb300"):
        return True  # within a few percent of B200
    return model == "kimi-k2" and (stack != "vllm" or system not in ("h200", "b200"))


def verdict(found: Mapping[str, Measured] | None, preset: Preset) -> tuple[str, str]:
    """Why a preset is not shipped, and the number that says so; empty if it is."""
    if found is None:
        return "no table with FP8 projections and an FP8 cache", ""
    if any(_stops_short(m) for m in found.values()):
        return (
            "full layers measured to 262,144 tokens a rank, their price of context follows the longest request",
            "",
        )
    heldout = max(m.heldout for m in found.values())
    if heldout > HELDOUT:
        return f"held-out error above {100 * HELDOUT:.0f} %", f"{100 * heldout:.1f}"
    rows = min(m.rows for m in found.values())
    if rows < ROWS:
        return f"fewer than {ROWS} rows of a class", str(rows)
    further = beyond(found, preset.model)
    if further > BEYOND:
        return f"error beyond the fitted contexts above {100 * BEYOND:.0f} %", f"{100 * further:.1f}"
    return "", ""


def _stops_short(measured: Measured) -> bool:
    """A full layer whose grid does not reach the loads of a decode rank."""
    full = not str(measured.group["op_name"]).endswith("skip_indexer")
    return full and measured.range["context_tokens_high"] < 1_000_000


def beyond(found: Mapping[str, Measured], model: str) -> float:
    """Error beyond the fitted contexts: mean over the classes, weighted by what they add to the constant."""
    weight = {c.name: c.count * found[c.name].cost.constant for c in models.load(model).classes}
    return sum(found[n].beyond * w for n, w in weight.items()) / sum(weight.values())


def step(preset: Preset, found: Mapping[str, Measured]) -> StepCost:
    """The whole model's attention step: every class a term, as many times as the model has layers of it."""
    terms, constant = [], 0.0
    for layer in models.load(preset.model).classes:
        cost, context = found[layer.name].cost, preset.classes[layer.name].context
        (term,) = cost.terms
        constant += layer.count * cost.constant
        terms.append(
            Term(
                layer.name,
                weight=float(layer.count),
                per_request=_digits(term.per_request),
                per_100k_context=_digits(term.per_100k_context) if context else 0.0,
                batch_floor=term.batch_floor,
                batch_table=tuple(round(p, 3) for p in term.batch_table),
                saturations=tuple(Saturation(s.tokens, _digits(s.per_100k)) for s in term.saturations)
                if context
                else (),
            )
        )
    return StepCost(preset.name, tuple(terms), round(constant, 1), "us", source=_words(preset, found))


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def _words(preset: Preset, found: Mapping[str, Measured]) -> str:
    shape = models.load(preset.model)
    of = "; ".join(
        f"{c.count} {c.name} layers, {found[c.name].stack}"
        + (f" ({preset.classes[c.name].instead})" if preset.classes[c.name].instead else "")
        for c in shape.classes
    )
    machine = str(next(iter(found.values())).group["system"]).partition("_")[0].upper()
    return f"attention layers of {shape.name} only, {machine}, FP8 projections and cache: {of}. {DATA} (Apache-2.0)"


def caveats(found: Mapping[str, Measured]) -> list[str]:
    """What not to use a preset for."""
    high = min(m.range["context_tokens_high"] for m in found.values())
    shortest = max(m.range["context_a_request_low"] for m in found.values())
    batch = min(m.range["batch_high"] for m in found.values())
    return [
        "attention layers only: no experts, no communication, no sampling, no scheduler",
        "every measured point has requests of one length",
        f"fitted from {shortest:,} tokens a request, up to {batch} requests and {high:,} tokens a rank",
    ]


def to_toml(preset: Preset, found: Mapping[str, Measured]) -> str:
    """The file of a preset; tables of batches are wrapped, which no TOML library does."""
    cost = step(preset, found)
    head = f"{WRITTEN_BY}: docs/reference/measured-costs.md tells what it is and what it is not."
    lines = [head, f'schema = "{SCHEMA}"']
    lines += [f"{k} = {_value(v)}" for k, v in (("name", cost.name), ("unit", "us"), ("barrier", "layer"))]
    lines += [f"source = {_value(cost.source)}", f"constant = {_value(cost.constant)}"]
    for term in cost.terms:
        lines += ["", "[[terms]]", f"name = {_value(term.name)}", f"weight = {_value(term.weight)}"]
        lines += [f"per_request = {_value(term.per_request)}"]
        lines += [f"per_100k_context = {_value(term.per_100k_context)}"] if term.per_100k_context else []
        lines += [f"batch_floor = {term.batch_floor}"] if term.batch_floor else []
        if term.batch_table:
            numbers = textwrap.fill(", ".join(map(repr, term.batch_table)), 104)
            lines += ["batch_table = [", textwrap.indent(numbers, "  ") + ",", "]"]
        if term.saturations:
            inside = ", ".join(
                f"{{tokens = {s.tokens}, per_100k = {s.per_100k!r}}}" for s in term.saturations
            )
            lines += [f"saturations = [{inside}]"]
    lines += [
        "",
        "[fit]",
        f"source = {_value(DATA)}",
        'licence = "Apache-2.0"',
        f"caveats = {_value(caveats(found))}",
    ]
    lines += [f"heldout_mape = {_share(max(m.heldout for m in found.values()))}"]
    lines += [f"beyond_mape = {_share(beyond(found, preset.model))}"]
    if len(found) == 1:
        (only,) = found.values()
        if all(math.isfinite(v) for v in only.rate):
            inside = ", ".join(
                f"{k} = {v:.1f}" for k, v in zip(("value", "low", "high"), only.rate, strict=True)
            )
            lines += [f"request_in_context_tokens = {{{inside}}}"]
    for layer in models.load(preset.model).classes:
        lines += ["", "[[fit.classes]]", f"name = {_value(layer.name)}", *_class(preset, layer.name, found)]
    return "\n".join(lines) + "\n"


def _class(preset: Preset, name: str, found: Mapping[str, Measured]) -> list[str]:
    measured, source = found[name], preset.classes[name]
    keys = ("system", "framework", "version", "op_name", "model", "num_heads", "kv_cache_dtype", "gemm_type")
    lines = [f"{k} = {_value(measured.group[k])}" for k in keys]
    lines += [f"instead = {_value(source.instead)}"] if source.instead else []
    lines += [f"rows = {measured.rows}"]
    lines += [f"{k} = {v}" for k, v in measured.range.items()]
    lines += [f"heldout_mape = {_share(measured.heldout)}", f"in_sample_mape = {_share(measured.in_sample)}"]
    lines += [f"beyond_mape = {_share(measured.beyond)}"]
    return lines


def _share(value: float) -> str:
    return f"{value:.4f}"


def _value(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[\n" + "".join(f"  {_value(v)},\n" for v in value) + "]"
    return repr(value)


def write(texts: Mapping[str, str], folder: Path = FOLDER) -> None:
    """Write the presets, and take away those that this script wrote before and no longer would."""
    for path in folder.glob("*.toml"):
        if path.stem not in texts and path.read_text("utf-8").startswith(WRITTEN_BY):
            path.unlink()
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text, "utf-8")
