"""When Envoy closes a request's ext_proc stream, mode by mode: the lease lives on that, and only some modes keep to it.

Found on Envoy 1.40. Where a newer one does better these tests fail, and the comment in the configuration may go.
"""

from __future__ import annotations

import asyncio

import pytest

aiohttp = pytest.importorskip("aiohttp")
grpc = pytest.importorskip("grpc")
pytest.importorskip("envoy.service.ext_proc.v3.external_processor_pb2")

from envoy.service.ext_proc.v3 import external_processor_pb2 as ep  # noqa: E402
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ep_grpc  # noqa: E402
from envoy_rig import Worker, envoy, run  # noqa: E402

from equipoise.serve.envoy import messages  # noqa: E402
from equipoise.serve.envoy.held import DESTINATION  # noqa: E402

pytestmark = pytest.mark.proof

OURS = {"body": "BUFFERED", "response": "SEND", "trailers": "SEND"}


class Streams(ep_grpc.ExternalProcessorServicer):
    """Answers in any mode; when a stream is closed it looks whether the worker is done."""

    def __init__(self, worker: Worker, mode: str) -> None:
        self.worker, self.mode = worker, mode
        self.closed: list[bool] = []

    async def Process(self, stream, context):
        headers = [(DESTINATION, f"127.0.0.1:{self.worker.port}")]
        body = b""
        try:
            async for message in stream:
                kind = message.WhichOneof("request")
                if kind == "request_headers" and self.mode != "FULL_DUPLEX_STREAMED":
                    if self.mode == "NONE":
                        answer = ep.ProcessingResponse.FromString(messages.sent_on(headers))
                        yield ep.ProcessingResponse(
                            request_headers=ep.HeadersResponse(response=answer.request_body.response)
                        )
                    else:
                        yield ep.ProcessingResponse.FromString(messages.HEADERS_OK)
                elif kind == "request_body" and self.mode == "BUFFERED":
                    yield ep.ProcessingResponse.FromString(messages.sent_on(headers))
                elif kind == "request_body":
                    body += message.request_body.body
                    if message.request_body.end_of_stream:
                        answer = ep.ProcessingResponse.FromString(messages.sent_on(headers))
                        yield ep.ProcessingResponse(
                            request_headers=ep.HeadersResponse(response=answer.request_body.response)
                        )
                        back = ep.ProcessingResponse(request_body=ep.BodyResponse())
                        back.request_body.response.body_mutation.streamed_response.body = body
                        back.request_body.response.body_mutation.streamed_response.end_of_stream = True
                        yield back
                elif kind == "response_headers":
                    yield ep.ProcessingResponse.FromString(messages.RESPONSE_OK)
        finally:
            self.closed.append(bool(self.worker.ended))


@pytest.mark.parametrize(
    ("body", "response", "trailers", "at_the_end"),
    [
        ("BUFFERED", "SEND", "SEND", True),
        ("BUFFERED", "SKIP", "SEND", True),
        ("FULL_DUPLEX_STREAMED", "SEND", "SEND", True),
        ("FULL_DUPLEX_STREAMED", "SEND", "SKIP", False),
        ("NONE", "SEND", "SKIP", False),
    ],
)
def test_when_the_stream_is_closed(tmp_path, body, response, trailers, at_the_end):
    def change(text):
        for old, new in (
            ("request_body_mode: BUFFERED", f"request_body_mode: {body}"),
            ("response_header_mode: SEND", f"response_header_mode: {response}"),
            ("response_trailer_mode: SEND", f"response_trailer_mode: {trailers}"),
            (
                "request_trailer_mode: SKIP",
                f"request_trailer_mode: {'SEND' if body.startswith('FULL') else 'SKIP'}",
            ),
        ):
            assert old in text
            text = text.replace(old, new)
        return text

    async def test():
        async with Worker() as worker:
            streams = Streams(worker, body)
            server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
            ep_grpc.add_ExternalProcessorServicer_to_server(streams, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            try:
                async with (
                    envoy(
                        tmp_path, [f"127.0.0.1:{port}"], [worker.url], change=change, access_log=False
                    ) as url,
                    aiohttp.ClientSession() as session,
                ):
                    asked = {"do": "stream", "chunks": 25, "gap_s": 0.02, "prompt": "a"}
                    async with session.post(url + "/v1/completions", json=asked) as answer:
                        assert answer.status == 200
                        await answer.content.read(1)
                        await asyncio.sleep(0.1)
                        assert bool(streams.closed) is not at_the_end  # the answer is still under way
                        await answer.read()
                    for _ in range(200):
                        if streams.closed:
                            break
                        await asyncio.sleep(0.01)
                    assert streams.closed == [at_the_end]
            finally:
                await server.stop(0)

    run(test)()
