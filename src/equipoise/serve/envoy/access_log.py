"""Envoy's access log over gRPC: how each request ended, how long its answer was, what its usage said.

It arrives about a millisecond after the ext_proc stream is closed, and is the only one to know whether an answer that
had begun came to its end.
"""

from __future__ import annotations

from typing import Any

from equipoise.serve.envoy import messages as _messages  # noqa: F401  says what to install
from equipoise.serve.envoy.held import End
from equipoise.serve.envoy.picker import Picker

from envoy.service.accesslog.v3 import als_pb2  # isort: skip  after the sentence about what to install

__all__ = ["NAMESPACE", "entry_end", "take"]

NAMESPACE = "equipoise"
"""Of the metadata that ``sse_to_metadata`` writes usage into."""

_read = als_pb2.StreamAccessLogsMessage.FromString

_CAUSES = (
    ("downstream_connection_termination", "client_gone"),
    ("downstream_remote_reset", "client_gone"),
    ("upstream_connection_failure", "connect"),
    ("no_healthy_upstream", "no_endpoint"),
    ("upstream_connection_termination", "reset"),
    ("upstream_remote_reset", "reset"),
    ("upstream_protocol_error", "reset"),
    ("upstream_overflow", "overflow"),
    ("stream_idle_timeout", "idle"),
    ("upstream_request_timeout", "timeout"),
    ("duration_timeout", "timeout"),
    ("upstream_max_stream_duration_reached", "timeout"),
    ("downstream_protocol_error", "client_gone"),
    ("local_reset", "reset"),
)
"""Envoy's flags and the reasons they are here."""


def entry_end(entry: Any) -> End:
    """How the request of one log entry ended."""
    common, response = entry.common_properties, entry.response
    how = "finished"
    if common.HasField("response_flags"):
        flags = common.response_flags
        how = next((reason for flag, reason in _CAUSES if getattr(flags, flag)), "finished")
    prompt = output = -1
    usage = common.metadata.filter_metadata
    if NAMESPACE in usage:
        fields = usage[NAMESPACE].fields
        prompt, output = _count(fields, "prompt_tokens"), _count(fields, "output_tokens")
    return End(how, response.response_body_bytes, prompt, output)


def take(picker: Picker, raw: bytes) -> None:
    """Hand the entries of one message to the picker."""
    for entry in _read(raw).http_logs.log_entry:
        picker.logged(entry.request.request_id, entry_end(entry))


def _count(fields: Any, name: str) -> int:
    if name not in fields:
        return -1
    value = fields[name].number_value
    return int(value) if 0 <= value <= 1 << 40 else -1
