"""What `equipoise cost fit` does between reading and printing: fit each group, replay for z, write the files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.cli.progress import progress
from equipoise.errors import CalibrationError

if TYPE_CHECKING:
    from equipoise.calibrate.calibration import Calibration
    from equipoise.calibrate.records import StepRecords

__all__ = ["fit_all", "need_libraries", "note", "with_z", "write"]

MOST_PAGES = 8
"""Groups up to which each gets a page of its own: a page is five megabytes."""


def fit_all(
    parts: Sequence[StepRecords], options: dict[str, Any], block_tokens: int, partial: bool, silent: bool
) -> tuple[list[Calibration], list[tuple[Any, str]]]:
    """Fit every group; of several, those that cannot be fitted are named and the others go on."""
    from equipoise.calibrate import fit as fit_decode
    from equipoise.calibrate.calibration import complete
    from equipoise.calibrate.groups import words
    from equipoise.calibrate.partial import refuse_partial

    found: list[Calibration] = []
    failed: list[tuple[Any, str]] = []
    with progress("fit", "groups", quiet=silent or len(parts) < 4) as tick:
        for i, part in enumerate(parts):
            try:
                result = fit_decode(part, **options)
                if not partial:
                    refuse_partial(result)
            except CalibrationError as error:
                if len(parts) == 1:
                    raise
                failed.append((dict(part.labels), str(error)))
            else:
                found.append(
                    complete(
                        result,
                        block_tokens=block_tokens,
                        model=options["model"],
                        missing_ranks_are_idle=options["missing_ranks_are_idle"],
                        seed=options["seed"],
                    )
                )
            if tick is not None:
                tick(i + 1, len(parts))
    if not found:
        group, reason = failed[0]
        fix = "widen the range with --min-context and --max-batch, or pick other groups"
        raise CalibrationError(
            f"none of {len(failed)} groups can be fitted, the first because {reason}", fix=fix
        )
    for group, reason in failed:
        note(f"not fitted: {words(group)}: {reason}")
    return found, failed


def with_z(one: Calibration, trace: str, ranks: int, seed: int, jobs: int, silent: bool) -> Calibration:
    """Add the best z; a fit does not fail for want of an optional library."""
    import importlib.util
    from dataclasses import replace

    from equipoise.calibrate.knobs import best_z, usual_batch

    if one.result.exchange_rate_is != "known":
        return one  # a z for a price of context that nobody has seen would be a made-up number
    if importlib.util.find_spec("optuna") is None:
        note(
            "no replay for DualPath's z: it needs Optuna, pip install 'equipoise[tune]' (--no-tune is silent)"
        )
        return one
    with progress("tune z", "candidates", quiet=silent) as tick:
        z = best_z(
            one.cost,
            batch=usual_batch(one.result),
            trace=trace,
            ranks=ranks,
            seed=seed,
            jobs=jobs,
            progress=tick,
        )
    return replace(one, z=z)


def need_libraries() -> None:
    """Fail before the work, not after it, where pages cannot be written."""
    from equipoise.report.extra import need

    for module in ("jinja2", "plotly.offline", "matplotlib.figure"):
        need(module)


def write(found: Sequence[Calibration], failed: Sequence[Any], folder: Path, report: bool) -> None:
    """Everything or nothing; a page of an earlier fit does not stay beside other numbers."""
    import json

    from equipoise.calibrate.calibration import summarize
    from equipoise.study.folder import staged

    with staged(folder) as stage:
        text = json.dumps(summarize(found, failed), indent=2, allow_nan=False, ensure_ascii=False)
        (stage / "fit.json").write_text(text + "\n", "utf-8")
        names = ["fit"] if len(found) == 1 else _file_names(found)
        pages = report and len(found) <= MOST_PAGES
        for name, one in zip(names, found, strict=True):
            one.save(stage / f"{name}.toml")
            if pages:
                from equipoise.report.fit_html import write_fit_html
                from equipoise.report.fit_plot import write_fit_plot

                write_fit_html(one, stage / f"{name}.html")
                write_fit_plot(one, stage / f"{name}.png")
        if report and not pages:
            note(f"no pages: {len(found)} groups are more than {MOST_PAGES}; pick some with --group")
        written = sorted(p.name for p in stage.iterdir())
        for name in names:
            for stale in (f"{name}.html", f"{name}.png"):
                if stale not in written:
                    (folder / stale).unlink(missing_ok=True)
    shown = ", ".join(written[:6]) + (f" and {len(written) - 6} more" if len(written) > 6 else "")
    print(f"wrote {folder}/: {shown}", file=sys.stderr)


def _file_names(found: Sequence[Calibration]) -> list[str]:
    """A short file name for each group, made of what tells it from the others."""
    import re

    from equipoise.calibrate.groups import told_apart, words

    common, own = told_apart([f.result.group for f in found])
    shared = {n: v for n, v in common.items() if n in ("system", "framework", "model", "layer")}
    slugs = [re.sub(r"[^a-z0-9.]+", "-", words({**shared, **o}).lower()).strip("-.")[:120] for o in own]
    seen: dict[str, int] = {}
    names = []
    for slug in (s or "group" for s in slugs):
        seen[slug] = seen.get(slug, 0) + 1
        names.append(slug if seen[slug] == 1 else f"{slug}-{seen[slug]}")
    return names


def note(text: str) -> None:
    """Say something on standard error."""
    print(f"note: {' '.join(text.split())}", file=sys.stderr)
