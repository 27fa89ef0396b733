"""A Grafana dashboard of the router's metrics, as the JSON that Grafana imports."""

from __future__ import annotations

import json
from typing import Any

from equipoise.serve.panels import ROWS, Panel

__all__ = ["dashboard", "dashboard_text"]

WIDE = 24
HEIGHT = 8


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "id": len(panels) + 1,
                "gridPos": {"x": 0, "y": top, "w": WIDE, "h": 1},
            }
        )
        top, left, height = top + 1, 0, 4 if row[0].kind == "stat" else HEIGHT
        for panel in row:
            if left + panel.width > WIDE:
                top, left = top + height, 0
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left += panel.width
        top += height
    return {
        "title": "Equipoise: the router",
        "uid": "equipoise-router",
        "description": "How evenly the decode ranks are loaded, what that costs, and what the router does about it.",
        "tags": ["equipoise", "LLM"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "worker",
                    "label": "Instance",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": {"query": "label_values(equipoise_worker_state, worker)", "refId": "worker"},
                    "definition": "label_values(equipoise_worker_state, worker)",
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "current": {"text": ["All"], "value": ["$__all"]},
                    "refresh": 2,
                    "sort": 1,
                },
            ]
        },
        "panels": panels,
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.least is not None:
        defaults["min"] = panel.least
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 0, "showPoints": "never", "spanNulls": False}
        options: dict[str, Any] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + k),
                "expr": query,
                "legendFormat": legend or "__auto",
                "datasource": _SOURCE,
                "range": True,
            }
            for k, (query, legend) in enumerate(panel.queries)
        ],
    }


def dashboard_text() -> str:
    """The same as text, ready for a file."""
    return json.dumps(dashboard(), indent=2) + "\n"
