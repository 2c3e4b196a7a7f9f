"""The parts of `benchmarks.regions` that start nothing."""

import json
from pathlib import Path
from typing import Any

from benchmarks.regions import figures, merged, offers_around_cut, summary_rows
from tests.live.drill.links import CellLink
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


def test_runs_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "regions.json"
    file.write_text(json.dumps(merged(None, "overload", [{"seed": 0, "share_handed_over": 0.01}])))
    result = merged(file, "overload", [{"seed": 1, "share_handed_over": 0.03}])
    assert [one["seed"] for one in result["parts"]["overload"]] == [0, 1]
    assert summary_rows(result["parts"]) == [["overload", "handed over", "2.00 %", "2"]]


def cut_link(hops_s: list[float]) -> CellLink:
    link = CellLink("eu", "us", "http://127.0.0.1:1", 0.04)
    link.cut_s, link.healed_s, link.hops_s = 10.0, 25.0, hops_s
    return link


def test_offers_around_a_cut_are_counted_over_all_links() -> None:
    links = [cut_link([1.0, 5.0, 5.1, 9.9, 10.2, 25.1, 25.2, 25.9, 26.2]), cut_link([5.9, 10.4, 26.05])]
    assert offers_around_cut(links, 2.0) == {"peak_before": 3, "peak_after": 4, "last_after_cut_s": 0.4}
    assert offers_around_cut([cut_link([])], 0.0) == {"peak_before": 0, "peak_after": 0, "last_after_cut_s": 0.0}


def test_pairs_come_to_the_median_of_their_ratios() -> None:
    pairs = [
        {"seed": n, "apart": run(1.0), "together": run(ratio), "p99_ratio": {"eu": ratio}}
        for n, ratio in enumerate((0.2, 0.4, 0.3))
    ]
    rows = summary_rows({"help": pairs})
    assert rows[0] == ["help", "TTFT p99 of eu, with / without", "0.300", "3"]
    assert rows[1][2] == "0"
