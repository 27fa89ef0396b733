"""`equipoise serve grafana`: a dashboard of the router's metrics."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from equipoise.cli.printing import give

__all__ = ["app"]

app = App(name="grafana")


@app.default
def grafana(*, output: Path | None = None) -> None:
    """Write a Grafana dashboard of the router's metrics.

    JSON on standard output, for Grafana's import page or its provisioning folder. It asks for a Prometheus data source
    that scrapes the admin port (/metrics).

    Parameters
    ----------
    output
        Write there rather than to standard output.
    """
    from equipoise.serve.grafana import dashboard_text

    give(dashboard_text(), output)
