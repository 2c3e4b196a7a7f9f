"""Who is ejected, at which bounds, and how it comes back."""

from deployments.scheduling.fleet import Fleet, Outliers
from deployments.scheduling.pick import MinTtft
from deployments.scheduling.replica import ReplicaStatus
from tests.deployments.scheduling.world import CAPACITY


def fleet_of(*tpot_s: float | None) -> Fleet:
    """Replicas `r0`, `r1`, ... with those times per output token."""
    fleet = Fleet(MinTtft())
    for number, each in enumerate(tpot_s):
        fleet.up(f"r{number}", CAPACITY).tpot_s = each
    return fleet


def ejected(fleet: Fleet) -> list[str]:
    return [name for name, replica in fleet.by_id.items() if replica.status is ReplicaStatus.EJECTED]


def test_slower_than_two_and_a_half_medians_is_ejected() -> None:
    for slow_s, out in ((2.5, []), (2.51, ["r2"])):
        fleet = fleet_of(1.0, 1.0, slow_s)
        Outliers(fleet).judge(10.0)
        assert ejected(fleet) == out


def test_of_two_nobody_can_say_which_is_slow() -> None:
    fleet = fleet_of(1.0, 9.0, None)
    Outliers(fleet).judge(10.0)
    assert ejected(fleet) == []


def test_an_ejected_one_comes_back_after_half_a_minute_with_a_clean_slate() -> None:
    fleet = fleet_of(1.0, 9.0, 1.0, 1.0)
    outliers = Outliers(fleet)
    outliers.judge(10.0)
    outliers.judge(39.9)
    assert ejected(fleet) == ["r1"]
    outliers.judge(45.0)
    replica = fleet.by_id["r1"]
    assert (replica.status, replica.tpot_s) == (ReplicaStatus.READY, None)
    replica.tpot_s = 9.0
    outliers.judge(50.0)
    assert ejected(fleet) == ["r1"], "what it then shows decides"


def test_forgiveness_changes_nothing_for_one_that_drains_or_is_gone() -> None:
    fleet = fleet_of(1.0, 9.0, 9.0, 1.0, 1.0, 1.0)
    outliers = Outliers(fleet)
    outliers.judge(10.0)
    assert ejected(fleet) == ["r1", "r2"]
    fleet.set_status("r1", ReplicaStatus.DRAINING)
    fleet.remove(fleet.by_id["r2"])
    outliers.judge(60.0)
    assert (fleet.by_id["r1"].status, fleet.by_id["r1"].tpot_s) == (ReplicaStatus.DRAINING, 9.0)


def test_a_cordoned_one_that_was_ejected_is_forgiven_and_stays_cordoned() -> None:
    fleet = fleet_of(1.0, 9.0, 1.0, 1.0)
    outliers = Outliers(fleet)
    outliers.judge(10.0)
    fleet.cordon("r1", True)
    outliers.judge(60.0)
    assert (fleet.by_id["r1"].reported, fleet.by_id["r1"].status) == (ReplicaStatus.READY, ReplicaStatus.CORDONED)


def test_only_what_is_ready_and_measured_is_judged() -> None:
    fleet = fleet_of(1.0, 1.0, 9.0, None, 1.0)
    fleet.set_status("r2", ReplicaStatus.UNRESPONSIVE)
    Outliers(fleet).judge(10.0)
    assert ejected(fleet) == []
