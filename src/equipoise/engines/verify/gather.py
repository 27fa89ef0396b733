"""Gathering the ranks' messages: over a process group that an engine has anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Gather", "gather_over"]

Gather = Callable[[bytes], Sequence[bytes]]
"""Hands over bytes, the same number on each rank, and returns all ranks' in order."""


def gather_over(group: Any) -> Gather:
    """Gather over a process group on the host: vLLM's ``DPEngineCoreProc.dp_group``, SGLang's ``tp_group.cpu_group``.

    As a sum of rows of which each rank fills its own: vLLM's group is no part of torch's default one, and sums are
    what vLLM itself asks of it.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup
    """
    import torch
    import torch.distributed as dist

    def gather(message: bytes) -> list[bytes]:
        rows = torch.zeros((group.size(), len(message)), dtype=torch.uint8)
        rows[group.rank()] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        dist.all_reduce(rows, group=group)
        return [bytes(row.numpy()) for row in rows]

    return gather
