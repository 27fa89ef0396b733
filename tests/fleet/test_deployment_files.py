"""Deployment files: what is written is read again, mistakes are named, the presets are what they say."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import InputError
from equipoise.fleet import (
    Change,
    Clients,
    Deployment,
    Hardware,
    KvMemory,
    Losses,
    Prefill,
    Slo,
    Speculation,
    StepExtras,
    Transfer,
)
from equipoise.fleet import config as fleet_config
from equipoise.fleet.files import TABLES, dumps, load, loads, names, preset_text, summary, to_dict
from equipoise.replay import Information, Pool
from equipoise.replay.information import Knows

SECONDS = st.floats(0, 1e9)
MAYBE = st.none() | SECONDS


@st.composite
def deployments(draw: Any) -> Deployment:
    instances, ranks = draw(st.integers(1, 40)), draw(st.integers(1, 64))
    capacity = draw(st.none() | st.integers(1, 1 << 47))
    pool = Pool(
        instances,
        ranks,
        capacity,
        draw(st.none() | st.integers(1, 1 << 40)),
        draw(st.integers(0, min((capacity or 1 << 20) - 1, 1 << 20))),
        draw(st.integers(1, instances)),
    )
    hardware = []
    for _ in range(draw(st.integers(0, 3))):
        first = draw(st.integers(0, instances - 1))
        last = draw(st.integers(first, instances - 1))
        maybe = st.none() | st.integers(1, 1 << 20)
        hardware.append(Hardware(first, last, draw(maybe), draw(maybe), draw(st.floats(1e-3, 1e3))))
    changes = st.builds(
        Change,
        SECONDS,
        st.sampled_from(get_args(fleet_config.What)),
        st.integers(0, instances - 1),
        st.none() | st.integers(0, ranks - 1),
        SECONDS,
        SECONDS,
    )
    drafts = draw(st.integers(0, 8))
    survival = st.lists(st.floats(0, 1), min_size=drafts, max_size=10)
    knows = draw(st.sampled_from(get_args(Knows)))
    late = (1, 0, 0.0, 0.0)
    if knows != "exact":
        late = draw(st.tuples(st.integers(1, 4096), st.integers(0, 4096), SECONDS, SECONDS))
    split = draw(st.sampled_from(["request", "instance"]))
    if split == "instance" and pool.groups not in (1, instances):
        pool = replace(pool, groups=1)
    price = st.floats(0, 1e6)
    return Deployment(
        pool,
        tuple(hardware),
        draw(
            st.builds(
                Prefill,
                st.sampled_from(get_args(fleet_config.PrefillPlace)),
                SECONDS,
                SECONDS,
                st.integers(1, 300),
                st.integers(1, 64),
                st.integers(1, 1 << 24),
                st.booleans(),
            )
        ),
        draw(st.builds(Transfer, SECONDS, SECONDS)),
        draw(
            st.builds(
                KvMemory,
                st.sampled_from([1 << n for n in range(17)]),
                st.sampled_from(get_args(fleet_config.Preemption)),
                SECONDS,
                st.integers(0, 1 << 20),
            )
        ),
        draw(
            st.builds(
                StepExtras,
                price,
                st.lists(st.integers(1, 1 << 20), unique=True).map(sorted).map(tuple),
                *(price,) * 5,
                st.floats(1, 1000),
                st.floats(0, 3),
                st.floats(0, 3),
            )
        ),
        Speculation(
            drafts,
            draw(st.floats(0, 1) | survival.map(lambda s: tuple(sorted(s, reverse=True)))),
            draw(st.floats(0, 1)),
        ),
        draw(st.builds(Clients, st.floats(0, 1), MAYBE)),
        tuple(draw(st.lists(changes, max_size=3))),
        draw(st.builds(Losses, SECONDS, st.integers(0, 1000))),
        Information(knows, draw(st.integers(1, 64)), *late, split),
        draw(st.builds(Slo, MAYBE, MAYBE)),
    )


@given(deployments())
def test_what_is_written_is_read_again(deployment: Deployment) -> None:
    again = loads(dumps(deployment))
    assert again == deployment
    assert repr(again) == repr(deployment)  # == does not tell 1 from 1.0, nor a list from a tuple
    assert dumps(again) == dumps(deployment)


@given(deployments(), st.data())
def test_what_is_left_out_is_off(deployment: Deployment, data: st.DataObject) -> None:
    tables = to_dict(deployment)
    dropped = data.draw(st.sampled_from(sorted(set(tables) - {"pool"}) or ["slo"]))
    tables.pop(dropped, None)
    expected = replace(deployment, **{dropped: getattr(Deployment(), dropped)})
    assert loads(tomli_w.dumps(tables)) == expected


def test_a_plain_deployment_is_an_empty_file() -> None:
    assert loads("") == Deployment()
    assert set(to_dict(Deployment())) == {"pool"}


def test_sequences_and_numbers_of_any_kind_are_equal() -> None:
    made = Deployment(
        Pool(np.int64(2), np.int64(4)),  # type: ignore[arg-type]
        [Hardware(0, 1, speed=0.5)],  # type: ignore[arg-type]
        changes=[Change(1, "die", 0)],  # type: ignore[arg-type]
        step=StepExtras(graph_sizes=[1, 2]),  # type: ignore[arg-type]
        speculation=Speculation(1, [0.5]),  # type: ignore[arg-type]
    )
    assert loads(dumps(made)) == made
    assert hash(loads(dumps(made))) == hash(made)


def test_every_table_and_key_is_a_field() -> None:
    assert list(TABLES) == [f.name for f in fields(Deployment)]


BAD = [
    ("[pol]", "f.toml: unknown key 'pol'; did you mean 'pool'?"),
    ("[pool]\nrank = 3", "f.toml, pool: unknown key 'rank'; did you mean 'ranks'?"),
    ("[pool]\nranks = 0", "f.toml, pool: ranks = 0; must be a whole number from 1 to 32768"),
    ("[pool]\nranks = '8'", "f.toml, pool: ranks = '8'; must be a whole number"),
    ("[pool]\nranks = 8.0", "f.toml, pool: ranks = 8.0; must be a whole number"),
    ("[pool]\nranks = true", "f.toml, pool: ranks = True; must be a whole number"),
    ("[prefill]\nwhere = 'pol'", "f.toml, prefill: where = 'pol'; use one of none, delay, pool, ranks"),
    ("[prefill]\nprefix_cache = 1", "prefix_cache = 1; must be true or false"),
    ("[transfer]\nfixed_s = nan", "f.toml, transfer: fixed_s = nan; must be a number from 0"),
    ("[transfer]\nfixed_s = 1" + 400 * "0", "fixed_s = a number of more than 30 digits; must be a number"),
    ("[memory]\nblock_tokens = 3", "f.toml, memory: block_tokens = 3; must be a power of two"),
    ("[step]\ngraph_sizes = [2, 1]", "f.toml, step: graph_sizes = [2, 1]; must rise"),
    ("[step]\ngraph_sizes = [1, 2.5]", "must be a list of whole numbers"),
    ("[speculation]\nacceptance = 'x'", "acceptance = 'x'; must be a number or a list of numbers"),
    ("[speculation]\ndrafts = 2\nacceptance = [0.5]", "f.toml, speculation: acceptance has 1 entries"),
    ("[clients]\nabort_share = 2", "f.toml, clients: abort_share = 2.0; must be a number from 0 to 1"),
    ("[[changes]]\nat_s = 1\nwhat = 'die'", "f.toml, changes[0]: instance is missing; must be a whole"),
    ("[[changes]]\nat_s = -1\nwhat = 'die'\ninstance = 0", "f.toml, changes[0]: at_s = -1.0; must be"),
    ("[[changes]]\nat_s = 1\nwhat = 'die'\ninstance = 1", "f.toml: change of instance 1"),
    ("[[hardware]]\nfirst = 0\nlast = 4", "f.toml: hardware.last = 4 in a pool of 1 instances"),
    ("[information]\ndelay_s = inf\nknows = 'ledger'", "f.toml, information: delay_s = inf"),
    ("[information]\nperiod_s = 1", "f.toml, information: reports that are late"),
    ("[slo]\nttft_ms = -1", "f.toml, slo: ttft_ms = -1.0; must be a number"),
    ("[[pool]]\nranks = 1", "pool = [{'ranks': 1}]; must be a table"),
    ("hardware = 3", "hardware = 3; must be a list"),
    ("schema = 'equipoise.deployment/9'", "must be 'equipoise.deployment/1'"),
    ("pool", "f.toml: is not TOML"),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=[t[:40] for t, _ in BAD])
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        loads(text, "f.toml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("make", "words"), [
    (lambda p: p / "no.toml", "cannot be read (No such file or directory)"),
    (lambda p: "dp63", "no deployment 'dp63'; did you mean 'dp64'"),
    (lambda p: p, "cannot be read"),
])  # fmt: skip
def test_files_that_are_none(make: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"deployment|cannot") as caught:
        load(make(tmp_path))
    assert words in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not text"):
        load(path)


@pytest.mark.parametrize("name", names())
def test_a_preset_is_a_file_like_any_other(name: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.toml"
    path.write_text(preset_text(name))
    assert load(path) == load(name) == load(name.upper())
    assert 20 < len(summary(name)) <= 80
    keys = {f.name for part in TABLES.values() for f in fields(part)}
    given_keys = {k for t in tomllib.loads(preset_text(name)).values() if isinstance(t, dict) for k in t}
    assert given_keys <= keys
    assert preset_text(name).count("# ") >= 3, "where do the numbers come from?"


def test_the_presets_are_what_their_names_say() -> None:
    big = load("200p100d")
    assert (big.pool.instances, big.pool.ranks, big.prefill.where, big.prefill.instances) == (
        100,
        64,
        "pool",
        200,
    )
    assert load("dp8").pool.total_ranks == 8
    assert load("dp64").pool.total_ranks == 64
    assert load("colocated").prefill.where == "ranks"
    assert load("speculative").speculation.drafts > 0
    assert [c.what for c in load("faults").changes] == ["die", "return"]
