"""What a record shows: against the definition, taken literally, and on small records whose figures are known."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planning.several_regions import WINDOW_S, recovery_s
from planning.simulator.faults import FaultKind
from tests.live.drill.drill import Drill, drill_on
from tests.live.drill.findings import DrillSlo, findings_of
from tests.live.drill.record import SendEnd, SentRequest, record_of

SLO = DrillSlo(1.0, 0.9)
CELLS = ("eu", "us")
LOSS = drill_on(FaultKind.REGION_LOSS, "eu", (), 20.0, math.inf, 60.0)
CUT = drill_on(FaultKind.PARTITION, "eu", ("us",), 20.0, 20.0, 60.0)


def sent(
    at_s: float, home: str = "eu", ttft_s: float | None = 0.1, served: str | None = "", **more: object
) -> SentRequest:
    """An answered request, unless it is said otherwise."""
    whole = ttft_s is not None
    given_fields = {
        "asked": home,
        "served": (served or home) if whole else None,
        "finished_s": at_s + ttft_s + 1 if ttft_s is not None else None,
        "end": SendEnd.ANSWERED if whole else SendEnd.UNANSWERED,
    }
    return SentRequest(at_s, home, ttft_s=ttft_s, **(given_fields | more))  # type: ignore[arg-type]


def steady(drill: Drill = LOSS, late: tuple[float, float] = (0.0, 0.0)) -> list[SentRequest]:
    """Two requests a second at each cell; those that are sent within `late` miss the SLO."""
    times = np.arange(0.25, drill.length_s, 0.5).tolist()
    return [sent(at_s, home, 3.0 if late[0] <= at_s < late[1] else 0.1) for at_s in times for home in CELLS]


@given(
    st.lists(st.tuples(st.integers(0, 320), st.booleans()), max_size=60),
    st.sampled_from((0.5, 0.8, 0.95)),
)
def test_recovery_is_as_defined(requests: list[tuple[int, bool]], share: float) -> None:
    """By brute force: every window that begins at an eighth of a second."""
    ordered = sorted(requests)
    times, met = np.array([at / 8 for at, _ in ordered]), np.array([good for _, good in ordered], dtype=np.bool_)
    begin_s, until_s, window_s = 4.0, 40.0, 8.0
    found = recovery_s(times, met, (begin_s, until_s), share, window_s)

    def holds(eighth: int) -> bool:
        inside = [good for at, good in ordered if eighth <= at < eighth + 64 and 32 <= at < 320]
        return sum(inside) >= share * len(inside)

    bad = [eighth for eighth in range(32, 257) if not holds(eighth)]
    if found is None:
        assert bad[-1] == 256
    elif bad:
        assert found == bad[-1] / 8 - begin_s
    else:
        assert found == 0.0


def test_an_outage_is_over_when_the_last_bad_window_has_begun() -> None:
    found = findings_of(LOSS, record_of(CELLS, steady(late=(20.0, 32.0))), SLO)
    assert found.recovery_s is not None
    assert abs(found.recovery_s - 11.0) < 0.51, "of 20 requests within 10 s, two may be late"
    assert found.recovery_by_cell_s["eu"] == found.recovery_by_cell_s["us"] == found.recovery_s


def test_what_never_holds_again_has_no_recovery() -> None:
    found = findings_of(LOSS, record_of(CELLS, steady(late=(20.0, 60.0))), SLO)
    assert found.recovery_s is None
    assert findings_of(LOSS, record_of(CELLS, steady()), SLO).recovery_s == 0.0


def test_one_cell_that_is_late_counts_as_all() -> None:
    requests = [one for one in steady(late=(20.0, 30.0)) if one.home == "eu"]
    requests += [one for one in steady() if one.home == "us"]
    found = findings_of(LOSS, record_of(CELLS, requests), SLO)
    assert found.recovery_by_cell_s["us"] == 0.0
    assert found.recovery_s == found.recovery_by_cell_s["eu"] != 0.0


def test_phases_losses_and_hand_overs_are_counted() -> None:
    requests = [
        *steady(CUT),
        sent(25.0, served="us"),
        sent(41.0, served="us"),
        sent(41.5, served="us"),
        sent(30.0, ttft_s=None),
        sent(31.0, end=SendEnd.RESET, finished_s=None, served=None),
        sent(31.2, ttft_s=2.5, again=True),
        sent(32.0, twice=True),
    ]
    found = findings_of(CUT, record_of(CELLS, requests), SLO)
    assert found.lost == {"reset": 1, "unanswered": 1}
    assert found.lost_requests == 2
    assert found.twice == 1
    assert found.handed_over == 3
    assert (found.peak_before, found.peak_after_healing) == (1, 2)
    assert found.next_answer_s == (2.5, 2.5, 2.5)
    assert [one.phase for one in found.phases[::3]] == ["before", "during", "after"]
    assert found.of("after", "eu").requests == 42
    assert found.of("before", "").met == 1.0
    assert math.isclose(found.of("during", "eu").met, 43 / 45)


def test_a_client_that_finds_its_cell_gone_has_its_next_answer_elsewhere() -> None:
    requests = [*steady(), sent(21.0, ttft_s=0.7, asked="us", served="us")]
    found = findings_of(LOSS, record_of(CELLS, requests), SLO)
    assert found.next_answer_s == (0.7, 0.7, 0.7)
    assert found.handed_over == 0, "its client went there by itself"
    waiting = [*steady(), sent(18.0, ttft_s=4.5, asked="us", served="us")]
    after_loss = findings_of(LOSS, record_of(CELLS, waiting), SLO).next_answer_s
    assert after_loss == (2.5, 2.5, 2.5), "it waited for its cell, and counts from the loss"
    late = [*steady(), sent(20.0 + WINDOW_S + 1, ttft_s=0.7, asked="us", served="us")]
    assert findings_of(LOSS, record_of(CELLS, late), SLO).next_answer_s is None


def test_what_does_not_exist_is_null_in_json() -> None:
    found = findings_of(LOSS, record_of(CELLS, [one for one in steady() if one.home == "eu"]), SLO).as_json()
    assert found["recovery_by_cell_s"] == {"eu": 0.0}
    assert next(one for one in found["phases"] if one["cell"] == "us")["met"] is None
