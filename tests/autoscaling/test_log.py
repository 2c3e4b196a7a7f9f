"""A log replays to the same decisions, whatever is done to what decides meanwhile; and what is no log is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.log import ScalingInputs, ScalingLog, inputs_of, log_name, remembered
from autoscaling.policies.policy import Concern
from autoscaling.policies.registry import POLICIES
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import Forecast, unseen
from deployments.cell.control import Control, ControlKind
from deployments.decision_log import log_files
from deployments.decisions import Input, LogError
from deployments.wire import decoder, encode
from tests.autoscaling.outside import install_mine
from tests.autoscaling.setups import entries_of, replayed, setup, stream

HOLD = Control(ControlKind.HOLD, 5, 1_700_000_060.0, "ada", "a rehearsal")
END_UNIX_S = 1_700_000_200.0


def recorded(folder: Path, seconds: int = 120, max_bytes: int = 1 << 20, **given: object) -> Pair:
    """A log of so many seconds, with a hold for a while and a change of settings in the middle."""
    pair = Pair(setup(**given))  # type: ignore[arg-type]
    log = ScalingLog(folder, "org/m", "here", max_bytes)
    for number, signals in enumerate(stream(seconds)):
        if number == seconds // 2:
            pair.configure(setup(maximum=6, **given), signals.at_s)  # type: ignore[arg-type]
            log.configured()
        controls = (HOLD,) if 20 < number < 40 else ()
        log.before(pair, signals.at_s, signals.unix_s)
        log.after(signals, controls, pair.decide(signals, controls))
    log.close()
    return pair


def files(folder: Path) -> list[Path]:
    return log_files(folder, log_name("org/m"))


def test_every_decision_is_the_recorded_one(tmp_path: Path) -> None:
    recorded(tmp_path)
    found = replayed(entries_of(tmp_path, "org/m"))
    assert (found.inputs, found.difference, found.gaps) == (120, None, 0)
    assert found.counted > 0


@pytest.mark.whole
def test_so_it_is_with_a_shadow_and_over_rotated_files(tmp_path: Path) -> None:
    recorded(tmp_path, 300, max_bytes=20_000, shadow={"policy": "backlog", "backlog": {"utilisation": 0.5}})
    assert len(files(tmp_path)) > 2
    found = replayed(entries_of(tmp_path, "org/m"))
    assert (found.inputs, found.difference, found.gaps) == (300, None, 0)
    for file in files(tmp_path):
        assert replayed([file]).difference is None


@pytest.mark.parametrize("policy", [*POLICIES, "fixed"])
def test_so_it_is_with_every_policy(policy: str, tmp_path: Path) -> None:
    recorded(tmp_path, 90, policy=policy, shadow={"policy": "backlog"})
    assert replayed(entries_of(tmp_path, "org/m")).difference is None


def test_so_it_is_with_a_policy_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_mine(tmp_path, monkeypatch)
    recorded(tmp_path, 90, policy="mine")
    assert replayed(entries_of(tmp_path, "org/m")).difference is None
    known = remembered(tmp_path, "org/m", END_UNIX_S)
    assert known is not None
    assert known.pair.scaler.policy.asked > 0  # type: ignore[attr-defined]


def test_a_decision_that_was_another_is_told(tmp_path: Path) -> None:
    recorded(tmp_path)
    entries = entries_of(tmp_path, "org/m")
    entry = entries[50]
    assert isinstance(entry, Input)
    other = replace(decoder(ScalingDecision)(entry.decision), requested=7_777)
    found = replayed([*entries[:50], replace(entry, decision=encode(other)), *entries[51:]]).difference
    assert found is not None
    assert (found.number, found.recorded["requested"]) == (51, 7_777)
    assert str(found).startswith("entry 51, decide: recorded {'requested': 7777}, decided now {'requested': ")


@pytest.mark.parametrize("header_is_last", [False, True])
def test_state_is_restored_from_a_young_log_alone(tmp_path: Path, header_is_last: bool) -> None:
    """Also where its writer was killed between a header and what follows it."""
    pair = recorded(tmp_path, seconds=200)
    last = list(stream(200))[-1]
    if header_is_last:
        log = ScalingLog(tmp_path, "org/m", "here")
        log.before(pair, last.at_s, last.unix_s)
        log.close()
    known = remembered(tmp_path, "org/m", last.unix_s + 60)
    assert known is not None
    assert (known.unix_s, known.at_s, known.idle_s) == (last.unix_s, last.at_s, 0)
    following = list(stream(210))[200:]
    assert [known.pair.decide(signals) for signals in following] == [pair.decide(signals) for signals in following]
    old = remembered(tmp_path, "org/m", last.unix_s + 601)
    assert old is not None
    assert old.idle_s == 601
    assert remembered(tmp_path, "other", last.unix_s) is None


def test_models_whose_names_are_alike_have_logs_of_their_own(tmp_path: Path) -> None:
    recorded(tmp_path)
    for other in ("org-m", "m", "org", "org/m.000001"):
        assert remembered(tmp_path, other, END_UNIX_S) is None
        assert not log_files(tmp_path, log_name(other))


floats = st.floats(allow_nan=False)


@given(floats, floats, st.lists(floats, min_size=2, max_size=4), st.integers(0, 9), st.text(max_size=9))
def test_what_is_decided_from_comes_back_bit_by_bit(
    at_s: float, age_s: float, work: list[float], replicas: int, word: str
) -> None:
    forecast = Forecast(1.0, 60.0, tuple(work), tuple(work))
    signals = replace(next(stream(1)), at_s=at_s, age_s=age_s, forecast=forecast, schedulable=None, peers_spare=1.25)
    for facts in (
        ScalingInputs(signals, (Control(ControlKind.PIN, replicas, at_s, word, word), HOLD)),
        ScalingInputs(unseen(at_s, 1.0, replicas)),
    ):
        assert inputs_of(Input(at_s, "decide", encode(facts), b"")) == facts


@pytest.mark.parametrize("concern", list(Concern))
def test_a_decision_comes_back(concern: Concern) -> None:
    decision = replace(Pair(setup()).decide(next(stream(1))), concern=concern)
    assert decoder(ScalingDecision)(encode(decision)) == decision


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"\0" * 100, b"I\0\0\0\x02\0\0\0\0xy"])
def test_a_damaged_log_is_refused_and_a_restart_begins_anew(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorded(tmp_path)
    (file,) = files(tmp_path)
    with file.open("ab") as log:
        log.write(damage * 4)
    with pytest.raises(LogError, match="a damaged part"):
        replayed([file])
    assert remembered(tmp_path, "org/m", END_UNIX_S) is None
    assert "starts with nothing learned" in caplog.text


def test_state_that_this_code_cannot_go_on_with_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As an upgrade leaves it whose classes have another attribute."""
    recorded(tmp_path)
    monkeypatch.setattr(Pair, "decide", lambda pair, signals, controls: pair.a_new_attribute)
    assert remembered(tmp_path, "org/m", END_UNIX_S) is None
    assert "a_new_attribute" in caplog.text


def test_what_is_of_another_model_is_not_continued(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorded(tmp_path)
    (file,) = files(tmp_path)
    (tmp_path / "scaling-other.000001.log").write_bytes(file.read_bytes())
    assert remembered(tmp_path, "other", END_UNIX_S) is None
    assert not caplog.text
