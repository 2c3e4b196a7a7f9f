"""The shipped alert rules on peers, by Prometheus' own tool: each fires when it should and not otherwise. That gateways
have the metrics is in `deployments/gateway/peers/test_peers_hop.py`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.promtool import needs_promtool, promtool

RULES = Path(__file__).resolve().parents[2] / "infra" / "alerts" / "peers.yaml"
AGE, UNANSWERED = "raylane_digest_age_seconds", "raylane_digests_unanswered_total"
PEER, MODEL = '{peer="us"}', '{model="m", peer="us"}'
CASES = {
    "RaylanePeerLost": ({AGE + MODEL: "1x10 61+60x30"}, 9, 15),
    "RaylanePeerNeverAnswered": ({UNANSWERED + PEER: "0x10 60+60x30"}, 9, 20),
    "RaylanePeerCallsRefused": (
        {'raylane_peer_calls_refused_total{peer="", reason="signature"}': "0x10 1+1x30"},
        9,
        20,
    ),
    "RaylaneHopsBreak": (
        {
            'raylane_hops_broken_total{model="m", peer="us", stage="taken"}': "0x10 1+1x40",
            'raylane_hand_overs_total{model="m", peer="us", reason="sooner"}': "0+10x50",
        },
        9,
        30,
    ),
}
"""By alert: the series a minute at a time, a minute at which it must not fire, and one at which it must."""
QUIET = {
    AGE + MODEL: "1x60",
    UNANSWERED + PEER: "3x60",
    'raylane_peer_calls_refused_total{peer="us", reason="signature"}': "7x60",
    'raylane_hops_broken_total{model="m", peer="us", stage="taken"}': "0+0.2x60",
    'raylane_hand_overs_total{model="m", peer="us", reason="sooner"}': "0+10x60",
}
"""What is no reason for an alert: counts that do not grow, a hop in fifty that breaks."""


def _tested(folder: Path, series: dict[str, str], checks: list[dict[str, Any]]) -> None:
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": checks,
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}))
    promtool("test", "rules", file)


def _silent(name: str, minute: int) -> dict[str, Any]:
    return {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}


@needs_promtool
def test_the_rules_are_valid() -> None:
    assert f"SUCCESS: {len(CASES)} rules found" in promtool("check", "rules", RULES)


@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_it_should(tmp_path: Path, name: str) -> None:
    series, before, after = CASES[name]
    _tested(tmp_path, series, [_silent(name, before)])
    with pytest.raises(AssertionError, match=name):
        _tested(tmp_path, series, [_silent(name, after)])


@needs_promtool
def test_no_alert_fires_while_all_is_well(tmp_path: Path) -> None:
    _tested(tmp_path, QUIET, [_silent(name, minute) for name in CASES for minute in (5, 20, 40, 59)])
