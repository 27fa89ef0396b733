"""What no reader may fall over: cut files, mixed engines, garbage; and that files are streamed."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from reader_cases import dropped, fpm, one, sglang, vllm, write

from equipoise.calibrate.readers import detect, formats, read
from equipoise.calibrate.readers.reading import FORMATS
from equipoise.errors import CalibrationError, EquipoiseError

FPM = "".join(fpm(c, r, at_s=c * 0.03) for c in range(200) for r in range(4))


@pytest.mark.parametrize("format", [f["name"] for f in formats()])
def test_the_example_of_every_format_is_told(tmp_path: Path, format: str) -> None:
    entry = next(f for f in formats() if f["name"] == format)
    assert "\n" not in entry["title"]
    path = write(tmp_path / "x", entry["example"] + "\n")
    assert detect(path) == format
    if format in (
        "sglang_log",
        "sglang_loads",
        "trtllm_log",
    ):  # a window needs two lines, so does a shifted time
        text = entry["example"] + "\n"
        path.write_text(
            text + text.replace("260,", "261,").replace("[100, 3200, 3010000", "[200, 6400, 6020000")
        )
    (records,) = read(path, kv_capacity_tokens=10**6)
    assert len(records) == 1
    assert records.batch[0] == 32
    assert 1e-4 < records.time_s[0] < 1


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_file_cut_short_names_the_line_reached(tmp_path: Path, suffix: str) -> None:
    rng = random.Random(0)
    text = "".join(fpm(c, batch=rng.randint(1, 99), wall=rng.random(), at_s=c) for c in range(2000)).encode()
    packed = gzip.compress(text) if suffix == "gz" else zstandard.ZstdCompressor().compress(text)
    path = tmp_path / f"f.jsonl.{suffix}"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    if suffix == "zst":  # one frame of one block: nothing can be read of it
        with pytest.raises(CalibrationError, match="ends in the middle"):
            one(path)
        return
    with pytest.raises(
        CalibrationError, match=r"f\.jsonl\.gz:\d+: the gzip data ends in the middle.*--skip-bad 1"
    ):
        one(path)
    records = one(path, skip_bad=1)
    assert 500 < len(records) < 2000
    assert dropped(records) == {"bad line": 1}
    assert records.dropped[0].first == f"{path}:{len(records) + 1}"
    assert any("the lines before it are used" in n for n in records.notes)


def test_corrupt_data_is_a_cut(tmp_path: Path) -> None:
    rng = random.Random(0)
    text = "".join(fpm(c, wall=rng.random(), at_s=c + rng.random()) for c in range(8000))
    packed = bytearray(gzip.compress(text.encode()))
    packed[-8] ^= 0xFF  # the checksum
    path = tmp_path / "f.gz"
    path.write_bytes(packed)
    with pytest.raises(CalibrationError, match=r"f\.gz:\d+: the gzip data is corrupt"):
        one(path)


def test_two_engines_in_one_file(tmp_path: Path) -> None:
    text = "".join(sglang(i) for i in range(5)) + vllm(1) + vllm(2)
    path = write(tmp_path / "x.log", text)
    with pytest.raises(CalibrationError, match=r"x\.log:6: the file is sglang_log .*vllm_log begins"):
        one(path)
    assert len(one(path, format="sglang_log")) == 4
    assert len(one(path, format="vllm_log", kv_capacity_tokens=10**6)) == 2
    mixed = write(tmp_path / "y.log", FPM + sglang(1))
    with pytest.raises(CalibrationError, match=r"y\.log:801: the file is fpm .*sglang_log begins"):
        one(mixed)


def test_files_of_two_engines(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", FPM), write(tmp_path / "b", vllm(1))
    with pytest.raises(CalibrationError, match=rf"{b}:1: the file is vllm_log, and {a} is fpm"):
        one([a, b])


def test_files_that_are_none(tmp_path: Path) -> None:
    empty, blank = write(tmp_path / "e", ""), write(tmp_path / "b", "\n \n")
    for path in (empty, blank):
        with pytest.raises(CalibrationError, match="the file is empty"):
            one(path)
    with pytest.raises(CalibrationError, match="there is no such file"):
        one(tmp_path / "nowhere")
    with pytest.raises(CalibrationError, match="is a folder"):
        one(tmp_path)
    with pytest.raises(CalibrationError, match="0 files"):
        read([])
    good = write(tmp_path / "g", FPM)
    with pytest.raises(CalibrationError, match="given twice"):
        read([good, good])
    with pytest.raises(CalibrationError, match="did you mean 'sglang_log'"):
        read(good, "sglanglog")
    with pytest.raises(CalibrationError, match="skip_bad = -1"):
        read(good, skip_bad=-1)
    with pytest.raises(CalibrationError, match="columns of its own"):
        read(good, "fpm", columns={"batch": "a"})
    with pytest.raises(CalibrationError, match="no known step-log format"):
        read(write(tmp_path / "t", "hello\nworld\n"))
    with pytest.raises(CalibrationError, match="it is not text"):
        read(write(tmp_path / "n", "\0\1\2\n"))


SEEDS = [f["example"].encode() + b"\n" for f in formats()]


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """An example with some bytes changed, cut out or doubled, perhaps packed and cut."""
    data = bytearray(draw(st.sampled_from(SEEDS)) * draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        data[at:end] = draw(
            st.binary(max_size=12) | st.sampled_from([b"-", b"9" * 30, b"NaN", b"null", b"\n", b"[", b"{"])
        )
    packed = draw(st.sampled_from(["plain", "gz", "cut"]))
    if packed == "plain":
        return bytes(data)
    whole = gzip.compress(bytes(data))
    return whole if packed == "gz" else whole[: draw(st.integers(0, len(whole)))]


@given(st.binary(max_size=200) | _damaged(), st.sampled_from([None, *FORMATS]), st.sampled_from([0, 1000]))
def test_any_bytes_give_a_value_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, format: str | None, skip_bad: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "x"
    path.write_bytes(data)
    try:
        tables = read(path, format, skip_bad=skip_bad, kv_capacity_tokens=10**6)
    except EquipoiseError as error:
        caught: str = str(error)
        tables = []
    else:
        caught = ""
    assert bool(tables) != bool(caught)
    assert "\n" not in caught
    for records in tables:
        assert len(records)
        assert (records.time_s > 0).all()
        assert (records.batch >= 0).all()


@pytest.mark.parametrize("kind", ["fpm", "sglang_log", "vllm_log", "columns"])
def test_a_log_is_streamed(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak is the columns and a few blocks, whatever the length of the file."""
    monkeypatch.setattr("equipoise._files.BLOCK_BYTES", 1 << 20)
    path = tmp_path / "big"
    filler = "some other line of the log " * 60 + "\n"
    with path.open("w") as file:
        file.write("step,batch,context_tokens,time_ms,other\n" if kind == "columns" else "")
        for c in range(20_000):
            if kind == "fpm":
                file.write(fpm(c, 0, at_s=c * 0.03) + fpm(c, 1, at_s=c * 0.03))
            elif kind == "columns":
                file.write(f"{c},32,262144,30.1,{'x' * 1000}\n")
            elif kind == "vllm_log":
                file.write(vllm(c, second=c % 3600) + filler)
            else:
                file.write(sglang(c % 3600, iteration=40 * c) + filler)
    size = path.stat().st_size
    assert size > 20e6
    tracemalloc.start()
    try:
        records = one(path, kv_capacity_tokens=10**6)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.7 * size
    assert len(records) >= 19_998


def test_a_device_or_a_pipe_is_said_to_be_one() -> None:
    with pytest.raises(CalibrationError, match=r"is a pipe or a device, .*write it to a file first"):
        read(["/dev/null"])
