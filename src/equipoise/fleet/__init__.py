"""The fleet: a whole deployment in the simulator.

Where `equipoise.replay` prices what a policy decides, `simulate` also lives through what a deployed pool does to it:
prompts to compute, caches to move, engine queues, memory that fills up, speculation, clients that leave, ranks that
die, reports that are late, routers that share.
"""

from __future__ import annotations

from equipoise.fleet.aiperf import aiperf_blocks
from equipoise.fleet.config import (
    Change,
    Clients,
    Deployment,
    Hardware,
    KvMemory,
    Losses,
    Prefill,
    Slo,
    Speculation,
    StepExtras,
    Transfer,
)
from equipoise.fleet.engine import simulate
from equipoise.fleet.metrics import Goodput, RequestMetrics
from equipoise.fleet.result import FleetResult
from equipoise.fleet.window import window_plan

__all__ = [
    "Change",
    "Clients",
    "Deployment",
    "FleetResult",
    "Goodput",
    "Hardware",
    "KvMemory",
    "Losses",
    "Prefill",
    "RequestMetrics",
    "Slo",
    "Speculation",
    "StepExtras",
    "Transfer",
    "aiperf_blocks",
    "simulate",
    "window_plan",
]
