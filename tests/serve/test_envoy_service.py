"""`equipoise serve --mode ext-proc` and `envoy-config` as processes before mock engines, and what they refuse."""

from __future__ import annotations

import asyncio
import sys

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("envoy.service.ext_proc.v3.external_processor_pb2")

from envoy_rig import envoy_path, free_ports, run  # noqa: E402

from equipoise.cli.app import main  # noqa: E402
from equipoise.engines import WorkerSpec  # noqa: E402
from equipoise.errors import InputError  # noqa: E402
from equipoise.serve.config import ServeConfig  # noqa: E402
from equipoise.serve.envoy import picker_config  # noqa: E402
from equipoise.testing.mock_engine import MockEngine  # noqa: E402

URLS = [f"http://10.0.0.{k}:8000" for k in range(1, 6)]


def test_shares_are_all_instances_each_once():
    config = ServeConfig(workers=tuple(WorkerSpec(url, ranks=4) for url in URLS))
    shares = [picker_config(config, f"{k}/2") for k in (1, 2)]
    assert sorted(w.url for one in shares for w in one.workers) == URLS
    assert [len(one.workers) for one in shares] == [3, 2]
    assert {one.router.counts for one in shares} == {"extrapolated"}


def test_an_instance_of_several_workers_is_in_one_share():
    workers = tuple(
        WorkerSpec(url, ranks=4, instance=f"i{k % 2}", first_rank=4 * (k // 2))
        for k, url in enumerate(URLS[:4])
    )
    for k in (1, 2):
        assert len({w.instance for w in picker_config(ServeConfig(workers=workers), f"{k}/2").workers}) == 1


@pytest.mark.parametrize(
    ("options", "share", "words"),
    [
        ({"workers_file": "workers.toml"}, None, "discovered"),
        ({}, "1/9", "5 instances for 9 pickers"),
        ({}, "3/2", "no share"),
    ],
)
def test_what_a_picker_refuses(options, share, words):
    config = ServeConfig(**{"workers": tuple(WorkerSpec(url, ranks=4) for url in URLS)} | options)
    with pytest.raises(InputError, match=words):
        picker_config(config, share)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--worker-urls", URLS[0], "--picker", "127.0.0.1:1"], "--mode ext-proc"),
        (["serve", "--worker-urls", URLS[0], "--mode", "ext-proc", "--picker", "nowhere"], "no port"),
        (["serve", "envoy-config"], "no worker"),
        (["serve", "envoy-config", "--worker-urls", "http://name:8000"], "no IP address"),
        (
            ["serve", "envoy-config", "--worker-urls", URLS[0], "--message-timeout-secs", "3"],
            "may queue for 30 s",
        ),
        (["serve", "envoy-config", "--worker-urls", URLS[0], "--output", "/nowhere/x"], "cannot be written"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, words, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""
    assert err.count("\n") == 1


def test_the_file_follows_the_configuration(tmp_path, capsys):
    file = tmp_path / "pool.toml"
    file.write_text(
        'workers = ["http://10.0.0.1:8000"]\n[router]\nqueue_ttl_s = 50.0\n'
        "[timeouts]\nfirst_byte_s = 70.0\nidle_s = 20.0\n"
    )
    assert main(["serve", "envoy-config", "--config", str(file)]) == 0
    text = capsys.readouterr().out
    assert "message_timeout: 55s" in text
    assert "idle_timeout: 70s" in text
    assert 'address: "10.0.0.1", port_value: 8000' in text


def test_from_the_command_line_to_the_ranks(tmp_path, capsys):
    binary = envoy_path()

    async def test():
        listen, asks, main_port, admin_port = free_ports(4)
        async with (
            MockEngine("vllm", ranks=4, speed_up=50) as one,
            MockEngine("vllm", ranks=4, speed_up=50) as two,
        ):
            urls = [one.url, two.url]
            file = tmp_path / "envoy.yaml"
            arguments = ["serve", "envoy-config", "--worker-urls", *urls, "--listen", f"127.0.0.1:{listen}"]
            assert main([*arguments, "--picker", f"127.0.0.1:{asks}", "--output", str(file)]) == 0
            picker = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-c",
                    "from equipoise.cli.app import main; raise SystemExit(main())",
                    "serve",
                    "--mode",
                    "ext-proc",
                    "--worker-urls",
                    *urls,
                ),
                *("--picker", f"127.0.0.1:{asks}", "--port", str(main_port), "--admin-port", str(admin_port)),
                stderr=asyncio.subprocess.PIPE,
            )
            said = b""
            while b"Envoy asks on" not in said:
                line = await picker.stderr.readline()
                assert line, said
                said += line
            carrier = await asyncio.create_subprocess_exec(
                binary, "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "-l", "error"
            )
            try:
                async with aiohttp.ClientSession() as session:
                    await served(session, listen, main_port, admin_port)
                assert sum(e.answers[200] for e in (one, two)) >= 41
                assert all(rank["finished"] > 0 for e in (one, two) for rank in e.seen()["ranks"])
            finally:
                carrier.kill()
                picker.terminate()
                rest = await picker.stderr.read()
                await carrier.wait()
                assert await picker.wait() == 0, rest

    run(test)()


async def served(session, listen, main_port, admin_port):
    url = f"http://127.0.0.1:{listen}/v1/completions"
    asked = {"model": "tiny", "prompt": "word " * 20, "max_tokens": 8, "stream": True, "ignore_eos": True}

    async def one():
        async with session.post(url, json=asked) as answer:
            return answer.status, (await answer.read()).count(b"data: ")

    for _ in range(400):
        try:
            status, _ = await one()
        except aiohttp.ClientError:
            status = 0
        if status == 200:
            break
        await asyncio.sleep(0.05)
    answers = await asyncio.gather(*(one() for _ in range(40)))
    assert {status for status, _ in answers} == {200}
    assert {chunks for _, chunks in answers} == {10}  # tokens, why it ended, [DONE]
    async with session.post(f"http://127.0.0.1:{main_port}/v1/completions", json=asked) as answer:
        assert answer.status == 404  # not here: through Envoy

    async def leases():
        async with session.get(f"http://127.0.0.1:{admin_port}/metrics") as answer:
            page = await answer.text()
        rows = dict(line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#")
        assert float(rows['equipoise_requests_total{route="/v1/completions"}']) >= 41
        return float(rows["equipoise_leases"])

    for _ in range(200):
        if await leases() == 0:
            return
        await asyncio.sleep(0.02)
    pytest.fail("leases are left")
