"""Traffic files: the shipped one is usable, and each refusal names key, value and what is allowed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.files import shipped
from planning.workload.traffic.file import TrafficError, TrafficFile, load_traffic, parse_traffic

SMALL: dict[str, Any] = {
    "duration_s": 100,
    "streams": [{"name": "a", "rate": {"per_s": 2}, "prompt": 10, "output": "uniform:1:9"}],
}


def changed(**stream: object) -> str:
    return yaml.safe_dump({**SMALL, "streams": [{**SMALL["streams"][0], **stream}]})


@pytest.mark.parametrize("path", sorted(shipped("traffic").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_shipped_loads_and_comes_back(path: Path) -> None:
    traffic = load_traffic(path)
    assert TrafficFile.model_validate_json(traffic.model_dump_json(by_alias=True)) == traffic


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("duration_s: 5", "streams: there is none"),
        ("- 1", "must be a mapping"),
        (changed(shap=1), "streams.0.shap = 1: unknown key; allowed: a mapping of name, rate, gaps, shape"),
        (changed(shape=0), "streams.0.shape = 0: allowed: a number, 0.05 to 1000"),
        (changed(gaps="pareto"), "streams.0.gaps = 'pareto': allowed: gamma, weibull"),
        (
            changed(prompt="normal:3"),
            "streams.0.prompt = 'normal:3': 'normal:3' is no length; allowed: a number of tokens",
        ),
        (
            changed(rate={"per_s": 1, "curve": [{"hour": 1, "per_s": 1}]}),
            "streams.0.rate: per_s and curve: allowed: exactly one of them",
        ),
        (
            changed(rate={"curve": [{"hour": 9, "per_s": 1}, {"hour": 9, "per_s": 1}]}),
            "curve.hour = [9.0, 9.0]: allowed: ascending hours",
        ),
        (changed(rate={"curve": [{"hour": 25, "per_s": 1}]}), "streams.0.rate.curve.0.hour = 25"),
        (changed(rate={"per_s": 1, "weekdays": {"sonntag": 1}}), "mon, tue, wed"),
        (changed(tenants={"names": [{"name": "x"}], "count": 3}), "names and count: allowed: exactly one of them"),
        (
            changed(prefix={"count": 1, "tokens": 5, "share": 2}),
            "streams.0.prefix.share = 2: allowed: a number, 0 to 1",
        ),
        (changed(sessions={"turns": 3}), "streams.0.sessions.pause_s: missing"),
        (yaml.safe_dump({**SMALL, "regions": [{"name": "eu"}, {"name": "eu"}]}), "'eu' appears twice"),
    ],
)
def test_a_bad_file_is_refused_by_key_value_and_what_is_allowed(text: str, problem: str) -> None:
    with pytest.raises(TrafficError) as caught:
        parse_traffic(text, "day.yaml")
    assert "day.yaml is not a usable traffic file" in str(caught.value)
    assert problem in "\n".join(caught.value.problems)
