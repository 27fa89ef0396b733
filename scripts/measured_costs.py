"""Fit every group of a measured decode table: docs/reference/measured-costs.md and the measured presets.

Usage: ``python scripts/measured_costs.py --calib FILE`` says which of them are out of date, ``--write`` writes them
(some minutes on two cores). ``--presets-only`` leaves out the tables of all groups.

The file is the decode table of NVIDIA AIConfigurator (Apache-2.0), as `equipoise.calibrate.readers` reads it. Only
coefficients and errors are written, none of the measurements.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

import measured_presets as presets
from equipoise import cost
from markers import DOCS, replace
from measured_fits import Measured, fit_all, groups

PAGE = DOCS / "reference" / "measured-costs.md"
SCRIPT = Path(__file__).name

BAR_MEDIAN, BAR_GLM = 0.05, 0.04

MACHINES = {"h200_sxm": "H200", "b200_sxm": "B200", "gb200": "GB200", "gb300": "GB300"}
GEMMS = {"bfloat16": "BF16", "fp8_block": "FP8", "nvfp4": "NVFP4"}
CACHES = {"bfloat16": "BF16", "fp8": "FP8", "fp8_e4m3": "FP8"}
LAYERS = {
    "mla_generation_module": "dense",
    "dsa_generation_module": "full",
    "dsa_generation_module_skip_indexer": "shared",
    "dsv4_csa_generation_module": "CSA",
    "dsv4_hca_generation_module": "HCA",
}
FAMILIES = {
    "deepseek-v3": "DeepSeek-V3",
    "deepseek-v3.2": "DeepSeek-V3.2",
    "glm-5": "GLM-5",
    "deepseek-v4-flash": "DeepSeek-V4-Flash",
    "deepseek-v4-pro": "DeepSeek-V4-Pro",
}
"""Parts of the page, with what the checkpoints of each begin with; the longest that fits is meant."""


def family(measured: Measured) -> str:
    """The part of the page a group stands in."""
    name = str(measured.group["model"]).rpartition("/")[2]
    return max((f for f, begin in FAMILIES.items() if name.startswith(begin)), key=len)


def percent(value: float, digits: int = 1) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.{digits}f}"


def number(value: float, digits: int = 3) -> str:
    """Three digits, and no power of ten."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{min(decimals, 3)}f}"


def _tokens(value: float) -> str:
    if np.isnan(value) or value <= 0:
        return "-"
    return f"{float(f'{value:.2g}'):,.0f}" if value < 1e6 else "over a million"


def _shape(measured: Measured) -> str:
    (term,) = measured.cost.terms
    words = "table" if term.batch_table else f"flat to {term.batch_floor}" if term.batch_floor else "line"
    return words + "".join(f", + {number(s.per_100k, 2)} to {s.tokens:,}" for s in term.saturations)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def quantiles(values: Sequence[float]) -> list[str]:
    return [percent(float(np.quantile(values, q))) for q in (0.25, 0.5, 0.75)] + [percent(max(values))]


def of_class(found: Sequence[Measured]) -> dict[tuple[str, ...], list[Measured]]:
    """Groups of one machine, framework, checkpoint and layer class, whatever their precision and heads."""
    classes: dict[tuple[str, ...], list[Measured]] = {}
    for m in found:
        key = tuple(str(m.group[k]) for k in ("system", "framework", "model", "op_name"))
        classes.setdefault(key, []).append(m)
    return classes


def summary_part(found: Sequence[Measured]) -> str:
    """The errors of all groups, and whether the bars are met."""
    errors = [m.heldout for m in found]
    beyond = [m.beyond for m in found if not np.isnan(m.beyond)]
    medians = [float(np.median([m.heldout for m in c])) for c in of_class(found).values()]
    want = ("h200_sxm", "VLLM", "zai-org/GLM-5")
    glm = [m.heldout for m in found if tuple(m.group[k] for k in ("system", "framework", "model")) == want]
    rows = [
        [f"held out, {len(errors)} groups", *quantiles(errors)],
        [f"held out, {len(medians)} layer classes (median of each)", *quantiles(medians)],
        ["on the fitted rows", *quantiles([m.in_sample for m in found])],
        [f"beyond the fitted contexts, {len(beyond)} groups", *quantiles(beyond)],
    ]
    bars = [
        ["median over layer classes", "5 %", float(np.median(medians)), BAR_MEDIAN],
        ["H200, vLLM, GLM-5 full layer, worst precision", "4 %", max(glm), BAR_GLM],
    ]
    verdicts = [
        [str(a), str(b), f"{percent(c)} %", "met" if c <= d else "**not met**"] for a, b, c, d in bars
    ]
    worse = sum(e > BAR_MEDIAN for e in errors)
    return (
        table(["error, %", "lower quartile", "median", "upper quartile", "worst"], rows)
        + f"\n\n{worse} of {len(errors)} groups are above 5 %.\n\n"
        + table(["bar on the held-out error", "at most", "found", ""], verdicts)
    )


TROUBLE = (
    ("SGLang, DeepSeek-V4, CSA layers", "SGLang", "dsv4_csa", ""),
    ("TensorRT-LLM, DeepSeek-V4, CSA layers", "TRTLLM", "dsv4_csa", ""),
    ("SGLang, GLM-5.2-NVFP4, full layers", "SGLang", "dsa_generation_module", "GLM-5.2"),
    ("SGLang, DeepSeek-V3.2 and GLM-5, full layers", "SGLang", "dsa_generation_module", ""),
    ("TensorRT-LLM, DeepSeek-V3.2 and GLM-5, full layers", "TRTLLM", "dsa_generation_module", ""),
)


def trouble_part(found: Sequence[Measured]) -> str:
    """The families of groups that are worst described, with the error of a price on the longest context."""
    rows, left = [], [m for m in found if not str(m.group["op_name"]).endswith("skip_indexer")]
    for title, framework, op, model in TROUBLE:
        here = [
            m
            for m in left
            if m.group["framework"] == framework
            and str(m.group["op_name"]).startswith(op)
            and model in str(m.group["model"])
        ]
        left = [m for m in left if m not in here]
        both = [f"{percent(float(np.median([m.longest[i] for m in here])))}" for i in (0, 1)]
        errors = [m.heldout for m in here]
        rows.append([title, str(len(here)), f"{percent(min(errors))} to {percent(max(errors))}", *both])
    rest = [m for m in found if not any(_is_trouble(m, t) for t in TROUBLE)]
    errors = [m.heldout for m in rest]
    both = [f"{percent(float(np.median([m.longest[i] for m in rest])))}" for i in (0, 1)]
    rows.append(["all others", str(len(rest)), f"{percent(min(errors))} to {percent(max(errors))}", *both])
    return table(["family", "groups", "held out, %", "line in C, %", "line in the longest context, %"], rows)


def _is_trouble(m: Measured, family: tuple[str, str, str, str]) -> bool:
    op = str(m.group["op_name"])
    return m.group["framework"] == family[1] and op.startswith(family[2]) and not op.endswith("skip_indexer")


HEAD = (
    "machine and stack",
    "layer",
    "cache",
    "projections",
    "constant, us",
    "a request, us",
    "100k context, us",
    "batch price",
    "a request in tokens",
    "rows",
    "held out, %",
    "beyond, %",
    "remarks",
)


def family_part(found: Sequence[Measured], name: str) -> str:
    """All groups of a family, a row for those that differ in the precision of the projections alone."""
    merged: dict[tuple[str, ...], list[Measured]] = {}
    several = len({m.group["model"] for m in found if family(m) == name}) > 1
    machines = list(MACHINES)
    for m in sorted(found, key=lambda m: (m.group["framework"], machines.index(m.group["system"]))):
        if family(m) != name:
            continue
        checkpoint = str(m.group["model"]).rpartition("/")[2]
        stack = f"{MACHINES[m.group['system']]} {m.stack}" + (f", {checkpoint}" if several else "")
        heads = f"{LAYERS[m.group['op_name']]}, {m.group['num_heads']} heads"
        merged.setdefault((stack, heads, CACHES[m.group["kv_cache_dtype"]]), []).append(m)
    rows = []
    for key, group in merged.items():
        group.sort(key=lambda m: list(GEMMS).index(m.group["gemm_type"]))
        assert len({m.group["gemm_type"] for m in group}) == len(group), key
        terms = [m.cost.terms[0] for m in group]
        columns = (
            [GEMMS[m.group["gemm_type"]] for m in group],
            [number(m.cost.constant) for m in group],
            [number(t.per_request, 2) for t in terms],
            [number(t.per_100k_context) for t in terms],
            [_shape(m) for m in group],
            [_tokens(m.rate[0]) for m in group],
            [str(m.rows) for m in group],
            [percent(m.heldout) for m in group],
            [percent(m.beyond) for m in group],
        )
        rows.append([*key, *(_joined(c) for c in columns), _remarks(group)])
    return table(HEAD, rows)


def _joined(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 and len(values) > 1 else " / ".join(values)


def _remarks(group: Sequence[Measured]) -> str:
    """Each remark once, with the numbers of all; of a row of several, those that not all share say whose they are."""
    joined: dict[str, list[tuple[str, str]]] = {}
    for m in group:
        for remark in m.remarks:
            joined.setdefault(remark.words, []).append((GEMMS[m.group["gemm_type"]], remark.value))
    shown = []
    for words, of in joined.items():
        whose = "" if len(of) == len(group) else ", ".join(name for name, _ in of) + ": "
        shown.append(whose + words.format(_joined([value for _, value in of])))
    return "; ".join(shown)


def shipped() -> dict[str, cost.StepCost]:
    """The measured presets of the package, in the order in which they are tried."""
    paths = [presets.FOLDER / f"{preset.name}.toml" for preset in presets.tried()]
    return {path.stem: cost.load(path) for path in paths if path.is_file()}


def presets_part() -> str:
    """The presets as shipped: this part needs no data."""
    rows = []
    for name, loaded in shipped().items():
        about = loaded.metadata["fit"]
        high = min(c["context_tokens_high"] for c in about["classes"])
        batch = min(c["batch_high"] for c in about["classes"])
        request = loaded.request_in_context_tokens
        context = sum(t.weight * t.per_100k_context for t in loaded.terms)
        rows.append(
            [
                f"`{name}`",
                ", ".join(f"{t.weight:g} {t.name}" for t in loaded.terms),
                f"{loaded.constant / 1000:.1f}",
                f"{request * context / 100_000:.0f}",
                f"{context:,.0f}",
                f"{float(f'{request:.3g}'):,.0f}",
                f"{batch}, {high / 1e6:.2g} M",
                percent(about["heldout_mape"]),
                percent(about["beyond_mape"]),
            ]
        )
    return table(
        [
            "preset",
            "layers",
            "constant, ms",
            "a request, us",
            "100k context, us",
            "a request in tokens",
            "fitted to B, C",
            "held out, %",
            "beyond, %",
        ],
        rows,
    )


def refused_part(refused: Mapping[str, tuple[str, str]]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, (reason, value) in refused.items():
        reasons.setdefault(reason, []).append(f"`{name}`" + (f" ({value})" if value else ""))
    return table(
        ["not shipped, because", "presets"], [[why, ", ".join(names)] for why, names in reasons.items()]
    )


def main() -> int:
    """Fit, then write the presets and the page or compare with them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calib", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--presets-only", action="store_true")
    options = parser.parse_args()
    records = groups(options.calib)

    texts: dict[str, str] = {}
    refused: dict[str, tuple[str, str]] = {}
    for preset in presets.tried():
        found = preset.fits(records)
        reason = presets.verdict(found, preset)
        if reason[0] or found is None:
            refused[preset.name] = reason
        else:
            texts[preset.name] = presets.to_toml(preset, found)
    stale = [n for n, t in texts.items() if _text(presets.FOLDER / f"{n}.toml") != t]
    if options.write:
        presets.write(texts)

    parts = {"presets": presets_part(), "refused": refused_part(refused)}
    if not options.presets_only:
        everything = fit_all(records)
        parts |= {"summary": summary_part(everything), "trouble": trouble_part(everything)}
        parts |= {f"table {name}": family_part(everything, name) for name in FAMILIES}
    page = fresh = PAGE.read_text("utf-8")
    for title, body in parts.items():
        fresh = replace(fresh, title, SCRIPT, body)
    if options.write:
        PAGE.write_text(fresh, "utf-8")
        return 0
    stale += [PAGE.name] if fresh != page else []
    for name in stale:
        print(f"{name}: out of date", file=sys.stderr)
    return int(bool(stale))


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


if __name__ == "__main__":
    raise SystemExit(main())
