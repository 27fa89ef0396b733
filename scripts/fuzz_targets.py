"""What is read from strangers, and what must hold whatever they send: one function a reader, taking any bytes.

Each raises `AssertionError` where its invariant is broken; any other exception is a defect too. ``scripts/fuzz`` looks
for such bytes; the quick tests try the recorded answers of engines, cut and damaged.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from equipoise.engines import TokenCounter, request_facts, set_fields
from equipoise.engines.dynamo import read_frontend
from equipoise.engines.headers import PIN_FIELDS
from equipoise.engines.sglang import read_loads
from equipoise.engines.sglang import read_metrics as read_sglang
from equipoise.engines.trtllm import read_statistics
from equipoise.engines.vllm import read_metrics as read_vllm
from equipoise.errors import EquipoiseError
from equipoise.serve.envoy.http2 import HELLO, PREFACE, RESPONSE_BLOCK, Connection, _frame
from equipoise.serve.replicas import wire

__all__ = ["TARGETS", "seeds"]

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate")
READERS: tuple[Callable[[bytes], Any], ...] = (
    read_vllm,
    read_loads,
    read_sglang,
    read_statistics,
    read_frontend,
)


def one_line(text: str) -> None:
    """What a person is told."""
    assert text
    assert "\n" not in text


def facts(data: bytes) -> None:
    """Any body: facts within their bounds, or one sentence."""
    for route in ROUTES:
        try:
            found = request_facts(route, data)
        except EquipoiseError:
            continue
        assert found.prompt_tokens >= -1
        assert 0 <= found.prompt_bytes <= 6 * len(data) + 64
        assert found.budget_tokens >= -1
        assert found.sequences >= 1
        assert found.body_bytes == len(data)


def fields(data: bytes) -> None:
    """Any body: what is sent on differs from it in the pin alone, and no pin of the client's is left."""
    try:
        changed = set_fields(data, {"routed_dp_rank": 3})
    except EquipoiseError:
        return
    before = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    after = msgspec.json.decode(changed, type=dict[str, msgspec.Raw])
    assert bytes(after.pop("routed_dp_rank")) == b"3"
    assert {k: bytes(v) for k, v in after.items()} == {
        k: bytes(v) for k, v in before.items() if k not in PIN_FIELDS
    }


def pages(data: bytes) -> None:
    """Any page of an engine: loads that are numbers and not negative, or one sentence."""
    for read in READERS:
        try:
            seen = read(data)
        except EquipoiseError as error:
            one_line(str(error))
            continue
        for load in seen.ranks:
            assert load.rank >= 0
            for name in ("running", "waiting", "context_tokens"):
                value = getattr(load, name, None)
                assert value is None or (math.isfinite(value) and value >= 0)


def answers(data: bytes) -> None:
    """Any stream: as many tokens however its bytes are cut; never fewer than before."""
    cut = data[0] + 1 if data else 1
    whole, pieces = TokenCounter(), TokenCounter()
    told = whole.feed(data) + whole.end()
    for at in range(0, len(data), cut):
        new = pieces.feed(data[at : at + cut])
        assert new >= 0
        told -= new
    told -= pieces.end()
    assert told == 0
    assert whole.tokens == pieces.tokens
    assert whole.output_tokens == pieces.output_tokens


class _Transport(asyncio.Transport):
    """Takes all that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed, "written after it was closed"

    def close(self) -> None:
        self.closed = True


class _Handler:
    """Answers every message; must be told once that its call is over."""

    def __init__(self, call: Any) -> None:
        self.call, self.over = call, 0

    def message(self, data: bytes) -> None:
        """Answer it."""
        assert not self.over
        self.call.send(data[:64])

    def closed(self) -> None:
        """Once."""
        self.over += 1
        assert self.over == 1


def frames(data: bytes) -> None:
    """Any peer: its connection ends at the worst, and then every call is over."""

    async def run() -> None:
        handlers: list[_Handler] = []

        def accept(call: Any) -> Any:
            handlers.append(_Handler(call))
            return handlers[-1]

        connection, transport = Connection(accept), _Transport()
        connection.connection_made(transport)
        half = len(data) // 2
        for part in (PREFACE, data[:half], data[half:]):
            if not transport.closed:
                connection.data_received(part)
        connection.connection_lost(None)
        assert all(handler.over == 1 for handler in handlers)
        assert not connection.calls

    asyncio.run(run())


def peers(data: bytes) -> None:
    """Any message of another router: what was meant, which is written as it was read, or a refusal."""
    for kind in (wire.Asks, wire.Places, wire.States, wire.StatesTaken, wire.Told, wire.LeasesOf):
        try:
            read = wire.decode(data, kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        assert wire.decode(wire.encode(read), kind) == read or b"\x7f\xf8" in wire.encode(read)


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function for function in (facts, fields, pages, answers, frames, peers)
}


def seeds(fixtures: Path) -> dict[str, list[bytes]]:
    """What to start from: recorded answers of engines, bodies, messages, a few frames."""
    recorded = [path.read_bytes() for path in sorted(fixtures.iterdir()) if path.suffix != ".md"]
    bodies = [
        b'{"model":"m","prompt":[1,2,3],"max_tokens":20,"n":2,"ignore_eos":true,"routed_dp_rank":1}',
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"a\\u00e4"}]}],"stream":true,'
        b'"stream_options":{"include_usage":true},"data_parallel_rank":7}',
        b'{"input_ids":[[1],[2,3]],"sampling_params":{"max_new_tokens":5,"n":3},"text":null}',
    ]
    ask = wire.Ask("g1", 100, 20, "s")
    messages = [
        wire.encode(m)
        for m in (
            wire.Asks("r", "http://127.0.0.1:1", [ask]),
            wire.States("r", "http://127.0.0.1:1", [wire.State("g1", "i", 3, 100)]),
            wire.Told("r", [wire.Placed("g1")], [("g2", "finished")]),
            wire.LeasesOf("r", "to", "i", 4),
        )
    ]
    call = _frame(1, 4, 1, RESPONSE_BLOCK) + _frame(0, 0, 1, b"\0\0\0\0\3abc")
    talk = [
        HELLO + call + _frame(0, 1, 1),
        call + _frame(3, 0, 1, b"\0\0\0\x08"),
        _frame(6, 0, 0, b"12345678"),
    ]
    streams = [page for page in recorded if page.startswith(b"data:")]
    return {
        "facts": bodies,
        "fields": bodies,
        "pages": recorded,
        "answers": streams,
        "frames": talk,
        "peers": messages,
    }
