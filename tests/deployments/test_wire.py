"""What frozen dataclasses become on the wire is read back as it was, and anything else is refused by the field."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.fetch_progress import FetchProgress
from deployments.accounting.bill import Amounts, Bill, BillLine, LineKey, TimeShare
from deployments.accounting.facts import (
    FACTS,
    AttemptUsage,
    Count,
    ReplicaBegun,
    ReplicaGone,
    ReplicaReady,
    ReplicasAlive,
    Tariff,
    Watched,
)
from deployments.cell.act import Act, ActKind
from deployments.cell.departure import EVENTS, DepartureCause, Ended, Lost, MemberKind, Ready
from deployments.starts.phases import Phase
from deployments.starts.start import ReplicaStart, StartOutcome
from deployments.wire import Wire, WireError, decoder, encode, from_plain, to_plain

TEXT, WHOLE, SECONDS = st.text(max_size=20), st.integers(0, (1 << 62) - 1), st.floats(0, 1e10)
TIMES = st.dictionaries(TEXT, WHOLE, max_size=3)
KINDS = st.sampled_from(MemberKind)
LOST = st.builds(Lost, WHOLE, WHOLE, WHOLE, st.lists(TEXT, max_size=3).map(tuple))
FETCHING = st.none() | st.builds(FetchProgress, WHOLE, WHOLE, WHOLE, SECONDS)
MESSAGES = st.one_of(
    st.builds(Tariff, WHOLE, TEXT, TEXT, TEXT, TEXT, WHOLE, st.fractions(0, 1_000), TEXT, WHOLE, SECONDS),
    st.builds(ReplicaBegun, WHOLE, TEXT, TEXT, TEXT),
    st.builds(ReplicaReady, WHOLE, TEXT),
    st.builds(ReplicaGone, WHOLE, TEXT),
    st.builds(ReplicasAlive, WHOLE, st.lists(TEXT, max_size=3).map(tuple)),
    st.builds(Watched, WHOLE, TEXT, TIMES, TIMES),
    st.builds(
        AttemptUsage,
        *(TEXT, TEXT, TEXT, TEXT, TEXT, WHOLE, WHOLE, st.sampled_from(Count), WHOLE, WHOLE, WHOLE, WHOLE, TEXT),
    ),
    st.builds(Ready, KINDS, TEXT, SECONDS, TEXT, WHOLE, TEXT),
    st.builds(Ended, KINDS, TEXT, SECONDS, st.sampled_from(DepartureCause), TEXT, WHOLE, TEXT, LOST, TEXT),
    st.builds(
        ReplicaStart,
        *(TEXT, TEXT, TEXT, SECONDS, st.sampled_from(Phase), SECONDS),
        st.dictionaries(st.sampled_from(Phase), SECONDS),
        *(st.sampled_from(StartOutcome), SECONDS, TEXT, TEXT, FETCHING),
    ),
    st.builds(Act, SECONDS, st.sampled_from(ActKind), TEXT, TEXT, replicas=WHOLE, until_unix_s=SECONDS),
)
ALL: Wire[Any] = Wire(
    *(Tariff, ReplicaBegun, ReplicaReady, ReplicaGone, ReplicasAlive, Watched, AttemptUsage),
    *(Ready, Ended, ReplicaStart, Act),
)
TARIFF = Tariff(1, "m", "default", "here", "h100", 2, Fraction(1, 3), "", 2_048, 4.0)


@given(MESSAGES)
def test_a_message_is_read_back_as_it_was(message: object) -> None:
    assert ALL.decode(ALL.encode(message)) == message
    assert ALL.read(*ALL.parts(message)) == message


@given(MESSAGES, st.integers(0, 200))
def test_a_message_that_broke_off_is_refused(message: object, kept: int) -> None:
    data = ALL.encode(message)
    if kept < len(data):
        with pytest.raises(WireError):
            ALL.decode(data[:kept])


def test_a_bill_travels_as_json_too() -> None:
    key = LineKey(3_600, "eu", "m", "default", TimeShare.WORK, "a", "chat", Fraction(1, 3), "us")
    bill = Bill((BillLine(key, Amounts(7, 3, 4, 1)),), {"m@default": "tokens"}, 2)
    assert from_plain(msgspec.json.decode(msgspec.json.encode(to_plain(bill))), Bill) == bill
    with pytest.raises(WireError, match=r"amounts\.ns"):
        from_plain({"lines": [{"key": to_plain(key), "amounts": {"ns": "1"}}]}, Bill)


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        (Ready, {"kind": "toaster", "who": "r", "at_unix_s": 1.0}, r"\.kind"),
        (Ready, {"kind": "replica", "who": 1, "at_unix_s": 1.0}, r"\.who"),
        (Ready, {"kind": "replica", "who": "r", "at_unix_s": "now"}, r"\.at_unix_s"),
        (Ready, {"kind": "replica", "who": "r"}, "`at_unix_s`"),
        (Ended, {"kind": "replica", "who": "r", "at_unix_s": 1.0, "cause": "boredom"}, r"\.cause"),
        (Lost, {"broken": -1}, r"\.broken"),
        (Lost, {"digests": [7]}, r"\.digests"),
        (Act, {"at_unix_s": 1.0, "kind": "hold", "model": "m", "by": "me", "replicas": -1}, r"\.replicas"),
        (Act, {"at_unix_s": 1.0, "kind": "hold", "model": 7, "by": "me"}, r"\.model"),
        (ReplicaReady, {"at_ns": -1, "replica_id": "r"}, r"\.at_ns"),
        (ReplicaReady, {"at_ns": True, "replica_id": "r"}, r"\.at_ns"),
        (ReplicasAlive, {"at_ns": 1, "replica_ids": "r"}, r"\.replica_ids"),
        (Watched, {"to_ns": 1, "gateway_id": "g", "since_ns": []}, r"\.since_ns"),
        (Tariff, {**to_plain(TARIFF), "usd_per_hour": "1/0"}, r"\.usd_per_hour"),
        (Tariff, {**to_plain(TARIFF), "usd_per_hour": "much"}, r"\.usd_per_hour"),
    ],
)
def test_what_is_wrong_is_named(kind: type[Any], fields: dict[str, Any], named: str) -> None:
    with pytest.raises(WireError, match=rf"{kind.__name__}: .*{named}"):
        decoder(kind)(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xc1", msgspec.msgpack.encode(None), encode(TARIFF), b"\x92\xa1\xff\x90"),
        pytest.param(b"\x92\xa1x" + b"\x91" * 200_000, id="nested"),
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        FACTS.decode(data)


def test_a_kind_that_is_not_one_of_them_is_named() -> None:
    with pytest.raises(WireError, match="'Tariff'; allowed: Ready, Ended, ReplicaStart"):
        EVENTS.decode(FACTS.encode(TARIFF))


def test_neighbouring_versions_understand_each_other() -> None:
    """A field that is not known is left out; one that is missing has its default."""
    newer = {**to_plain(ReplicaBegun(1, "r", "m")), "shade": "blue"}
    assert decoder(ReplicaBegun)(msgspec.msgpack.encode(newer)) == ReplicaBegun(1, "r", "m")
    del newer["group"]
    assert decoder(ReplicaBegun)(msgspec.msgpack.encode(newer)) == ReplicaBegun(1, "r", "m")
