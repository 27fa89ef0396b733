"""How long a prompt is taken to be before an engine has said so: choices, batches, a tokenizer if there is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve_cases import asked, mock, on_a_loop, stage

from equipoise.engines.facts import GENERATING, request_facts
from equipoise.engines.prompts import prompt_text
from equipoise.errors import InputError
from equipoise.serve.lengths import Lengths, context_of
from equipoise.serve.tokenizer import WHOLE, read_tokenizer, sampled


def words(model: str, text: str) -> int:
    return len(text.split())


def tokens_of(body, path="/v1/completions", tokenizer=None) -> int:
    raw = json.dumps(body).encode()
    return context_of(Lengths(tokenizer), request_facts(path, raw), path, raw)


def test_every_choice_holds_its_prompt_and_every_prompt_counts_once():
    assert tokens_of({"prompt": [1] * 100}) == 100
    assert tokens_of({"prompt": [1] * 100, "n": 3}) == 300
    assert tokens_of({"prompt": [[1] * 100, [1] * 50]}) == 150
    assert tokens_of({"prompt": [[1] * 100, [1] * 50], "n": 2}) == 300
    one = tokens_of({"prompt": "word " * 80})
    assert tokens_of({"prompt": ["word " * 80] * 3}) == pytest.approx(3 * one, rel=0.03)
    assert tokens_of({"prompt": ""}) == 1


def test_a_tokenizer_sees_the_text_and_nothing_else():
    messages = [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": "x y"}],
        },
    ]
    chat = {"messages": messages, "model": "some model", "user": "who ever"}
    assert tokens_of(chat, "/v1/chat/completions", words) == 5
    assert tokens_of(chat | {"n": 2}, "/v1/chat/completions", words) == 10
    assert tokens_of({"input": "a b c", "instructions": "d e"}, "/v1/responses", words) == 5
    assert tokens_of({"text": ["a b", "c"]}, "/generate", words) == 3
    assert tokens_of({"prompt": [1] * 7}, tokenizer=words) == 7, "ids need no counting"


@given(st.sampled_from(GENERATING), st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_body_has_a_text_or_none(path, body):
    assert prompt_text(path, body) is None or isinstance(prompt_text(path, body), str)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"[" * 100_000, b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}"]
)
def test_a_body_without_text(body):
    assert prompt_text("/v1/completions", body) is None


@given(st.integers(0, 6 * WHOLE), st.integers(1, 9))
def test_long_texts_are_counted_in_pieces(size, period):
    text = ("x" * (period - 1) + " ") * (size // period)
    assert sampled(text, lambda piece: piece.count(" ")) == pytest.approx(text.count(" "), rel=0.01, abs=9)


def test_what_reads_tokenizers(tmp_path, monkeypatch):
    file = tmp_path / "tokenizer.json"
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match="pip install tokenizers"):
        read_tokenizer(file)

    class Tokenizer:
        @classmethod
        def from_file(cls, path):
            if json.loads(Path(path).read_text("utf-8")) != {"model": 1}:
                raise Exception("data did not match any variant")
            return cls()

        def encode(self, text, add_special_tokens):
            assert not add_special_tokens
            return type("Encoding", (), {"ids": text.split()})

    fake = ModuleType("tokenizers")
    fake.Tokenizer = Tokenizer
    monkeypatch.setitem(sys.modules, "tokenizers", fake)
    with pytest.raises(InputError, match="no such file"):
        read_tokenizer(tmp_path)
    file.write_text("{}")
    with pytest.raises(InputError, match="no tokenizer"):
        read_tokenizer(file)
    file.write_text('{"model": 1}')
    assert read_tokenizer(tmp_path)("m", "three short words") == 3


@on_a_loop
async def test_a_served_request_is_counted_by_it():
    async with stage(mock(manual=True, ranks=1)) as s:
        s.service.lengths._tokenizer = words
        body = asked(prompt="one two three four")
        answer = await s.client.post(s.url + "/v1/completions", json=body | {"stream": True})
        assert s.view().own_context_tokens.sum() == 4
        while not answer.content.at_eof():
            s.engine.step()
            await answer.content.readany()


@on_a_loop
async def test_what_engines_throw_out_is_counted():
    async with stage(mock(ranks=2), mock(ranks=2)) as s:
        watch, tally = s.service.watch, s.service.tally
        target = next(t for t in s.service.workers.targets.values() if t.name == "i0")
        await watch.look(target)
        for preempted, counted in ((3, 3), (5, 5), (1, 6)):  # the last is another engine's count
            s.engine.core.preempted[1] = preempted
            await watch.look(target)
            await s.until(lambda counted=counted: tally.preemptions["i0"] == counted, "counted")
        async with s.client.get(s.admin + "/metrics") as answer:
            page = await answer.text()
        assert 'equipoise_engine_preemptions_total{worker="i0"} 6.0' in page
        assert 'equipoise_engine_preemptions_total{worker="i1"} 0.0' in page
