"""What serving engines publish and how they are steered: readers, pins, counting, discovery; sans I/O but `client`.

::

    from equipoise.engines import EngineInstance, get

    adapter = get("vllm")
    observation = adapter.read({"metrics": page})          # bytes in, loads of the ranks out
    pin = adapter.pin(EngineInstance("a", "vllm", ("http://a:8000",), ranks=8), 3, "/v1/completions")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.engines.adapter import Adapter, Page, get, names
    from equipoise.engines.body import set_fields
    from equipoise.engines.client import Client
    from equipoise.engines.counter import TokenCounter
    from equipoise.engines.discovery import Change, Members
    from equipoise.engines.facts import RequestFacts, request_facts
    from equipoise.engines.headers import is_pin, stripped
    from equipoise.engines.numbering import Probe
    from equipoise.engines.reports import rank_reports
    from equipoise.engines.types import EngineInstance, Observation, Pin, RankLoad
    from equipoise.engines.watchers import DnsName, StaticList, WatchedFile, watch
    from equipoise.engines.workers import WorkerSpec, parse_workers

__all__ = [
    "Adapter",
    "Change",
    "Client",
    "DnsName",
    "EngineInstance",
    "Members",
    "Observation",
    "Page",
    "Pin",
    "Probe",
    "RankLoad",
    "RequestFacts",
    "StaticList",
    "TokenCounter",
    "WatchedFile",
    "WorkerSpec",
    "get",
    "is_pin",
    "names",
    "parse_workers",
    "rank_reports",
    "request_facts",
    "set_fields",
    "stripped",
    "watch",
]

__getattr__ = lazy(
    __name__,
    {
        "adapter": ("Adapter", "Page", "get", "names"),
        "body": ("set_fields",),
        "client": ("Client",),
        "counter": ("TokenCounter",),
        "discovery": ("Change", "Members"),
        "facts": ("RequestFacts", "request_facts"),
        "headers": ("is_pin", "stripped"),
        "numbering": ("Probe",),
        "reports": ("rank_reports",),
        "types": ("EngineInstance", "Observation", "Pin", "RankLoad"),
        "watchers": ("DnsName", "StaticList", "WatchedFile", "watch"),
        "workers": ("WorkerSpec", "parse_workers"),
    },
)
