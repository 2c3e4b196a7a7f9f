"""The parts of `benchmarks.regions` that start nothing."""

from typing import Any

from benchmarks.regions import figures, summary_rows
from tests.live.drill.record import SendEnd, SentRequest, record_of


def run(p99: float, moved: int = 0) -> dict[str, Any]:
    return {"ttft_s": {"eu": {"p99": p99}}, "twice": 0, "handed_over": moved, "requests": 100}


def test_a_run_in_figures() -> None:
    requests = [
        SentRequest(t, "eu", "eu", "us" if t > 5 else "eu", 0.1 * t, t + 1, SendEnd.ANSWERED) for t in range(10)
    ]
    requests.append(SentRequest(11, "us", "us", None, None, None, SendEnd.REJECTED))
    requests += [SentRequest(12, "us", "us", "us", 1.0, 13.0, SendEnd.ANSWERED, twice=True)]
    found = figures(record_of(("eu", "us"), requests))
    assert found["ttft_s"]["eu"]["count"] == 10
    assert found["ttft_s"]["us"]["p99"] == 1.0
    assert (found["handed_over"], found["twice"], found["requests"]) == (4, 1, 12)
    assert found["ends"] == {"answered": 11, "rejected": 1}


def test_shares_come_to_their_median() -> None:
    runs = [{"seed": seed, "share_handed_over": share} for seed, share in enumerate((0.01, 0.03))]
    assert summary_rows("overload", runs) == [["overload", "handed over", "2.00 %", "2"]]


def test_pairs_come_to_the_median_of_their_ratios() -> None:
    pairs = [
        {"seed": n, "apart": run(1.0), "together": run(ratio), "p99_ratio": {"eu": ratio}}
        for n, ratio in enumerate((0.2, 0.4, 0.3))
    ]
    rows = summary_rows("help", pairs)
    assert rows[0] == ["help", "TTFT p99 of eu, with / without", "0.300", "3"]
    assert rows[1][2] == "0"
