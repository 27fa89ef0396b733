"""One answer on its way to the client: written by the step that makes its tokens, without a task switch a token."""

from __future__ import annotations

import asyncio
import json

from equipoise.testing.mock_engine.answers import Answer
from equipoise.testing.mock_engine.core import Job, State
from equipoise.testing.mock_engine.faults import Fault

__all__ = ["MAX_BUFFERED", "Stream"]

MAX_BUFFERED = 8 << 20
"""Bytes a client may leave unread before the mock gives it up."""


class Stream:
    """Takes the tokens of a job.

    Parameters
    ----------
    answer : Answer
    transport : asyncio.WriteTransport, optional
        Of the connection, whose headers are out already; none: the answer is one document and only counted.
    fault : Fault, optional
        What happens to it on the way.
    """

    def __init__(self, answer: Answer, transport: asyncio.WriteTransport | None, fault: Fault | None) -> None:
        self._answer = answer
        self._transport = transport
        self._fault = fault
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """How it ended: ``finished``, ``broken`` (a fault ended it, as the client saw), ``gone``."""

    def opened(self) -> None:
        """The headers are out."""
        opening = self._answer.opening()
        if opening:
            self._write(opening)

    def token(self, job: Job) -> None:
        """A step made a token of the job."""
        transport = self._transport
        if transport is None:
            if job.state is State.FINISHED:
                self._end("finished")
            return
        if transport.is_closing() or transport.get_write_buffer_size() > MAX_BUFFERED:
            transport.abort()
            self._end("gone")
            return
        fault = self._fault
        if fault is not None and job.made > fault.after_tokens:
            self._break(fault, transport)
            return
        data = self._answer.token(job.made)
        if job.state is State.FINISHED:
            data += self._answer.closing(job.made)
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        if job.state is State.FINISHED:
            self._end("finished")

    def reset(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()
        self._end("broken")

    def _break(self, fault: Fault, transport: asyncio.WriteTransport) -> None:
        if fault.kind == "reset":
            transport.abort()
        elif fault.kind == "bad_chunk":
            transport.write(b"zz\r\nthis is no chunk\r\n")
            transport.close()
        elif fault.kind == "cut":
            self._end("cut")
            return
        else:
            error = {"error": {"message": "the engine failed", "type": "InternalServerError", "code": 500}}
            self._write(b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n")
            self._end("cut")
            return
        self._end("broken")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _end(self, how: str) -> None:
        if not self.over.done():
            self.over.set_result(how)
