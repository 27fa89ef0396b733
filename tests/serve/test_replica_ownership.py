"""Leases and epochs: a state machine on a store that fails, forgets, answers late; and the script in Redis itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from replica_cases import RedisServer

from equipoise.errors import InputError
from equipoise.serve.replicas import Ownership, RedisStore, Timing
from equipoise.serve.replicas.store import Beat, Row, Seen, StoreError, Wish

TIMING = Timing(ttl_s=6.0, beats=6, patience_beats=2)
NAMES = ("x", "y", "z")


@dataclass
class FakeStore:
    """The script in Python: the twin that the state machine runs on."""

    now: float = 0.0
    born: float | None = None
    epochs: dict = field(default_factory=dict)
    owners: dict = field(default_factory=dict)
    members: dict = field(default_factory=dict)

    def forget(self):
        self.born, self.epochs, self.owners, self.members = None, {}, {}, {}

    def beat(self, beat: Beat) -> Seen:
        if self.born is None:
            self.born = self.now
        self.members = {k: v for k, v in self.members.items() if v[1] > self.now}
        self.owners = {k: v for k, v in self.owners.items() if v[3] > self.now}
        if beat.url:
            self.members[beat.router] = (beat.url, self.now + beat.ttl_s)
        else:
            self.members.pop(beat.router, None)
        rows = {}
        for wish in beat.wishes:
            held = self.owners.get(wish.name)
            there = held[1] if held else 0
            last, epoch, write = max(self.epochs.get(wish.name, 0), there), wish.epoch, False
            if wish.want == "keep":
                if held and held[0] == beat.router:
                    write = there == epoch
                else:
                    write = there < epoch if held else last <= epoch
            elif wish.want == "take":
                if held and held[0] == beat.router:
                    epoch, write = there, True
                elif not held and self.now - self.born >= beat.grace_s:
                    epoch, write = max(last, epoch) + 1, True
            elif wish.want == "drop" and held and held[0] == beat.router and there == epoch:
                del self.owners[wish.name]
            if write:
                self.epochs[wish.name] = epoch
                self.owners[wish.name] = (beat.router, epoch, self.now, self.now + beat.ttl_s, wish.value)
            found = self.owners.get(wish.name)
            rows[wish.name] = Row(found[0], found[1], self.now - found[2], found[4]) if found else Row()
        return Seen("secret", {k: v[0] for k, v in self.members.items()}, rows)


class Leases(RuleBasedStateMachine):
    """Three routers whose clocks have nothing to do with each other or with the store's."""

    SKEW = (0.0, 1e6, -1e6)

    def __init__(self):
        super().__init__()
        self.store, self.now, self.late = FakeStore(), 0.0, []
        self.routers, self.serial = [], 0
        self.history = {name: [] for name in NAMES}
        for k in range(3):
            self.routers.append(self.new(k))

    def new(self, k):
        self.serial += 1
        name = f"r{self.serial}"

        def gained(instance, epoch):
            self.history[instance].append(epoch)
            one.mine[instance].serving = True

        one = Ownership(name, f"http://{name}", TIMING, gained, lambda *_: None, lambda *_: None)
        one.set_names(NAMES)
        return one

    def clock(self, k):
        return self.now + self.SKEW[k]

    @rule(k=st.integers(0, 2), how=st.sampled_from(["well", "well", "well", "unheard", "fails", "late"]))
    def beat(self, k, how):
        one, sent = self.routers[k], self.clock(k)
        beat = one.beat(sent, "secret", {})
        if how == "fails":
            one.failed(StoreError("no"), sent, sent)
            return
        seen = self.store.beat(beat)
        if how == "unheard":
            one.failed(StoreError("no answer"), sent, sent)
        elif how == "late":
            self.pass_time(0.4)
            one.seen(beat, seen, sent, self.clock(k))
        else:
            one.seen(beat, seen, sent, self.clock(k))

    @rule(seconds=st.sampled_from([0.2, 1.0, 1.0, 3.0, 8.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.store.now += seconds

    @rule()
    def all_beat(self):
        for k in range(3):
            self.beat(k, "well")
        self.pass_time(1.0)

    @rule(k=st.integers(0, 2))
    def killed_and_restarted(self, k):
        self.routers[k] = self.new(k)

    @rule(k=st.integers(0, 2))
    def leaves(self, k):
        self.routers[k].leaving = True

    @rule(a=st.integers(0, 2), b=st.integers(0, 2), name=st.sampled_from(NAMES))
    def peers_talk(self, a, b, name):
        if a != b and name in self.routers[a].mine:
            self.routers[b].heard(name, self.routers[a].router, self.routers[a].mine[name].epoch)

    @invariant()
    def one_confirmed_owner(self):
        for name in NAMES:
            sure = [one for k, one in enumerate(self.routers) if one.confirmed(name, self.clock(k))]
            assert len(sure) <= 1, name

    @invariant()
    def epochs_never_come_again(self):
        for epochs in self.history.values():
            assert epochs == sorted(set(epochs))

    @invariant()
    def nobody_has_the_same_epoch(self):
        for name in NAMES:
            held = [one.mine[name].epoch for one in self.routers if name in one.mine]
            assert len(held) == len(set(held))

    def teardown(self):
        for k, one in enumerate(self.routers):
            if one.leaving:
                self.routers[k] = self.new(k)
        for _ in range(25):
            self.all_beat()
        owned = [set(one.mine) for one in self.routers]
        assert sorted(map(len, owned)) == [1, 1, 1]
        assert set.union(*owned) == set(NAMES)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_script_does_what_its_twin_does(tmp_path):
    """The same beats to Redis and to the twin, with times so far apart that nothing hangs on a millisecond."""
    server = RedisServer(tmp_path)
    server.start()

    async def body():
        store, twin = RedisStore(server.url, "p"), FakeStore()

        async def both(router, *wishes, url="http://r", ttl=0.3, wait=0.0):
            await asyncio.sleep(wait)
            twin.now += wait
            beat = Beat(router, url, ttl, 0.3, "secret", wishes)
            found, expected = await store.beat(beat), twin.beat(beat)
            assert found.members == expected.members
            assert {k: (r.router, r.epoch, r.value) for k, r in found.rows.items()} == {
                k: (r.router, r.epoch, r.value) for k, r in expected.rows.items()
            }
            assert found.secret == "secret"
            return found.rows

        assert (await both("a", Wish("x", "take")))[
            "x"
        ].router == ""  # the store is new: owners from before first
        await both("a", Wish("x", "take"), wait=0.5)
        await both("a", Wish("x", "take"))
        await both("b", Wish("x", "take"), Wish("y", "take"))
        await both("a", Wish("x", "keep", 1, b"\x00\xff"), Wish("y"))
        assert (await both("b", Wish("x", "keep", 0), Wish("y", "keep", 1)))["x"].value == b"\x00\xff"
        await both("b", Wish("x", "drop", 1))
        await both("a", Wish("x", "drop", 2))
        rows = await both("b", Wish("x", "take", 7), wait=0.5)
        assert rows["x"] == Row("b", 8)
        await both("a", Wish("x", "keep", 1))
        await both("a", Wish("x", "keep", 9))  # the higher epoch wins
        await both("b", Wish("x", "keep", 8))
        await both("a", Wish("x", "keep", 9), wait=0.5)  # expired, but nobody has taken it
        await both("b", Wish("y", "take"), wait=0.5)
        await both("b", Wish("y"), url="")
        await store._redis.flushall()
        twin.forget()
        await both("b", Wish("x", "take", 9), Wish("y"))
        await both("a", Wish("x", "keep", 9))
        assert (await both("b", Wish("x", "take", 9)))["x"].router == "a"
        server.stop()
        with pytest.raises(StoreError):
            await store.beat(Beat("a", "u", 1, 1, "s", []))
        await store.close()

    try:
        asyncio.run(asyncio.wait_for(body(), 30))
    finally:
        server.stop()


def test_what_is_no_address():
    with pytest.raises(InputError, match="the address of Redis is none"):
        RedisStore("http://somewhere")
