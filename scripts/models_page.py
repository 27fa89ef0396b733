"""Write the tables of docs/reference/models.md from the presets, so that the page cannot drift from the code.

Usage: ``python scripts/models_page.py`` rewrites the page, ``--check`` only says whether it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from equipoise import models
from equipoise.cost import StepCost, derive

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "models.md"


def coefficients() -> str:
    """Weights and context prices of V1, and the exchange rates of both forms."""
    rows = [
        "| model | layer classes | weight (V1) | k (V1) | C | request, V1 | request, V2 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in models.names():
        shape = models.load(name)
        v1, v2 = derive(shape, "v1"), derive(shape, "v2")
        total = sum(t.weight * t.per_100k_context for t in v1.terms)
        cells = [
            f"`{name}`",
            ", ".join(f"{c.count} {c.name}" for c in shape.classes),
            ", ".join(f"{t.weight:.5g}" for t in v1.terms),
            ", ".join(f"{t.per_100k_context:.4g}" for t in v1.terms),
            f"{total:.3g}",
            _rate(v1),
            _rate(v2),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def sizes() -> str:
    """KV bytes per token in every layout, and the batch at which an expert meets 64 tokens."""
    rows = [
        "| model | BF16 | FP8 | FP4 | batch for M = 64 | longest context | source |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in models.names():
        shape = models.load(name)
        cells = [f"`{name}`"]
        for layout in ("bf16", "fp8", "fp4"):
            known = layout in shape.kv_layouts
            text = f"{shape.kv_bytes_per_token(layout):,.0f}" if known else "-"
            cells.append(f"**{text}**" if layout == shape.kv_layout else text)
        batch = shape.global_batch_for_m(64)
        cells += [f"{batch:,}" if batch else "-", f"{shape.max_context_tokens:,}", shape.source]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def architectures() -> str:
    """Name the model types that a config may have."""
    return ", ".join(f"`{name}`" for name in models.known_architectures())


def render(page: str) -> str:
    """Replace what stands between the markers of each table; a page without them is refused."""
    for title, table in (("coefficients", coefficients), ("sizes", sizes), ("architectures", architectures)):
        begin, end = f"<!-- {title}: written by scripts/models_page.py -->", f"<!-- /{title} -->"
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{PAGE.name} lacks the markers {begin} and {end}")
        page = f"{head}{begin}\n\n{table()}\n\n{end}{tail}"
    return page


def _rate(cost: StepCost) -> str:
    rate = cost.request_in_context_tokens
    return f"{rate:,.0f}"


def main() -> int:
    """Rewrite the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    fresh = render(page)
    if "--check" in sys.argv[1:]:
        if fresh != page:
            print(f"{PAGE.name} is out of date: run python scripts/models_page.py", file=sys.stderr)
        return int(fresh != page)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
