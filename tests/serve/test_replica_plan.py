"""Who should own what: laws."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from equipoise.serve.replicas import plan

NAMES = st.sets(st.sampled_from([f"i{k}" for k in range(12)]))
ROUTERS = st.sets(st.sampled_from("abcdef"))


@st.composite
def pools(draw):
    instances, routers = draw(NAMES), draw(ROUTERS)
    owners = {name: draw(st.sampled_from("abcdefgh")) for name in draw(NAMES)}
    return instances, owners, routers


@given(pools())
def test_everything_is_owned_evenly_by_those_who_live(pool):
    instances, owners, routers = pool
    found = plan(instances, owners, routers)
    assert set(found) == (instances if routers else set())
    assert set(found.values()) <= routers
    counts = [list(found.values()).count(router) for router in routers]
    assert not routers or max(counts) - min(counts) <= 1


@given(pools())
def test_a_plan_that_is_followed_stands(pool):
    instances, owners, routers = pool
    found = plan(instances, owners, routers)
    assert plan(instances, found, routers) == found


@given(pools())
def test_no_more_moves_than_evenness_takes(pool):
    instances, owners, routers = pool
    found = plan(instances, owners, routers)
    moved = sum(1 for name in instances if owners.get(name) in routers and found[name] != owners[name])
    if not routers:
        return
    low, more = divmod(len(instances), len(routers))
    owned = sorted((sum(owners.get(n) == r for n in instances) for r in routers), reverse=True)
    assert moved == sum(max(count - low - (k < more), 0) for k, count in enumerate(owned))


@given(pools(), st.randoms())
def test_the_order_of_anything_does_not_matter(pool, rng):
    instances, owners, routers = pool
    shuffled = [sorted(instances), sorted(routers)]
    for one in shuffled:
        rng.shuffle(one)
    assert plan(shuffled[0], owners, shuffled[1]) == plan(instances, owners, routers)
