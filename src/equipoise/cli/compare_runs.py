"""`equipoise compare-runs`: finished runs side by side."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from equipoise.cli.options import Json, Many, split

__all__ = ["app"]

app = App(name="compare-runs")


@app.default
def compare_runs(
    runs: Annotated[tuple[str, ...], Parameter(required=True)],
    /,
    *,
    margin_percent: float | None = None,
    unpaired: Annotated[bool, Parameter(negative="")] = False,
    measure: Many = (),
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    as_json: Json = False,
) -> None:
    """Say what differs between finished runs, by how much, and whether the difference is shown.

    Every other run is compared with the first. Requests are paired row by row; intervals come from blocks of
    counted time drawn again, and all of them hold at once with 95 % confidence.

    Parameters
    ----------
    runs
        Two or more result folders, summary.json files of several seeds, or requests.parquet files. FOLDER#POLICY
        picks one policy of a comparison.
    margin_percent
        Call numbers equal that are shown to differ by no more than this.
    unpaired
        The runs served different requests: compare them without pairing.
    measure
        Only these: ttft_ms, tpot_ms, end_to_end_ms, queue_wait_ms, tokens_per_s, goodput_per_s, excess, preemptions.
        Fewer measures have narrower intervals. Commas or repeated.
    ttft_ms
        For goodput: a good request has its first token after so many milliseconds at most.
    tpot_ms
        For goodput: and then a token every so many milliseconds at most.
    """
    from equipoise.study.pairs import compare_runs as compare
    from equipoise.study.pairs import summarize
    from equipoise.study.pairs.gather import Slo

    found = compare(
        runs,
        margin_percent=margin_percent,
        paired=not unpaired,
        quantities=split(measure, "--measure"),
        slo=Slo(ttft_ms, tpot_ms),
    )
    if as_json:
        import json

        print(json.dumps(summarize(found), indent=2, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    from equipoise.report.run_tables import print_pairs

    print_pairs(found, Console(highlight=False))
