"""The configuration of the servers: files, options, and every way to get them wrong."""

from __future__ import annotations

import socket
from dataclasses import fields

import pytest

from equipoise.cli.app import main
from equipoise.engines import WorkerSpec
from equipoise.errors import InputError
from equipoise.serve.config_file import TABLES, read_config
from equipoise.serve.sockets import listen

FILE = """
engine = "sglang"
port = 0
dp_size = 8
workers = ["http://a:1", {url = "http://b:1", ranks = 4, instance = "b"}]

[router]
scope = "instance"
queue_ttl_s = 3
classes = {high = 3.0, low = 1.0}

[timeouts]
idle_s = 7.5

[forwarding]
worker_key = "0123456789"
worker_keys = {b = "abcdefgh"}
"""


def test_a_file_and_options_over_it(tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text(FILE)
    config = read_config(path, {"port": 5, "timeouts.idle_s": 1.0, "router.scope": None})
    assert (config.engine, config.port, config.dp_size) == ("sglang", 5, 8)
    assert config.workers == (WorkerSpec("http://a:1"), WorkerSpec("http://b:1", ranks=4, instance="b"))
    assert (config.router.scope, config.router.queue_ttl_s) == ("instance", 3)
    assert config.timeouts.idle_s == 1.0
    assert config.forwarding.key_of("b") == "abcdefgh"
    assert "0123456789" not in repr(config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "unknown key 'prot'; did you mean 'port'"),
        ("[timeout]\nidle_s = 1", "unknown key 'timeout'"),
        ("[timeouts]\nidel_s = 1", "did you mean 'idle_s'"),
        ("port = 'x'", "port = 'x'"),
        ("port = 70000", "must be from 0 to 65535"),
        ("port = 29000", "both the main and the admin port"),
        ("router = 3", "router is no table"),
        ("[router]\nscope = 'x'", "scope"),
        ("[router]\nqueue_ttl_s = -1", "queue_ttl_s"),
        ("[timeouts]\nidle_s = -1", "must be 0 or more"),
        ("workers = [1]", "is no worker"),
        ("workers = ['http://a:1/x']", "the address"),
        ("workers = []", "there is no worker"),
        ("admin_host = '0.0.0.0'", "admin_token"),
        ("admin_host = '::'", "admin_token"),
        ("api_key = 'short'", "8 or more"),
        ("api_key = 12345678", "api_key = ..."),
        ("api_key = '12345678'", "would be open"),
        (
            "api_key = '12345678'\nworkers_file = 'x'\n[forwarding]\nworker_keys = {'http://a:1' = 'abcdefgh'}",
            "discovered",
        ),
        ("low_water_bytes = 999999999", "low_water_bytes"),
        ("x = = 1", "no TOML"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, words):
    path = tmp_path / "serve.toml"
    given = "" if text.startswith("workers = ") else "workers = ['http://a:1']\n"
    path.write_text(given + text)
    with pytest.raises(InputError) as found:
        read_config(path, {})
    assert words in str(found.value)
    assert "12345678" not in str(found.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "none.toml", {})


def test_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} on 127.0.0.1 cannot be used"):
            listen("127.0.0.1", port, "port")
    with pytest.raises(InputError, match="is no address of this machine"):
        listen("no.such.host.invalid", 1, "port")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "there is no worker"),
        (["--worker-urls", "foo"], "--worker-urls: the address 'foo' is none"),
        (["--worker-urls", "http://a:1", "--engine", "vlm"], "did you mean 'vllm'"),
        (["--worker-urls", "http://a:1", "--dp-size", "0"], "--dp-size"),
        (["--worker-urls", "http://a:1", "--dp-size", "x"], "--dp-size"),
        (["--worker-urls", "http://a:1", "--admin-host", "0.0.0.0"], "give admin_token"),
        (["--worker-urls", "http://a:1", "--policy", "dualpth"], "did you mean 'dualpath'"),
        (["--worker-urls", "http://a:1", "--cost", "nope"], "nope"),
        (["--worker-urls", "http://a:1", "http://a:1"], "twice"),
    ],
)
def test_the_command_refuses_in_one_line(capsys, options, words):
    assert main(["serve", "--port", "0", "--prometheus-port", "0", *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("equipoise: ")
    assert said.err.count("\n") == 1
    assert words in said.err


def test_check_without_an_engine(capsys):
    assert main(["serve", "--worker-urls", "http://127.0.0.1:1", "--check"]) == 1
    assert "FAIL  http://127.0.0.1:1" in capsys.readouterr().err


def test_every_key_has_a_default():
    for kind in TABLES.values():
        assert len(fields(kind)) > 3
        kind()
