"""What the decision API is asked and what it answers, as JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "Ask",
    "AskMany",
    "Chosen",
    "Counted",
    "Ended",
    "EndedMany",
    "Progress",
    "RankLoadReport",
    "Report",
    "schemas",
]

Tokens = Annotated[int, Meta(ge=0, le=1 << 40)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Ask(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One request that wants a rank: its length in tokens, or in bytes of text and the model's name."""

    context_tokens: Annotated[Tokens | None, Meta(description="Prompt length in tokens.")] = None
    prompt_bytes: Annotated[
        Tokens | None,
        Meta(description="Prompt length in bytes of UTF-8, where tokens are not known."),
    ] = None
    model: Annotated[str, Meta(max_length=256, description="For the estimate from bytes.")] = ""
    request_id: Annotated[
        Name | None, Meta(description="Unique among queued and running ones; made up if left out.")
    ] = None
    budget_tokens: Annotated[int, Meta(ge=-1, description="Declared output limit; -1: none.")] = -1
    session: Annotated[Name | None, Meta(description="Its conversation.")] = None
    request_class: Annotated[str, Meta(max_length=64, description="Class of the queue.")] = "default"
    path: Annotated[
        str, Meta(description="Route it will be sent to; how its rank is named may depend on it.")
    ] = "/v1/completions"


class AskMany(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Several, placed together in one round."""

    requests: Annotated[list[Ask], Meta(min_length=1, max_length=1024)]


class Chosen(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a request is to go, or why nowhere."""

    request_id: Annotated[str, Meta(description="As asked, or made up.")]
    lease: Annotated[
        str, Meta(description="For report and release; absent where the request was refused.")
    ] = ""
    instance: Annotated[str, Meta(description="Name of the instance.")] = ""
    rank: Annotated[int, Meta(description="Rank inside the instance.")] = -1
    url: Annotated[str, Meta(description="Base address to send it to.")] = ""
    headers: Annotated[dict[str, str], Meta(description="Headers to set.")] = {}
    body: Annotated[dict[str, int], Meta(description="Fields to set at the top of the JSON body.")] = {}
    reason: Annotated[str, Meta(description="Who chose and on what; of a refusal its code.")] = ""
    status: Annotated[int, Meta(description="Of a refusal: the HTTP status for the client.")] = 200
    retry_after_s: Annotated[
        float, Meta(description="Of a refusal: when to try again; 0: it would not help.")
    ] = 0.0


class Progress(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far a request has come."""

    lease: Annotated[Name, Meta(description="Which.")]
    tokens: Annotated[Tokens, Meta(description="Output tokens since the last report.")] = 0


class RankLoadReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What an engine that is not polled has on a rank."""

    instance: Annotated[Name, Meta(description="Name of the instance.")]
    rank: Annotated[int, Meta(ge=0, description="Rank inside it.")]
    running: Annotated[Tokens, Meta(description="Requests that run there, of whomever.")]
    waiting: Annotated[Tokens, Meta(description="Requests that wait there.")] = 0
    context_tokens: Annotated[Tokens | None, Meta(description="Tokens of their contexts.")] = None
    kv_usage: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Share of the KV cache in use; taken where context_tokens is not said."),
    ] = None
    kv_capacity_tokens: Annotated[
        Annotated[int, Meta(gt=0)] | None, Meta(description="Tokens the rank's KV cache holds.")
    ] = None
    max_batch: Annotated[Annotated[int, Meta(gt=0)] | None, Meta(description="Requests it runs at most.")] = (
        None
    )
    age_s: Annotated[float, Meta(ge=0, le=86_400, description="How old it is, in seconds.")] = 0.0
    sequence: Annotated[
        Tokens | None, Meta(description="Number of the report; a repeated one is no news.")
    ] = None
    seen_dispatches: Annotated[
        Tokens | None,
        Meta(description="Requests of this router the rank had seen by then, since it knows it."),
    ] = None


class Report(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Progress of leases, loads of ranks, or both."""

    leases: Annotated[list[Progress], Meta(max_length=65_536)] = []
    ranks: Annotated[list[RankLoadReport], Meta(max_length=65_536)] = []


class Ended(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A request that is over."""

    lease: Annotated[Name, Meta(description="Which.")]
    outcome: Annotated[
        Literal["finished", "cancelled", "failed"],
        Meta(description="failed: through its engine's fault; it counts against the instance."),
    ] = "finished"
    reason: Annotated[str, Meta(max_length=64, description="Of a failure, for the metrics.")] = "failed"
    prompt_tokens: Annotated[Tokens | None, Meta(description="Exactly, where the engine has said it.")] = None
    output_tokens: Annotated[Tokens | None, Meta(description="The same.")] = None


class EndedMany(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Several."""

    leases: Annotated[list[Ended], Meta(min_length=1, max_length=65_536)]


class Counted(msgspec.Struct, kw_only=True):
    """How many of the leases were known; the rest had ended before, or never been."""

    known: int
    unknown: int


def schemas() -> dict[str, Any]:
    """JSON schemas of what the routes take and give, by name."""
    found, parts = msgspec.json.schema_components(
        [Ask, AskMany, Chosen, Report, Ended, EndedMany, Counted], ref_template="#/$defs/{name}"
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": parts, "anyOf": list(found)}
