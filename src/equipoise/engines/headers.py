"""Headers that choose a rank, a worker or a target in any engine or gateway: what a client sets is taken off.

A client that chooses its rank can make a straggler, and a rank in the header beside another in the body hangs some
engines; so the router strips them all and sets its own from one number.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PIN_FIELDS", "PREFILL_HEADERS", "RANK_HEADERS", "is_pin", "stripped"]

RANK_HEADERS = frozenset(
    {
        # vLLM, SGLang (vllm/entrypoints/generate/base/serving.py, sglang/srt/entrypoints/openai/serving_base.py)
        "x-data-parallel-rank",
        # SGLang (sglang/srt/entrypoints/request_headers.py)
        "x-override-routed-dp-rank",
        "x-override-rid",
        "x-override-priority",
        "x-override-conversation-id",
        # Dynamo, with and without its prefix
        "x-dynamo-worker-instance-id",
        "x-dynamo-decode-instance-id",
        "x-dynamo-dp-rank",
        "x-worker-instance-id",
        "x-decode-instance-id",
        "x-dp-rank",
        # llm-d and the Gateway API's inference extension
        "x-data-parallel-host-port",
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-subset",
        # SMG
        "x-smg-target-worker",
    }
)
"""Choose the decode rank, worker or target; lower case."""

PREFILL_HEADERS = frozenset(
    {
        "x-override-disagg-prefill-dp-rank",
        "x-override-bootstrap-host",
        "x-override-bootstrap-port",
        "x-override-bootstrap-room",
        "x-dynamo-prefill-instance-id",
        "x-dynamo-prefill-dp-rank",
        "x-prefill-instance-id",
        "x-prefill-dp-rank",
        "x-prefiller-host-port",
    }
)
"""Say where the prefill ran. A router before clients takes them off; one behind a PD proxy passes them untouched."""

PIN_FIELDS = frozenset({"routed_dp_rank", "data_parallel_rank"})
"""Body fields that choose the decode rank (SGLang; the second is the old name)."""


def is_pin(name: str, *, behind_pd_proxy: bool = False) -> bool:
    """Whether a header may not pass from a client to an engine.

    Parameters
    ----------
    name : str
        In any case; an underscore counts as a hyphen, since WSGI-style servers fold the two.
    behind_pd_proxy : bool
        The peer is a proxy that already chose the prefill side: its headers about that pass.

    Examples
    --------
    >>> is_pin("X-Data-Parallel-Rank"), is_pin("X-Session-ID")
    (True, False)
    """
    folded = name.lower().replace("_", "-")
    if folded in PREFILL_HEADERS:
        return not behind_pd_proxy
    # A newer SGLang may override more fields than these.
    return folded in RANK_HEADERS or folded.startswith("x-override-")


def stripped(headers: Iterable[tuple[str, str]], *, behind_pd_proxy: bool = False) -> list[tuple[str, str]]:
    """The headers without those of `is_pin`, in their order."""
    return [(name, value) for name, value in headers if not is_pin(name, behind_pd_proxy=behind_pd_proxy)]
