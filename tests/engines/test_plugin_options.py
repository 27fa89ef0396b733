"""What the environment asks of the plug-ins; ledgers side by side in shared memory."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from equipoise.engines.plugins import Options, Peers, read_options, sglang, vllm
from equipoise.engines.plugins.options import VARIABLES
from equipoise.errors import EngineError, InputError


def test_nothing_asked_is_the_defaults() -> None:
    assert read_options({}) == Options()
    assert read_options({"EQUIPOISE_POLICY": " ", "HOME": "/", "EQUIPOISE_CACHE": "x"}) == Options()


def test_everything_asked() -> None:
    asked = read_options(
        {
            "EQUIPOISE_POLICY": "dualpath,z=1.5", "EQUIPOISE_COST": "v2", "EQUIPOISE_RESERVE_TOKENS": "4096",
            "EQUIPOISE_AFFINITY": "0.02", "EQUIPOISE_SEED": "7", "EQUIPOISE_SHADOWS": "dualpath,z=1.1  round_robin",
            "EQUIPOISE_DECISIONS": "d.jsonl", "EQUIPOISE_LOG_S": "0", "EQUIPOISE_SETTLE_S": "0.1",
            "EQUIPOISE_ANY_VERSION": "1",
        }
    )  # fmt: skip
    assert asked == Options(
        policy="dualpath,z=1.5", cost="v2", reserve_tokens=4096, affinity=0.02, seed=7,
        shadows=("dualpath,z=1.1", "round_robin"), decisions="d.jsonl", log_s=0.0, settle_s=0.1, any_version=True,
    )  # fmt: skip
    assert {name.lower() for name in VARIABLES} - {"vllm", "sglang"} == set(Options.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SEED", "-1", "must be a whole number from 0"),
        ("SEED", "1.5", "must be a whole number"),
        ("AFFINITY", "nan", "must be a number from 0 to 10"),
        ("AFFINITY", "11", "must be a number from 0 to 10"),
        ("LOG_S", "soon", "'soon'; must be a number"),
        ("ANY_VERSION", "true", "must be 0 or 1"),
        ("SHADOWS", "brh", "set EQUIPOISE_DECISIONS"),
        ("RESERVE_TOKEN", "1", "did you mean EQUIPOISE_RESERVE_TOKENS?"),
    ],
)
def test_what_cannot_be(name: str, value: str, words: str) -> None:
    with pytest.raises(InputError, match=r"EQUIPOISE_") as caught:
        read_options({"EQUIPOISE_" + name: value})
    assert words in str(caught.value)


def test_engines_find_the_plug_ins() -> None:
    """The names of the entry points; engines list them, and people name them in VLLM_PLUGINS and SGLANG_PLUGINS."""
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'equipoise-vllm = "equipoise.engines.plugins.vllm:register"' in project
    assert 'equipoise-sglang = "equipoise.engines.plugins.sglang:register"' in project
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        assert f'[project.entry-points."{group}"]' in project
        for found in entry_points(group=group):
            if found.name.startswith("equipoise-"):
                assert callable(found.load())


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_process_that_has_not_asked_loads_next_to_nothing(engine: str) -> None:
    code = (
        f"import sys; from equipoise.engines.plugins.{engine} import register; register(); "
        "print([m for m in ('numba', 'scipy', 'polars', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- peers -----------------------------------------------------------------------------------------------------------


def test_peers_see_the_sums_of_the_others(tmp_path: Path) -> None:
    three = [Peers("key", 3, i, 4, tmp_path) for i in range(3)]
    for i, one in enumerate(three):
        one.write(np.full(4, i + 1), np.arange(4) * 10**i)
    assert [one.read(4)[0].tolist() for one in three] == [[5] * 4, [4] * 4, [3] * 4]
    assert three[0].read(4)[1].tolist() == [0, 110, 220, 330]
    assert not list(tmp_path.iterdir()), "once all are there its name is gone"


def test_a_row_does_not_outlive_its_process(tmp_path: Path) -> None:
    first = Peers("key", 2, 0, 4, tmp_path)
    first.write(np.full(4, 9), np.full(4, 9))
    again = Peers("key", 2, 0, 4, tmp_path)
    other = Peers("key", 2, 1, 4, tmp_path)
    assert other.read(4)[0].tolist() == [0] * 4
    again.write(np.full(4, 1), np.full(4, 2))
    assert other.read(4)[1].tolist() == [2] * 4


def test_other_keys_are_other_files(tmp_path: Path) -> None:
    Peers("a", 2, 0, 4, tmp_path), Peers("b", 2, 0, 4, tmp_path)
    (one, two) = tmp_path.iterdir()
    assert one.stat().st_mode & 0o777 == 0o600
    assert one != two


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    one = Peers("a", 2, 0, 4, tmp_path)
    one.path.unlink()
    (tmp_path / "target").write_bytes(b"")
    one.path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="Too many levels"):
        Peers("a", 2, 0, 4, tmp_path)
    one.path.unlink()
    one.path.mkdir()
    with pytest.raises((OSError, EngineError)):
        Peers("a", 2, 0, 4, tmp_path)


def test_many_ranks_have_room(tmp_path: Path) -> None:
    a, b = (Peers("key", 2, i, 3000, tmp_path) for i in range(2))
    a.write(np.arange(3000), np.arange(3000))
    assert b.read(3000)[0].tolist() == list(range(3000))


def test_the_documentation_has_every_variable_and_version() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    howto = " ".join((docs / "howto/in-engine.md").read_text(encoding="utf-8").replace("`", "").split())
    for name, meaning in VARIABLES.items():
        words = meaning.replace("DECISIONS", "EQUIPOISE_DECISIONS")
        assert f"| EQUIPOISE_{name} | {words.split(';')[0]}" in howto, name
    reference = (
        (docs / "reference/engines.md").read_text(encoding="utf-8").partition("## Inside the engine")[2]
    )
    for version in (*vllm.RUN_ON, *sglang.RUN_ON):
        assert f"{version}: " in reference
