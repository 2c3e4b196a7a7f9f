"""What a drill is: its faults, its phases, and the traffic meanwhile."""

import math

import numpy as np
import pytest

from planning.simulator.faults import Fault, FaultKind
from planning.workload.lengths import Fixed, LogNormal
from tests.live.drill.drill import Drill, RequestShape, drawn_traffic, drill_on

SHAPE = RequestShape(LogNormal(300, 0.8), Fixed(50), 2.0)
RATES = {"eu": 5.0, "us": 2.0, "ap": 1.0}


def test_a_fault_of_a_cell_has_two_or_three_phases() -> None:
    lost = drill_on(FaultKind.REGION_LOSS, "eu", ("us", "ap"), 20.0, math.inf, 60.0)
    assert (lost.cell, lost.others, lost.heals_s) == ("eu", (), math.inf)
    assert lost.phases == {"before": (0.0, 20.0), "during": (20.0, 60.0)}
    back = drill_on(FaultKind.REGION_LOSS, "eu", ("us", "ap"), 20.0, 10.0, 60.0)
    assert back.phases == {"before": (0.0, 20.0), "during": (20.0, 30.0), "after": (30.0, 60.0)}
    assert back.in_words() == "region-loss of eu, from second 20 to second 30 of 60"


def test_a_fault_of_links_befalls_each_of_them() -> None:
    cut = drill_on(FaultKind.PARTITION, "eu", ("us", "ap"), 20.0, 10.0, 60.0)
    assert [fault.link for fault in cut.faults] == [("eu", "us"), ("eu", "ap")]
    assert (cut.cell, cut.others) == ("eu", ("us", "ap"))
    assert cut.in_words() == "partition of eu and us, ap, from second 20 to second 30 of 60"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (FaultKind.ZONE_LOSS, "zone-loss of eu (25 % of its replicas)"),
        (FaultKind.BROWN_OUT, "brown-out of eu (engines at 25 % of their speed)"),
    ],
)
def test_its_words_say_how_much(kind: FaultKind, words: str) -> None:
    drill = drill_on(kind, "eu", (), 20.0, 10.0, 60.0, share=0.25, speed=0.25)
    assert drill.in_words().startswith(words)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at_s = 60: allowed: above 0, below length_s = 60"):
        drill_on(FaultKind.REGION_LOSS, "eu", (), 60.0, math.inf, 60.0)
    faults = (Fault(FaultKind.REGION_LOSS, 5.0, cell="eu"), Fault(FaultKind.BROWN_OUT, 5.0, cell="us"))
    with pytest.raises(ValueError, match="faults of one kind, at one time"):
        Drill(faults, 60.0)
    with pytest.raises(ValueError, match="needed: at least 20"):
        drawn_traffic({"eu": 0.1}, 10.0, SHAPE, 0)


def test_each_cell_gets_its_rate() -> None:
    traffic = drawn_traffic(RATES, 1_000.0, SHAPE, 0)
    assert (np.diff(traffic.work.arrived_s) >= 0).all()
    for number, rate in enumerate(RATES.values()):
        count = int((traffic.homes == number).sum())
        assert abs(count - 1_000 * rate) < 5 * math.sqrt(1_000 * rate)
    assert (traffic.work.output_tokens == 50).all()
    assert abs(float(traffic.work.prompt_tokens.mean()) - 300) < 20


def test_a_cells_requests_depend_on_its_own_rate_alone() -> None:
    one, other = drawn_traffic(RATES, 100.0, SHAPE, 3), drawn_traffic(RATES | {"us": 7.0}, 100.0, SHAPE, 3)
    for number in (0, 2):
        np.testing.assert_array_equal(
            one.work.arrived_s[one.homes == number], other.work.arrived_s[other.homes == number]
        )
    assert len(other.work) > len(one.work)


def test_the_traffic_as_it_was_sent_is_still_in_order() -> None:
    traffic = drawn_traffic(RATES, 20.0, SHAPE, 0)
    late = traffic.work.arrived_s + np.where(np.arange(len(traffic.work)) % 7 == 0, 0.5, 0.0)
    assert (np.diff(traffic.sent(late).work.arrived_s) >= 0).all()
