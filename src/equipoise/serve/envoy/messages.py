"""The messages between Envoy and the picker, in bytes; the protobuf classes come from ``xds-protos``.

Answers that never change are encoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from equipoise.errors import InputError
from equipoise.serve.envoy.held import Refusal

try:
    from envoy.config.core.v3 import base_pb2
    from envoy.service.ext_proc.v3 import external_processor_pb2 as ep
    from envoy.type.v3 import http_status_pb2
    from google.protobuf.message import DecodeError
except ImportError as missing:
    raise InputError(
        f"the Envoy picker needs xds-protos ({missing})", fix="pip install 'equipoise[envoy]'"
    ) from missing

__all__ = [
    "HEADERS_OK",
    "RESPONSE_OK",
    "TRAILERS_OK",
    "DecodeError",
    "header_map",
    "immediate",
    "read",
    "sent_on",
]

HEADERS_OK: bytes = ep.ProcessingResponse(request_headers=ep.HeadersResponse()).SerializeToString()
RESPONSE_OK: bytes = ep.ProcessingResponse(response_headers=ep.HeadersResponse()).SerializeToString()
TRAILERS_OK: bytes = ep.ProcessingResponse(response_trailers=ep.TrailersResponse()).SerializeToString()

_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_STATUS = frozenset(http_status_pb2.StatusCode.values())

read = ep.ProcessingRequest.FromString
"""Bytes to a ``ProcessingRequest``."""


def header_map(headers: Any) -> dict[str, str]:
    """Names, lower case as Envoy keeps them, and values of an ``HttpHeaders``."""
    return {h.key: h.value or h.raw_value.decode("latin-1") for h in headers.headers.headers}


def sent_on(headers: Iterable[tuple[str, str]], body: bytes | None = None) -> bytes:
    """The answer to a body: these headers are set, and the body is replaced if there is another."""
    if body is not None:  # Envoy refuses a body that is not as long as its header says
        headers = (*headers, ("content-length", str(len(body))))
    common = ep.CommonResponse(header_mutation=_set(headers))
    if body is not None:
        common.body_mutation.body = body
    encoded: bytes = ep.ProcessingResponse(request_body=ep.BodyResponse(response=common)).SerializeToString()
    return encoded


def immediate(refusal: Refusal) -> bytes:
    """The answer that ends a request here; its body is an error as OpenAI's clients read it."""
    headers: Mapping[str, str] = {
        "content-type": "application/json",
        "x-equipoise-reason": refusal.reason,
    }
    if refusal.retry_after_s > 0:
        headers = {**headers, "retry-after": str(max(1, round(refusal.retry_after_s)))}
    body = {
        "error": {
            "message": refusal.message,
            "type": "invalid_request_error" if 400 <= refusal.status < 429 else "server_error",
            "param": None,
            "code": refusal.reason,
        }
    }
    answer = ep.ImmediateResponse(
        headers=_set(headers.items()), body=msgspec.json.encode(body), details=f"equipoise_{refusal.reason}"
    )
    answer.status.code = refusal.status if refusal.status in _STATUS else 503
    encoded: bytes = ep.ProcessingResponse(immediate_response=answer).SerializeToString()
    return encoded


def _set(headers: Iterable[tuple[str, str]]) -> Any:
    return ep.HeaderMutation(
        set_headers=[
            base_pb2.HeaderValueOption(
                header=base_pb2.HeaderValue(key=name.lower(), raw_value=value.encode("latin-1")),
                append_action=_OVERWRITE,
            )
            for name, value in headers
        ]
    )
