"""How engines are read: periods, and when one is called lost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Polling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Polling:
    """How engines are read.

    Parameters
    ----------
    period_s : float
        From one look at an instance to the next.
    timeout_s : float
        For one look.
    lost_after : int
        Looks in a row that nothing answered, until the instance is called lost.
    quiet_s : float
        ... unless a stream has brought something from it within so many seconds.
    health_path : str
        Asked beside the loads: 500 and above, `lost_after` times in a row, means lost. Empty: not asked.
    health_period_s : float
        From one such question to the next.
    numbering_model : str
        Model of the small request that finds how a vLLM node numbers its ranks.
    """

    period_s: float = 0.25
    timeout_s: float = 5.0
    lost_after: int = 3
    quiet_s: float = 5.0
    health_path: str = "/health"
    health_period_s: float = 1.0
    numbering_model: str = ""
