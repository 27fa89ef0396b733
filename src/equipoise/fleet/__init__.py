"""The fleet: a whole deployment in the simulator. Where `equipoise.replay` prices what a policy decides, `simulate`
also lives through what a deployed pool does to it: prompts to compute, caches to move, engine queues, memory that fills
up, speculation, clients that leave, ranks that die, reports that are late, routers that share.
"""

from __future__ import annotations

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
from equipoise.fleet.result import FleetResult

__all__ = [
    "Change",
    "Clients",
    "Deployment",
    "FleetResult",
    "Hardware",
    "KvMemory",
    "Losses",
    "Prefill",
    "Slo",
    "Speculation",
    "StepExtras",
    "Transfer",
    "simulate",
]
