"""A log replays to the same decisions, whatever is done to what decides meanwhile; and what is no log is refused."""

import base64
import json
import pickle
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.log.codec import (
    controls_from,
    controls_tree,
    decision_from,
    decision_tree,
    signals_from,
    signals_tree,
)
from autoscaling.log.reader import LogError, lines_of, log_files, remembered, replay
from autoscaling.log.writer import ScalingLog
from autoscaling.policies.policy import Concern
from autoscaling.policies.registry import POLICIES
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import Forecast, Signals
from deployments.cell.control import Control, ControlKind
from tests.autoscaling.facts import as_kept
from tests.autoscaling.outside import install_mine
from tests.autoscaling.setups import setup, stream

HOLD = Control(ControlKind.HOLD, 5, 1_700_000_060.0, "ada", "a rehearsal")


def ns_of(signals: Signals) -> tuple[int, int]:
    return round(signals.at_s * 1e9), round(signals.unix_s * 1e9)


def recorded(folder: Path, seconds: int = 120, max_bytes: int = 1 << 20, **given: object) -> Pair:
    """A log of so many seconds, with a hold for a while and a change of settings in the middle."""
    pair = Pair(setup(**given))  # type: ignore[arg-type]
    log = ScalingLog(folder, "org/m", "here", max_bytes)
    for number, signals in enumerate(stream(seconds)):
        if number == seconds // 2:
            pair.configure(setup(maximum=6, **given), signals.at_s)  # type: ignore[arg-type]
            log.configured()
        controls = (HOLD,) if 20 < number < 40 else ()
        log.before(pair, *ns_of(signals))
        log.after(*ns_of(signals), signals, controls, pair.decide(signals, controls))
    log.close()
    return pair


def lines(folder: Path) -> list[str]:
    return list(lines_of(log_files(folder, "org/m")))


def test_every_decision_is_the_recorded_one(tmp_path: Path) -> None:
    recorded(tmp_path)
    found = replay(lines(tmp_path))
    assert (found.decisions, found.difference) == (120, None)
    assert found.changes > 0


def test_so_it_is_with_settings_that_change_under_an_operators_hold(tmp_path: Path) -> None:
    recorded(tmp_path, seconds=60)
    assert replay(lines(tmp_path)).difference is None


def test_so_it_is_with_a_shadow_and_over_rotated_files(tmp_path: Path) -> None:
    recorded(tmp_path, 300, max_bytes=30_000, shadow={"policy": "backlog", "backlog": {"utilisation": 0.5}})
    files = log_files(tmp_path, "org/m")
    assert len(files) > 2
    assert replay(lines_of(files)).difference is None
    for file in files:
        assert replay(lines_of([file])).difference is None


@pytest.mark.parametrize("policy", [*POLICIES, "fixed"])
def test_so_it_is_with_every_policy(policy: str, tmp_path: Path) -> None:
    recorded(tmp_path, 90, policy=policy, shadow={"policy": "backlog"})
    assert replay(lines(tmp_path)).difference is None


def test_so_it_is_with_a_policy_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mine(tmp_path, monkeypatch)
    recorded(tmp_path, 90, policy="mine")
    assert replay(lines(tmp_path)).difference is None
    known = remembered(tmp_path, "org/m", 10**9 * 1_700_000_100)
    assert known is not None
    assert known.pair.scaler.policy.asked > 0  # type: ignore[attr-defined]


def test_a_decision_that_was_another_is_told(tmp_path: Path) -> None:
    recorded(tmp_path)
    changed = lines(tmp_path)
    number = next(index for index, line in enumerate(changed) if '"2":{"0"' in line)
    entry = json.loads(changed[number])
    entry[2]["2"]["0"] = 7_777
    changed[number] = json.dumps(entry) + "\n"
    found = replay(changed).difference
    assert found is not None
    assert (found.line, found.recorded.requested) == (number + 1, 7_777)


def test_state_is_restored_from_a_young_log_alone(tmp_path: Path) -> None:
    pair = recorded(tmp_path, seconds=200)
    last_unix_ns = 10**9 * (1_700_000_000 + 199)
    known = remembered(tmp_path, "org/m", last_unix_ns + 60 * 10**9)
    assert known is not None
    assert (known.unix_ns, known.ns) == (last_unix_ns, 10**9 * 199 + 17)
    following = list(stream(210))[200:]
    assert [known.pair.decide(signals) for signals in following] == [pair.decide(signals) for signals in following]
    assert known.idle_s == 0
    old = remembered(tmp_path, "org/m", last_unix_ns + 601 * 10**9)
    assert old is not None
    assert old.idle_s == 601
    assert remembered(tmp_path, "other", last_unix_ns) is None


def test_models_whose_names_are_alike_have_logs_of_their_own(tmp_path: Path) -> None:
    recorded(tmp_path)
    assert remembered(tmp_path, "org-m", 10**9 * 1_700_000_200) is None
    assert not log_files(tmp_path, "org-m")


def test_a_log_whose_writer_was_killed_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    recorded(tmp_path)
    (file,) = log_files(tmp_path, "org/m")
    text = file.read_text()
    file.write_text(text[:-20])
    assert replay(lines_of([file])).decisions == 119
    assert replay(file.read_text().splitlines(keepends=True)).decisions == 119
    assert remembered(tmp_path, "org/m", 10**9 * 1_700_000_200) is not None


@pytest.mark.parametrize(
    "bad",
    [
        ["{"],
        ['{"log":"other"}'],
        ["[1,2,{}]"],
        ['{"log":"scaling","schema":99}'],
        ['{"log":"scaling","schema":1}'],
        ['{"log":"scaling","schema":2}'],
        ["[1]"],
        ["7"],
    ],
)
def test_what_is_no_log_is_refused(bad: list[str]) -> None:
    with pytest.raises(LogError, match="line 1"):
        replay([line + "\n" for line in bad])


def test_other_code_is_told_and_may_be_replayed_on_purpose(tmp_path: Path) -> None:
    recorded(tmp_path)
    log = lines(tmp_path)
    for number, line in enumerate(log):
        if line.startswith("{"):
            log[number] = json.dumps({**json.loads(line), "code": "other"}) + "\n"
    with pytest.raises(LogError, match="recorded by code other"):
        replay(log)
    assert replay(log, any_code=True).difference is None


def test_a_header_makes_nothing_but_its_own_classes(tmp_path: Path) -> None:
    recorded(tmp_path)
    log = lines(tmp_path)

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path, ("/",)

    for state in (
        pickle.dumps(Evil.__reduce__(Evil())[0]),
        pickle.dumps(setup),
        pickle.dumps({"a": 1}),
        b"",
        b"\x80\x04.",
    ):
        header = {**json.loads(log[0]), "state": base64.b64encode(zlib.compress(state)).decode()}
        with pytest.raises(LogError, match="state cannot be read"):
            replay([json.dumps(header) + "\n", *log[1:]])


floats = st.floats(allow_nan=False)


@given(st.integers(0, 10**15), st.integers(10**18, 2 * 10**18), floats, st.lists(floats, min_size=2, max_size=4))
def test_signals_come_back_bit_by_bit(ns: int, unix_ns: int, age_s: float, work: list[float]) -> None:
    base = next(stream(1))
    forecast = Forecast(1.0, 60.0, tuple(work), tuple(work))
    facts = replace(
        base,
        at_s=ns / 1e9,
        unix_s=unix_ns / 1e9,
        age_s=age_s,
        forecast=forecast,
        forecast_failed=True,
        schedulable=None,
    )
    signals = as_kept(facts)
    assert (signals.replicas[0].sequences, signals.flows, signals.backlog) == (
        facts.replicas[0].sequences,
        facts.flows,
        facts.backlog,
    )
    tree = json.loads(json.dumps(signals_tree(signals)))
    assert signals_from(tree, ns, unix_ns) == signals


def test_what_peers_have_to_spare_comes_back() -> None:
    signals = replace(next(stream(1)), peers_spare=1.25)
    assert as_kept(signals).peers_spare == 1.25


@given(st.integers(0, 9), floats, st.text(max_size=9))
def test_controls_and_decisions_come_back(replicas: int, until: float, word: str) -> None:
    controls = (Control(ControlKind.PIN, replicas, until, word, word), HOLD)
    assert controls_from(json.loads(json.dumps(controls_tree(controls)))) == controls
    pair, signals = Pair(setup()), next(stream(1))
    decision = pair.decide(signals, controls)
    assert decision_from(json.loads(json.dumps(decision_tree(decision, True))), signals) == decision


@pytest.mark.parametrize("concern", list(Concern))
def test_a_concern_comes_back(concern: Concern) -> None:
    signals = next(stream(1))
    decision = replace(Pair(setup()).decide(signals), concern=concern)
    assert decision_from(json.loads(json.dumps(decision_tree(decision, True))), signals) == decision


DAMAGE = (b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"\0" * 100 + b"\n", b"7\n", b'{"log":"scaling"}\n[1,2,{}]\n')


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_is_refused_and_a_restart_begins_anew(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorded(tmp_path)
    (file,) = log_files(tmp_path, "org/m")
    with file.open("ab") as log:
        log.write(damage + damage)
    with pytest.raises(LogError):
        replay(lines_of([file]))
    assert remembered(tmp_path, "org/m", 10**9 * 1_700_000_200) is None
    assert "starts with nothing learned" in caplog.text


def test_state_that_this_code_cannot_go_on_with_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As an upgrade leaves it whose classes have another attribute."""
    recorded(tmp_path)
    monkeypatch.setattr(Pair, "decide", lambda pair, signals, controls: pair.a_new_attribute)
    assert remembered(tmp_path, "org/m", 10**9 * 1_700_000_200) is None
    assert "a_new_attribute" in caplog.text


def test_what_is_of_another_model_is_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorded(tmp_path)
    (file,) = log_files(tmp_path, "org/m")
    (tmp_path / "scaling-other.jsonl").write_text(file.read_text())
    monkeypatch.setattr(Pair, "decide", lambda pair, signals, controls: pytest.fail("it was replayed"))
    assert remembered(tmp_path, "other", 10**9 * 1_700_000_200) is None
    assert not caplog.text
