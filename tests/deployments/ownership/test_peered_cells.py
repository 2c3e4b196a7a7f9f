"""Three cells at random: bursts, digests that are lost, late and replayed, a cell that lies, partitions, specs that
differ, owners that change, replicas that come and go, clients that leave. Each request is ended once, crosses at most
one hop and no residency line, and its client gets the bytes of one answer."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cluster.spec import ClusterSpec
from deployments.ownership import dispatcher, lane_owner
from tests.deployments.ownership.peered_cells import Ask, Cell, World
from tests.deployments.ownership.virtual_time import VirtualLoop, virtual_time
from tests.deployments.peering.setups import CELLS, KEY, MODEL, make_spec

UNTIL_S = 8.0
TENANTS = ("free", "local", "german")


def spec_of(
    medical: list[str] | None, german: list[str] | None, model: list[str] | None = None, prices: Any = (1.0, 3.0, 2.0)
) -> ClusterSpec:
    """Residency of a class, of a tenant and of the model; a tenant that uses its own region alone; a price in each
    region."""
    return make_spec(
        regions=[
            {"name": cell, "endpoint": f"https://{cell}.org", "pools": [{"name": "p", "price_usd_per_hour": price}]}
            for cell, price in zip(CELLS, prices, strict=True)
        ],
        models=[
            {"name": MODEL, "source": "s", "settings": {"max_model_len": 10_000}, "residency": model, "regions": model}
        ],
        classes=[
            {"name": "interactive", "ttft_ms": 500},
            {"name": "batch", "ttft_ms": 10_000, "prefers": "price"},
            {"name": "medical", "ttft_ms": 500, "residency": medical},
        ],
        tenants=[
            {"name": "free", "keys": [KEY + "1"]},
            {"name": "local", "keys": [KEY + "2"], "peers": []},
            {"name": "german", "keys": [KEY + "3"], "residency": german},
        ],
    )


LISTS = st.none() | st.lists(st.sampled_from(CELLS), min_size=1, unique=True)
TIMES = st.floats(0.0, UNTIL_S)
BURSTS = st.tuples(
    TIMES,
    st.sampled_from(("eu", "eu", "us", "ap")),
    st.integers(1, 40),
    st.sampled_from(("interactive", "interactive", "batch", "medical")),
    st.sampled_from(("free", "free", *TENANTS)),
    st.sampled_from((50, 250, 1_500)),
)
EVENTS = st.tuples(
    TIMES,
    st.sampled_from(CELLS),
    st.sampled_from(("owner", "owner after a while", "replica comes", "replica goes", "falls at a guest")),
)


@st.composite
def stories(draw: st.DrawFn) -> dict[str, Any]:
    """What happens, and when."""
    pairs = st.sampled_from([frozenset(pair) for pair in itertools.combinations(CELLS, 2)])
    prices = draw(st.permutations((1.0, 2.0, 3.0)))
    other = draw(st.none() | st.sampled_from(CELLS))
    return {
        "spec": spec_of(draw(LISTS), draw(LISTS), draw(st.none() | LISTS), prices),
        "other": {} if other is None else {other: spec_of(draw(LISTS), draw(LISTS), draw(st.none() | LISTS), prices)},
        "replicas": {cell: draw(st.integers(0, 2)) for cell in CELLS},
        "seed": draw(st.integers(0, 1 << 32)),
        "digest_loss": draw(st.sampled_from((0.0, 0.0, 0.3))),
        "replays": draw(st.sampled_from((0.0, 0.3))),
        "liar": draw(st.sampled_from(("", "", *CELLS))),
        "cuts": draw(st.lists(st.tuples(TIMES, st.one_of(TIMES, TIMES, TIMES, st.just(1e9)), pairs), max_size=2)),
        "bursts": draw(st.lists(BURSTS, min_size=1, max_size=3)),
        "events": draw(st.lists(EVENTS, max_size=4)),
    }


def happen(cell: Cell, what: str) -> None:
    match what:
        case "owner":
            cell.change_owner()
        case "owner after a while":
            cell.change_owner(gap_s=0.4)
        case "replica comes":
            cell.add_replica()
        case "replica goes":
            cell.lose_replica()
        case "falls at a guest":
            cell.falls_at_guest = True


def lines(spec: ClusterSpec, ask: Ask) -> list[tuple[str, ...]]:
    """The lists of regions that hold for a request. Stated here anew."""
    request = ask.request
    found: list[Any] = [spec.model(MODEL).residency]
    found += [one.residency for one in spec.classes if one.name == request.traffic_class]
    found += [one.residency for one in spec.tenants if one.name == request.tenant]
    return [one for one in found if one is not None]


def check(world: World) -> None:
    for ask in world.asks:
        assert len(ask.endings) == 1, (ask, "each request is ended once")
        assert len(ask.served_by) <= 1, (ask, "its client gets the bytes of one cell")
        assert ask.first_bytes <= 1, (ask, "and of one answer")
        assert ask.hops <= 1
        assert (ask.first_bytes == 1) >= (ask.endings == ["answered"])
        for name in ask.entered:
            for cell in (ask.home, name):
                assert all(name in line for line in lines(world.cells[cell].spec, ask)), (ask, name)
            assert name == ask.home or ask.request.tenant != "local"
    for cell in world.cells.values():
        own = cell.dispatcher.own
        assert own is not None
        assert own.peering is not None
        assert not len(cell.dispatcher), "no pending request is left"
        assert not [*own.records], own.records.counts
        assert own.scheduler.is_idle
        snapshot = own.snapshot()
        assert snapshot.placed + snapshot.adopted == sum(snapshot.endings.values())
        assert snapshot.away == 0
        assert not any(use.at_once for use in own.scheduler.tenant_use())
        own.peering.ask()
        core = own.peering.core
        assert (own.peering._homeless, core.away, core.offered) == ({}, {}, ())
        for peer in own.peering.core.peers.by_cell.values():
            assert (peer.unseen, peer.seen, peer.on_its_way) == ({}, {}, {}), "what has ended takes no room"


def run(story: dict[str, Any]) -> World:
    loop, errors = VirtualLoop(), []
    loop.set_exception_handler(lambda loop, context: errors.append(context))

    async def go() -> World:
        specs = dict.fromkeys(CELLS, story["spec"]) | story.get("other", {})
        world = World(asyncio.get_running_loop(), specs, story["replicas"], story["seed"])
        world.digest_loss, world.replays = story["digest_loss"], story.get("replays", 0.0)
        world.liar = story.get("liar", "")
        world.cuts = [(at_s, at_s + for_s, pair) for at_s, for_s, pair in story["cuts"]]
        for at_s, home, count, traffic_class, tenant, prompt in story["bursts"]:
            for _ in range(count):
                patience_s = world.dice.choice((2.0, 15.0))
                names = {"traffic_class": traffic_class, "tenant": tenant}
                slo_s = 10.0 if traffic_class == "batch" else 0.5
                world.ask(at_s + world.dice.uniform(0.0, 2.0), home, prompt, slo_s, patience_s, **names)
        for at_s, name, what in story["events"]:
            world.after(at_s, lambda name=name, what=what: happen(world.cells[name], what))  # type: ignore[misc]
        await world.run(UNTIL_S + 3.0, 10.0)
        for cell in world.cells.values():
            cell.dispatcher.hand_on(1e12)
        check(world)
        for cell in world.cells.values():
            cell.dispatcher.follow(None)
        return world

    with virtual_time(loop, dispatcher, lane_owner):
        try:
            world = loop.run_until_complete(go())
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
    assert not errors, errors[0]
    return world


OFFERED_AGAIN: dict[str, Any] = {
    "spec": spec_of(["us"], ["eu", "us", "ap"]),
    "replicas": {"eu": 0, "us": 0, "ap": 1},
    "seed": 3558350731,
    "digest_loss": 0.0,
    "cuts": [(2.960521513943511, 6.0450562558395955, frozenset({"eu", "us"}))],
    "bursts": [
        (6.547820568460186, "eu", 3, "interactive", "german", 250),
        (5.688124180369394, "eu", 16, "interactive", "free", 250),
        (3.8397698807749654, "us", 29, "interactive", "free", 50),
    ],
    "events": [
        (2.105344911223238, "eu", "replica goes"),
        (6.010379375433022, "eu", "owner after a while"),
        (7.411029538259135, "ap", "replica comes"),
        (3.8187759184100214, "us", "replica comes"),
    ],
}
"""The next owner of `eu` hands a request over to `ap` again, where the guest of the first attempt still runs."""


NOBODY_TAKES_IT: dict[str, Any] = {
    "spec": spec_of(["eu", "us"], None),
    "replicas": {"eu": 2, "us": 0, "ap": 0},
    "seed": 16443204,
    "digest_loss": 0.0,
    "cuts": [],
    "bursts": [
        (4.46747442713558, "eu", 21, "interactive", "free", 50),
        (1.9800865563045549, "eu", 21, "interactive", "free", 50),
        (1.9800865563045549, "ap", 1, "medical", "free", 50),
    ],
    "events": [],
}
"""A request that its home may not serve comes back from its peer, and is rejected."""


SILENT_FOR_GOOD: dict[str, Any] = {
    "spec": spec_of(None, None),
    "replicas": {"eu": 0, "us": 2, "ap": 0},
    "seed": 1,
    "digest_loss": 0.0,
    "cuts": [(2.5, 1e9, frozenset({"eu", "us"}))],
    "bursts": [(1.5, "eu", 20, "interactive", "free", 1_500)],
    "events": [(3.0, "eu", "owner")],
}
"""A peer falls silent and stays so, and then its home's owner changes: what the peer has returns all the same."""


def tell(count: int) -> Counter[str]:
    """Plays so many stories. What happened in all."""
    total: Counter[str] = Counter()

    @settings(suppress_health_check=list(HealthCheck), max_examples=count, deadline=None, database=None)
    @example(OFFERED_AGAIN)
    @example(NOBODY_TAKES_IT)
    @example(SILENT_FOR_GOOD)
    @given(stories())
    def each(story: dict[str, Any]) -> None:
        world = run(story)
        total["asks"] += len(world.asks)
        total["offers"] += world.offers
        total.update(f"served {bool(ask.served_by - {ask.home})}" for ask in world.asks)
        total.update(ask.endings[0] for ask in world.asks)

    each()
    print(dict(total))
    return total


@pytest.mark.whole
def test_many_random_stories() -> None:
    assert tell(40)["served True"] > 40, "the stories are worth something"


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_very_many_random_stories() -> None:
    assert tell(3_000)["served True"] > 4_500


def test_an_overloaded_cell_is_helped() -> None:
    """One cell gets three times what it can do at once; its peers have little to do."""
    story = {
        "spec": spec_of(None, None),
        "replicas": dict.fromkeys(CELLS, 2),
        "seed": 1,
        "digest_loss": 0.0,
        "cuts": [],
        "bursts": [(1.5 + 0.5 * number, "eu", 8, "interactive", "free", 100) for number in range(6)],
        "events": [(3.0, "eu", "owner"), (3.5, "us", "replica goes")],
    }
    world = run(story)
    assert sum(bool(ask.served_by - {ask.home}) for ask in world.asks) > 5
    assert {name for ask in world.asks for name in ask.served_by} >= {"eu", "us", "ap"}
