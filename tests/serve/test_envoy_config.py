"""The generated file: what it refuses, what must stand in it, and that Envoy takes it."""

from __future__ import annotations

import subprocess

import pytest
from envoy_rig import envoy_path
from hypothesis import given
from hypothesis import strategies as st

from equipoise.engines.facts import GENERATING
from equipoise.engines.headers import PREFILL_HEADERS, RANK_HEADERS
from equipoise.errors import InputError
from equipoise.serve.envoy import EnvoyOptions, envoy_config
from equipoise.serve.envoy.options import socket_of, split_share

ONE = ("http://127.0.0.1:8001", "http://127.0.0.1:8002")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": ()}, "no worker"),
        ({"workers": ["https://10.0.0.1:8000"]}, "not http"),
        ({"workers": ["http://worker-3:8000"]}, "no IP address"),
        ({"workers": ["http://127.0.0.1:10000"]}, "--listen too"),
        ({"listen": "127.0.0.1:9100"}, "--listen too"),
        ({"admin": "127.0.0.1:10000"}, "--listen too"),
        ({"pickers": ["127.0.0.1:9100", "127.0.0.1:9100"]}, "--picker too"),
        ({"pickers": []}, "0 pickers"),
        ({"pickers": ["unix:relative"]}, "no socket path"),
        ({"pickers": ['unix:/a"b']}, "no socket path"),
        ({"listen": "0.0.0.0"}, "no port"),
        ({"listen": "0.0.0.0:0"}, "no port"),
        ({"message_timeout_s": 30.0}, "may queue for 30 s"),
        ({"message_timeout_s": 5.0, "queue_ttl_s": 60.0}, "may queue for 60 s"),
        ({"most_body_bytes": 64 << 20}, "most_body_bytes"),
        ({"idle_timeout_s": -1.0}, "idle_timeout_s"),
        ({"idle_timeout_s": float("nan")}, "idle_timeout_s"),
        ({"usage": True, "access_log": False}, "without the access log"),
        ({"class_header": 'x"}'}, "no header"),
    ],
)
def test_what_does_not_go_together_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        EnvoyOptions(**{"workers": ONE} | options)


def test_what_must_stand_in_it():
    text = envoy_config(EnvoyOptions(workers=ONE))
    for line in (
        "failure_mode_allow: true",
        "fallback_policy: NO_FALLBACK",
        "request_body_mode: BUFFERED",
        "response_header_mode: SEND",
        "response_body_mode: NONE",
        "response_trailer_mode: SEND",
        "message_timeout: 35s",
        "per_connection_buffer_limit_bytes: 33554432",
        "delayed_close_timeout: 0s",
        "port_value: 8001",
        "port_value: 8002",
    ):
        assert line in text
    for name in RANK_HEADERS | PREFILL_HEADERS:
        assert f"{{remove: {name}}}" in text
    for route in GENERATING:
        assert f"path: {route}," in text
    assert "sse_to_metadata" not in text
    assert "access_log" not in envoy_config(EnvoyOptions(workers=ONE, access_log=False))


def test_behind_a_pd_proxy_what_it_says_of_the_prefill_passes():
    text = envoy_config(EnvoyOptions(workers=ONE, behind_pd_proxy=True))
    assert not any(f"{{remove: {name}}}" in text for name in PREFILL_HEADERS)
    assert all(f"{{remove: {name}}}" in text for name in RANK_HEADERS)
    assert "prefix: x-override-" not in text
    assert "prefix: x-override-" in envoy_config(EnvoyOptions(workers=ONE))


def test_a_worker_named_twice_is_one_endpoint():
    text = envoy_config(EnvoyOptions(workers=[*ONE, "http://127.0.0.1:8001"]))
    assert text.count("port_value: 8001") == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"access_log": False},
        {"usage": True},
        {"behind_pd_proxy": True},
        {"pickers": ("127.0.0.1:9100", "unix:/run/picker", "[::1]:9101"), "usage": True},
        {"admin": "", "idle_timeout_s": 0.0, "workers": ("http://[::1]:8000", "http://10.0.0.1")},
    ],
)
def test_envoy_takes_it(tmp_path, options):
    file = tmp_path / "envoy.yaml"
    file.write_text(envoy_config(EnvoyOptions(**{"workers": ONE} | options)), encoding="utf-8")
    done = subprocess.run(
        [envoy_path(), "--mode", "validate", "-c", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_an_error(text):
    try:
        socket = socket_of(text, "--listen")
    except InputError:
        return
    assert socket_of(str(socket), "--listen") == socket
    assert "\n" not in socket.yaml()


@given(st.text(max_size=10))
def test_any_text_is_a_share_or_an_error(text):
    try:
        k, n = split_share(text)
    except InputError:
        return
    assert 0 <= k < n
