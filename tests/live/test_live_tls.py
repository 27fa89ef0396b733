"""An engine behind TLS: with an authority of its own, with none that is believed, and with no TLS at all."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from live_cases import plan_for, some_trace
from virtual_time import run_virtually

from equipoise.engines import WorkerSpec
from equipoise.errors import EngineError, InputError
from equipoise.live.parts import read_folder
from equipoise.live.run import LiveRun
from equipoise.live.tls import tls_context
from equipoise.live.wire import Connections
from equipoise.testing.mock_engine import MockEngine


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a certificate, its key in the same file, for an address; it signs itself."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make certificates")
    folder = tmp_path_factory.mktemp("tls")

    def make(address: str) -> Path:
        path = folder / f"{address}.pem"
        if not path.exists():
            key = folder / "key.pem"
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                 "-days", "2", "-subj", "/CN=ours", "-addext", f"subjectAltName=IP:{address}",
                 "-keyout", key, "-out", path],
                check=True, capture_output=True,
            )  # fmt: skip
            path.write_text(path.read_text() + key.read_text())
        return path

    return make


@asynccontextmanager
async def front(url: str, certificate: Path) -> AsyncIterator[str]:
    """Speaks TLS before an engine; its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    port = int(url.rpartition(":")[2])

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, back), pipe(to, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def run_tls(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    certificate: Path,
    change: Callable[[str, str], str] = lambda https, http: https,
    **changes: Any,
) -> dict[str, int]:
    """Outcomes of a run; `change` makes the address of both."""

    async def main() -> None:
        async with MockEngine("vllm", ranks=3) as engine, front(engine.url, certificate) as url:
            workers = (WorkerSpec(change(url, engine.url)),)
            await LiveRun(plan_for(engine, some_trace(), workers=workers, **changes), folder).run()

    run_virtually(main(), monkeypatch)
    found = read_folder(folder).requests["outcome"].to_list()
    return {one: found.count(one) for one in found}


def test_an_authority_of_ones_own(
    certificate: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = certificate("127.0.0.1")
    assert run_tls(tmp_path, monkeypatch, own, ca_file=str(own)) == {"ok": 24}


def test_anybody_is_believed_if_asked(
    certificate: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_tls(tmp_path, monkeypatch, certificate("127.0.0.2"), insecure=True) == {"ok": 24}


@pytest.mark.parametrize(
    ("address", "ca", "change", "words"),
    [
        ("127.0.0.1", False, lambda https, http: https, r"not believed: self.signed cert.*; --ca-file names who"),
        ("127.0.0.2", True, lambda https, http: https, r"not believed: IP address mismatch.*; use the name that"),
        ("127.0.0.1", True, lambda https, http: http.replace("http:", "https:"), r"it does not speak TLS"),
        ("127.0.0.1", True, lambda https, http: https.replace("https:", "http:"), r"did not answer"),
    ],
    ids=["nobody believes it", "another name", "no TLS there", "TLS there"],
)  # fmt: skip
def test_who_is_not_believed(
    certificate: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    ca: bool,
    change: Callable[[str, str], str],
    words: str,
) -> None:
    own = certificate(address)
    with pytest.raises(EngineError, match=words) as caught:
        run_tls(tmp_path / "new", monkeypatch, own, change, ca_file=str(own) if ca else None)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_request_says_it_too(
    certificate: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with MockEngine("vllm") as engine, front(engine.url, certificate("127.0.0.1")) as url:
            await Connections().take(url)

    with pytest.raises(OSError, match="certificate is not believed"):
        run_virtually(main(), monkeypatch)


@pytest.mark.parametrize(("text", "words"), [(None, "cannot be read"), ("nothing", "holds no certificate")])
def test_no_authority(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "ca.pem").write_text(text)
    with pytest.raises(InputError, match=f"--ca-file.*{words}|{words}"):
        tls_context(str(tmp_path / "ca.pem"))
