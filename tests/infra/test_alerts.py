"""The shipped alert rules, by Prometheus' own tool: each fires when it should, with its owner and no other, and neither
just below its bound nor at zero. That a cell has the metrics is in `tests/live/test_live_watching.py`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.infra.promtool import RULES, case_of, check, fires, firing, needs_promtool, promtool, rules
from tests.source import ROOT

OWNED = {'raylane_model_info{cell="c", model="m", owner="search"}': "1x500"}


def slo(slo: str, met: str, missed: str, target: float) -> dict[str, str]:
    labels = f'cell="c", model="m", class="chat", slo="{slo}"'
    return {
        f'raylane_slo_requests_total{{{labels}, result="met"}}': met,
        f'raylane_slo_requests_total{{{labels}, result="missed"}}': missed,
        f"raylane_slo_target_ratio{{{labels}}}": f"{target}x500",
    }


def of(name: str, **labels: str) -> str:
    shown = ", ".join(f'{key.rstrip("_")}="{value}"' for key, value in {"cell": "c", **labels}.items())
    return f"{name}{{{shown}}}"


def steps(step_s: float, expected_s: float, gpu: float, **drafts: str) -> dict[str, str]:
    """Of one replica; the seconds of a minute in steps, and those that its cost file expects."""
    labels = {"model": "m", "replica": "r"}
    return {
        of("raylane_engine_step_seconds_sum", **labels): f"0+{step_s}x500",
        of("raylane_engine_expected_step_seconds_total", **labels): f"0+{expected_s}x500",
        of("raylane_engine_gpu_utilization_ratio", gpu="0", **labels): f"{gpu}x500",
        **{of(f"vllm:spec_decode_num_{name}_total", **labels): values for name, values in drafts.items()},
    }


def prefix(cached: str) -> dict[str, str]:
    """A lane into which a thousand tokens come a minute."""
    lane = {"model": "m", "lane": "short"}
    return {of("raylane_lane_tokens_total", kind="in", **lane): "0+1000x500"} | {
        of("raylane_lane_tokens_total", kind="cached", **lane): cached
    }


def lag(late: float) -> dict[str, str]:
    """So many of a hundred timers a minute are over 50 ms late."""
    name, gateway = "raylane_event_loop_lag_seconds_bucket", {"gateway": "g"}
    return {
        of(name, le="0.05", **gateway): f"0+{100 - late}x500",
        of(name, le="0.1", **gateway): "0+100x500",
        of(name, le="+Inf", **gateway): "0+100x500",
    }


def waits(no: int, yes: int) -> dict[str, str]:
    name, lane = "raylane_wait_estimates_total", {"model": "m", "lane": "short"}
    return {of(name, held="no", **lane): f"0+{no}x500", of(name, held="yes", **lane): f"0+{yes}x500"}


def hops(broken: str) -> dict[str, str]:
    peer = {"model": "m", "peer": "us"}
    return {
        of("raylane_hops_broken_total", stage="taken", **peer): broken,
        of("raylane_hand_overs_total", reason="sooner", **peer): "0+10x500",
    }


MODEL, LANE = {"model": "m"}, {"model": "m", "lane": "short"}
READY, AGE, UP = "raylane_model_ready", "raylane_directory_age_seconds", "up"
LEAST = of("raylane_model_min_replicas", **MODEL)
FAILED = of("raylane_failed_starts_total", phase="load", **MODEL)
LOST = of("raylane_departures_total", kind="replica", cause="process_died", planned="no", **MODEL)
ALARMS = of("raylane_scaling_alarms_total", kind="stale", **MODEL)
WAITING, UNANSWERED = of("raylane_waiting_seconds", **LANE), of("raylane_digests_unanswered_total", peer="us")
REFUSED, DIGEST = "raylane_peer_calls_refused_total", of("raylane_digest_age_seconds", peer="us", **MODEL)
ELSEWHERE = {of("raylane_digest_age_seconds", cell="d", peer="us", **MODEL): "1x300"}
"""What another cell, whose metrics are in the same Prometheus, knows of the peer."""

Series = Mapping[str, str]
CASES: dict[str, tuple[Series, int, int, Series]] = {
    # 1 % may miss: of 10 a minute, 2 do from minute 100 on. 1 of 10 is below 14.4 %, and becomes 6 % of six hours late.
    "RaylaneTtftBurns": (
        slo("ttft", "0+10x100 1008+8x400", "0x100 2+2x400", 0.99),
        100,
        190,
        slo("ttft", "0+95x500", "0+5x500", 0.99),
    ),
    # 90 % is promised: 14.4 times the rest would be more than all, so that the bound is 55 %.
    "RaylaneItlBurns": (
        slo("itl", "0+10x100 1004+4x400", "0x100 6+6x400", 0.9),
        100,
        190,
        slo("itl", "0+5x500", "0+5x500", 0.9),
    ),
    "RaylaneNoReadyReplica": (
        {of(READY, **MODEL): "0x5 1x20 0x300", LEAST: "1x300"},
        26,
        30,
        {of(READY, **MODEL): "0x20 1x20 0 1x300", LEAST: "1x300"},
    ),
    "RaylaneNoGateway": (
        {of(UP, raylane_role="gateway", gateway=one): "1x20 0x300" for one in "ab"},
        21,
        25,
        {of(UP, raylane_role="gateway", gateway="a"): "0x300", of(UP, raylane_role="gateway", gateway="b"): "1x300"},
    ),
    "RaylaneHeadLost": (
        {of(AGE, gateway="a"): "3x10 63+60x20", of(AGE, gateway="b"): "1x10 62+60x20"},
        11,
        20,
        {of(AGE, gateway="a"): "63+60x300", of(AGE, gateway="b"): "4x300"},
    ),
    "RaylaneBacklogGrows": ({WAITING: "0x20 70+1x300"}, 30, 60, {WAITING: "90x300"}),
    "RaylaneWaitEstimatesOff": (waits(3, 7), 8, 60, waits(1, 9)),
    "RaylaneKvPressure": (
        {
            of("vllm:kv_cache_usage_perc", replica="r", **MODEL): "0.95x300",
            of("raylane_waiting_requests", **LANE): "3x300",
        },
        10,
        40,
        {
            of("vllm:kv_cache_usage_perc", replica="r", **MODEL): "0.95x300",
            of("raylane_waiting_requests", **LANE): "0x300",
        },
    ),
    "RaylaneStartsFail": ({FAILED: "_x20 1x300"}, 19, 25, {FAILED: "2x300"}),
    "RaylaneScalingImpaired": ({ALARMS: "_x20 1+9x300"}, 19, 25, {ALARMS: "40x300"}),
    "RaylaneDepartures": ({LOST: "1x20 2x300"}, 20, 25, {LOST: "2x300"}),
    "RaylaneEventLoopLag": (lag(3), 5, 30, lag(0.5)),
    "RaylanePrefixHitsFall": (prefix("0+600x200 120000+100x300"), 205, 260, prefix("0+600x200 120000+400x300")),
    "RaylaneGpuIdle": (
        {of("raylane_engine_gpu_utilization_ratio", replica="r", gpu="0", **MODEL): "0.1x300", WAITING: "20x300"},
        5,
        30,
        {of("raylane_engine_gpu_utilization_ratio", replica="r", gpu="0", **MODEL): "0.1x300", WAITING: "5x300"},
    ),
    "RaylaneGpuSlow": (steps(54, 24, 0.95), 5, 40, steps(54, 30, 0.95)),
    # Two of three drafts a step are accepted.
    "RaylaneDraftsCost": (
        steps(54, 15, 0.95, drafts="0+1000x500", accepted_tokens="0+2000x500"),
        5,
        100,
        steps(54, 24, 0.95, drafts="0+1000x500", accepted_tokens="0+2000x500"),
    ),
    "RaylanePeerLost": ({DIGEST: "1x10 61+60x30", **ELSEWHERE}, 9, 15, {DIGEST: "50x300"}),
    "RaylanePeerNeverAnswered": (
        {UNANSWERED: "0x10 60+60x30", **ELSEWHERE},
        9,
        20,
        {UNANSWERED: "0+60x300", DIGEST: "3x300"},
    ),
    "RaylanePeerCallsRefused": (
        {of(REFUSED, peer="", reason="signature"): "0x10 1+1x30"},
        9,
        20,
        {of(REFUSED, peer="us", reason="signature"): "7x300"},
    ),
    "RaylaneHopsBreak": (hops("0x10 1+1x300"), 9, 30, hops("0+0.2x300")),
    "RaylaneTrafficOffWorksheet": (
        {
            of(
                "raylane_drift_ratio", gateway=one, class_="chat", region="eu", quantity="prompt_tokens", **MODEL
            ): "_x5 2x300"
            for one in "ab"
        },
        4,
        10,
        {},
    ),
}
"""By alert: series a minute at a time, a minute at which nothing fires yet, one at which only this one does, and series
just below its bound."""
NOT_OWNED = {
    "RaylaneNoGateway", "RaylaneHeadLost", "RaylaneStartsFail", "RaylaneScalingImpaired", "RaylaneDepartures",
    "RaylaneEventLoopLag", "RaylanePeerLost", "RaylanePeerNeverAnswered",
    "RaylanePeerCallsRefused", "RaylaneHopsBreak", "RaylaneTrafficOffWorksheet",
}  # fmt: skip
ACROSS_CELLS = {
    "RaylanePeerLost", "RaylanePeerNeverAnswered", "RaylanePeerCallsRefused", "RaylaneHopsBreak",
    "RaylaneTrafficOffWorksheet",
}  # fmt: skip


@needs_promtool
def test_the_rules_are_valid() -> None:
    promtool("check", "rules", *RULES)
    assert {rule["alert"] for rule in rules() if "alert" in rule} == CASES.keys()


Expected = Mapping[int, list[dict[str, str]]]


def hold(folder: Path, cases: Mapping[str, tuple[Series, Expected]]) -> None:
    """Each case is a cell of its own, named for its alert, and all of them stand in one Prometheus: an evaluation of
    all rules takes long, and hardly longer with many cells. What is counted across cells stands alone."""
    together: dict[str, str] = {}
    checks: list[dict[str, Any]] = []
    alone: list[dict[str, Any]] = []
    for name, (series, expected) in cases.items():
        owned = {**OWNED, **series}
        if name in ACROSS_CELLS:
            alone.append(case_of(owned, firing(expected, "alertname", "owner")))
        else:
            together |= {key.replace('cell="c"', f'cell="{name}"'): values for key, values in owned.items()}
            checks += firing(expected, "alertname", "owner", cell=name)
            checks += firing(dict.fromkeys(expected, ()), "alertname", cell="")
    check(folder, case_of(together, checks), *alone)


@needs_promtool
@pytest.mark.whole
def test_an_alert_fires_when_it_should(tmp_path: Path) -> None:
    cases: dict[str, tuple[Series, Expected]] = {}
    for name, (series, before, after, _) in CASES.items():
        labels = {"alertname": name} if name in NOT_OWNED else {"alertname": name, "owner": "search"}
        cases[name] = (series, {before: [], after: [labels]})
    hold(tmp_path, cases)


@needs_promtool
@pytest.mark.whole
def test_no_alert_fires_below_its_bound(tmp_path: Path) -> None:
    nothing: Expected = {minute: [] for minute in (1, 30, 60, 100)}
    hold(tmp_path, {name: (below, nothing) for name, (_, _, _, below) in CASES.items()})


@needs_promtool
@pytest.mark.whole
def test_no_alert_fires_at_zero(tmp_path: Path) -> None:
    """A cell that has just begun; a gateway that answers is 1 then."""
    nothing: Expected = {minute: [] for minute in (1, 30, 60, 100)}
    zero = {
        name: {one: "1x300" if one.startswith("up{") else "0x300" for one in series}
        for name, (series, *_) in CASES.items()
        if name != "RaylaneTrafficOffWorksheet"  # shown only for what is off
    }
    hold(tmp_path, {name: (series, nothing) for name, series in zero.items()})


@needs_promtool
@pytest.mark.whole
@pytest.mark.parametrize(("ready", "least"), [("0x60", "1x60"), ("1x20 0x60", "0x60")])
def test_a_first_start_and_a_model_that_needs_none_page_nobody(tmp_path: Path, ready: str, least: str) -> None:
    fires(tmp_path, {**OWNED, of(READY, **MODEL): ready, LEAST: least}, {minute: [] for minute in (10, 30, 50)})


@needs_promtool
@pytest.mark.whole
def test_few_requests_page_nobody(tmp_path: Path) -> None:
    """19 within six hours, all of them missed."""
    fires(
        tmp_path,
        {**OWNED, **slo("ttft", "0x400", "0x20 1+1x18 19x360", 0.99)},
        {minute: [] for minute in range(20, 400, 20)},
    )


@needs_promtool
@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "series", "minutes"),
    [
        *(
            (name, {one.replace("}", f', gateway="{gateway}"}}'): of_gateway[gateway] for gateway in "ab"}, minutes)
            for name, one in (("StartsFail", FAILED), ("ScalingImpaired", ALARMS), ("Departures", LOST))
            for of_gateway, minutes in (
                # The one hands on to the other; and a new cell has had fewer events than the old one.
                ({"a": "2x30", "b": "_x29 2x60"}, {29: False, 30: False, 31: False, 50: False}),
                ({"a": "5x30 stale", "b": "_x33 2x60"}, {29: False, 35: True, 60: False}),
            )
        ),
        ("PrefixHitsFall", prefix("0+20x200 4000x300"), {150: False, 205: False, 260: False}),
        (
            "HopsBreak",
            {of("raylane_hops_broken_total", peer="us", **MODEL): "0x10 1+1x90"},
            {40: True},
        ),
    ],
)
def test_an_alert_knows_its_cause(tmp_path: Path, name: str, series: Series, minutes: Mapping[int, bool]) -> None:
    told = {"alertname": f"Raylane{name}"}
    fires(tmp_path, {**OWNED, **series}, {minute: [told] * is_on for minute, is_on in minutes.items()})


@needs_promtool
@pytest.mark.whole
def test_drift_is_one_ticket_a_model_and_holds(tmp_path: Path) -> None:
    """Two gateways show the same figure from minute 5 to 15."""
    (rule,) = (one for one in rules() if one.get("alert") == "RaylaneTrafficOffWorksheet")
    shown = rule["annotations"] | {"summary": "1 figures of m are off the worksheet"}
    firing = {"exp_labels": {"severity": "ticket", "model": "m"}, "exp_annotations": shown}
    figure = {"class_": "chat", "region": "eu", "quantity": "prompt_tokens", **MODEL}
    case = {
        "interval": "1m",
        "input_series": [
            {"series": of("raylane_drift_ratio", gateway=one, **figure), "values": "_x5 2x10 _x200"} for one in "ab"
        ],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": rule["alert"], "exp_alerts": [firing] * fires}
            for minute, fires in ((4, 0), (10, 1), (45, 1), (90, 0))
        ],
    }
    check(tmp_path, case)


@pytest.mark.parametrize("rule", [one for one in rules() if "alert" in one], ids=lambda rule: rule["alert"])
def test_an_alert_names_its_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    _, *sections = re.split(r"^#+ ", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = [one for one in sections if _anchor(one.partition("\n")[0]) == anchor]
    assert len(found) == 1, anchor
    for part in (f"**{rule['labels']['severity'].title()}.**", "**Look at**", "**Do.**"):
        assert part in found[0], part


def _anchor(heading: str) -> str:
    """As a reader of Markdown makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
