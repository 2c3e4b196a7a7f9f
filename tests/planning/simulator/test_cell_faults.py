"""Faults of cells and links: whatever befalls them, each request ends in one way, nothing is left behind in any cell,
and what the cells do is what the fault allows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import Bounds
from benchmarks.peering import attainment
from deployments.scheduling import SchedulingPolicy
from planning.simulator.cell import CellSettings
from planning.simulator.cells import CellsSimulator
from planning.simulator.cells_outcome import CellsOutcome, replica_hours
from planning.simulator.clients import ClientLists
from planning.simulator.faults import Fault, FaultKind, check_timeline
from planning.simulator.outcome import Life
from planning.simulator.peered_cell import CellPlan, PeeredCell
from planning.simulator.scaling import SimulatedScaling
from tests.benchmarks.test_policy_faults import Watching
from tests.deployments.peering.setups import CELLS, MODEL, make_spec
from tests.planning.simulator.test_cells import CAPACITY_PER_S, COST, LANES, LIMITS, RTT_S, SETTINGS, traffic

TRIP_S = 0.08
UNTIL_S = 16.0
EU, US, AP = range(3)
OVERLOADED = [1.5 * CAPACITY_PER_S, 0.4 * CAPACITY_PER_S, 0.4 * CAPACITY_PER_S]
LOSS = Fault(FaultKind.REGION_LOSS, 6.0, 5.0, cell="us")


class Run:
    """Three cells with faults. `cells`: those that were there at the end, and those that were lost."""

    def __init__(self, *faults: Fault, rates: list[float] = OVERLOADED, lists: bool = False, **more: object) -> None:
        self.work, self.homes = traffic(rates, UNTIL_S)
        if lists:
            more["clients"] = ClientLists(np.arange(len(self.work)) % 5, 60.0, 15.0)
        settings, spec = replace(SETTINGS, start_up_s=2.0), more.pop("spec", make_spec())
        plans = [CellPlan(name, MODEL, settings, COST, 2.0) for name in CELLS]
        self.simulator = CellsSimulator(spec, plans, self.work, self.homes, RTT_S, faults, **more)  # type: ignore[arg-type]
        self.out = self.simulator.run()
        self.check()

    @property
    def cells(self) -> list[PeeredCell]:
        return [*self.simulator.cells, *self.simulator._retired]

    def check(self) -> None:
        """Each request ends in one way, and no cell that lives keeps anything."""
        out, cells = self.out, self.cells
        gave_up = np.zeros(len(self.work), dtype=np.bool_)
        for cell in cells:
            gave_up |= (cell.outcome.cause >= 0) | cell.outcome.expired
        answered = ~np.isnan(out.finished_s) & ~out.reset & ~out.broken
        assert (answered.astype(int) + out.reset + out.broken + out.refused + gave_up == 1).all()
        for cell in self.simulator.cells:
            assert cell.scheduler.is_idle
            assert (cell._guests, cell._leases, cell._running, cell._open) == ({}, {}, {}, set())
            assert (cell._waiting, cell._outside, cell._away, cell._there, cell.peering.away) == ({}, {}, {}, set(), {})
            assert all(replica.leases == 0 for replica in cell.replicas if replica.serves)
            for peer in cell.peering.peers.by_cell.values():
                assert (peer.unseen, peer.seen, peer.on_its_way) == ({}, {}, {})

    def hops_between(self, from_s: float, to_s: float, *cells: int) -> int:
        """Hand-overs taken in that time between these cells."""
        return sum(from_s <= at_s < to_s and {source, target} == set(cells) for at_s, source, target in self.out.hops)

    def arrived(self, from_s: float, to_s: float, home: int) -> NDArray[np.bool_]:
        times = self.work.arrived_s
        return np.asarray((times >= from_s) & (times < to_s) & (self.homes == home))


@pytest.mark.whole
def test_a_lost_cell_resets_its_clients_and_gets_nothing_until_it_is_back() -> None:
    run = Run(LOSS)
    out, gone = run.out, run.arrived(6.0, 11.0, US)
    assert out.reset[gone].all()
    assert out.reset[run.arrived(3.0, 6.0, US)].any(), "what was under way there is lost"
    assert not out.reset[run.homes != US].any(), "only its own clients see resets"
    assert run.hops_between(3.0, 6.0, EU, US)
    assert not run.hops_between(6.0 + 2 * TRIP_S, 11.0, EU, US)
    assert run.hops_between(6.0, 11.0, EU, AP) > run.hops_between(1.0, 6.0, EU, AP), "the other peer takes more"
    back = run.arrived(11.0, UNTIL_S, US)
    assert not out.reset[back].any()
    first_s = (run.work.arrived_s + out.ttft_s)[back & (out.served == US)].min()
    assert first_s > 11.0 + 2.0, "its replicas take their start-up time"
    assert out.broken[run.homes == EU].any(), "streams that it had begun for a peer end with an error"


@pytest.mark.whole
def test_what_only_the_lost_cell_may_serve_is_refused_elsewhere() -> None:
    model = {"name": "m", "source": "s", "settings": {"max_model_len": 10_000}, "residency": ["us"], "regions": ["us"]}
    run = Run(LOSS, rates=[0.1 * CAPACITY_PER_S] * 3, lists=True, spec=make_spec(models=[model]))
    assert run.out.refused[run.arrived(6.0, 10.5, US)].all()
    assert not run.out.refused[run.arrived(0.0, 5.0, US)].any()
    assert set(run.out.served.tolist()) <= {US, -1}


@pytest.mark.whole
@pytest.mark.parametrize("for_s", [2.0, 7.0])
def test_a_partition_loses_nothing_but_streams_that_get_nothing_for_too_long(for_s: float) -> None:
    run = Run(Fault(FaultKind.PARTITION, 5.0, for_s, link=("eu", "us")))
    out = run.out
    assert not out.reset.any()
    assert not run.hops_between(5.0 + TRIP_S, 5.0 + for_s, EU, US)
    assert run.hops_between(5.0 + for_s, UNTIL_S, EU, US), "they help each other again"
    if for_s < 4.0:
        assert not out.broken.any(), "what was sent meanwhile comes late"
    else:
        assert not np.isnan(out.ttft_s[out.broken]).any(), "who had no byte is served at home"


@pytest.mark.whole
def test_after_a_partition_there_is_no_flood() -> None:
    whole, parted = Run(), Run(Fault(FaultKind.PARTITION, 5.0, 4.0, link=("eu", "us")))
    healed = parted.hops_between(9.0, 11.0, EU, US)
    usual = max(whole.hops_between(at_s, at_s + 2.0, EU, US) for at_s in (3.0, 5.0, 7.0, 9.0, 11.0))
    assert healed <= 2 * usual


@pytest.mark.whole
def test_a_slow_link_costs_its_round_trip() -> None:
    run = Run(Fault(FaultKind.SLOW_LINK, 0.0, link=("eu", "us"), more_rtt_s=0.5))
    moved = (run.homes == EU) & (run.out.served == US)
    assert run.out.ttft_s[moved].min() > 0.29 + TRIP_S / 2
    assert run.hops_between(0.0, UNTIL_S, EU, AP) > run.hops_between(0.0, UNTIL_S, EU, US)


@pytest.mark.whole
def test_a_lost_zone_takes_its_share_of_the_replicas_until_there_are_nodes_again() -> None:
    loss = Fault(FaultKind.ZONE_LOSS, 5.0, 4.0, cell="eu", share=0.5)
    run = Run(loss, rates=[0.4 * CAPACITY_PER_S] * 3)
    lives = run.out.lives["eu"]
    assert [life.ended_s for life in lives].count(5.0) == 2
    later = [life for life in lives if life.started_s > 0]
    assert [(life.started_s, life.ready_s) for life in later] == [(9.0, 11.0), (9.0, 11.0)]
    assert run.out.broken[run.homes == EU].any(), "what ran on them is lost"
    at_once = Run(replace(loss, room_elsewhere=True), rates=[0.4 * CAPACITY_PER_S] * 3).out.lives["eu"]
    assert [(life.started_s, life.ready_s) for life in at_once[4:]] == [(5.0, 7.0), (5.0, 7.0)]


@pytest.mark.whole
def test_autoscaled_cells_count_guests_as_the_demand_of_their_home() -> None:
    seen: dict[str, Watching] = {}

    def scaled(name: str) -> CellSettings:
        seen[name] = Watching()
        scaling = SimulatedScaling(Autoscaler(seen[name], Bounds(1, 8)), UNTIL_S)
        return CellSettings(4, LIMITS, SchedulingPolicy(LANES), start_up_s=2.0, scaling=scaling)

    work, homes = traffic(OVERLOADED, UNTIL_S)
    plans = [CellPlan(name, MODEL, scaled(name), COST) for name in CELLS]
    out = CellsSimulator(make_spec(), plans, work, homes, RTT_S).run()
    moved = out.served != out.home
    assert moved.any()
    for number, name in enumerate(CELLS):
        assert seen[name].seen[-1].arrived == (homes == number).sum()
    assert any(signals.peers_spare > 1.0 for signals in seen["eu"].seen)
    assert len(seen["eu"].seen) >= UNTIL_S


def test_a_timeline_is_checked() -> None:
    check_timeline((LOSS, replace(LOSS, at_s=12.0)))
    with pytest.raises(ValueError, match=r"overlap at us, at 8 s; allowed: one at a time"):
        check_timeline((LOSS, replace(LOSS, at_s=8.0)))
    cut = Fault(FaultKind.PARTITION, 1.0, link=("eu", "us"))
    with pytest.raises(ValueError, match="overlap at eu and us"):
        check_timeline((cut, replace(cut, at_s=5.0, link=("us", "eu"))))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"for_s": 0.0}, "for_s=0"),
        ({"kind": FaultKind.SLOW_LINK, "link": ("eu", "eu")}, "allowed: the names of two cells"),
    ],
)
def test_a_fault_that_cannot_be(changed: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(LOSS, **changed)  # type: ignore[arg-type]


def test_what_is_paid_for_in_a_cell() -> None:
    lives = {"eu": [Life(0.0, 0.0, 7_200.0), Life(3_600.0, 3_700.0, 5_400.0)], "us": []}
    assert replica_hours(lives) == {"eu": 2.5, "us": 0.0}


def test_what_is_in_time() -> None:
    homes, served = np.array([0, 0, 0, 1]), np.array([0, 1, 0, -1])
    ttft_s, finished_s = np.array([0.1, 0.2, 0.9, math.nan]), np.array([1.0, 1.0, 1.0, math.nan])
    reset, broken, refused = homes == 1, served == 1, np.zeros(4, dtype=np.bool_)
    out = CellsOutcome(CELLS, homes, homes, served, ttft_s, finished_s, (), {}, reset, broken, refused, {}, 0.0)
    slo_s = np.full(4, 0.5)
    assert out.in_time(slo_s).tolist() == [True, False, False, False]
    assert (attainment(out, "eu", slo_s), attainment(out, "us", slo_s)) == (pytest.approx(1 / 3), 0.0)
