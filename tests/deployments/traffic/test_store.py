from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.store import FILE_NAME, CellStore, CellStoreError
from deployments.traffic import store as store_module
from deployments.traffic.counts import Period, Stream, Stretches, TrafficCounts
from deployments.traffic.store import add_traffic, read_traffic, traffic_in

CHAT = Stream("demo", "interactive", "eu")
HOUR = 3_600


def stretches(at_s: float, requests: int, stream: Stream = CHAT) -> Stretches:
    found = Stretches()
    for period in Period:
        for _ in range(requests):
            counts = found.of(period, at_s, stream)
            counts.requests += 1
            counts.finish(100, 20, 10)
    found.watch(at_s, at_s + 10)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CellStore]:
    store = CellStore(tmp_path / FILE_NAME)
    yield store
    store.close()


def add(store: CellStore, new: Stretches, gateway: str, delivery: int) -> None:
    store.write(lambda file: add_traffic(file, gateway, delivery, new))


def of(store: CellStore, period: Period = Period.HOUR, **options: bool) -> dict[tuple[int, Stream], TrafficCounts]:
    with store.reading() as file:
        return {(begin, one): counts for (_, begin, one), counts in traffic_in(file, period, **options).counts.items()}


def test_deliveries_add_up_each_once(store: CellStore) -> None:
    first = stretches(7_210.0, 3)
    for number, new in ((1, first), (1, first), (2, stretches(7_290.0, 2)), (1, first)):
        add(store, new, "a", number)
    add(store, stretches(7_290.0, 1, Stream("demo", "batch", "eu", "someone")), "b", 1)
    ((key, whole),) = ((key, counts) for key, counts in of(store).items() if key[1] == CHAT)
    assert key[0] == 7_200
    assert (whole.requests, whole.prompt_tokens, whole.cached_tokens, whole.output_tokens) == (5, 500, 100, 50)
    assert whole.prompt.tokens == 500
    assert store.path is not None
    assert read_traffic(store.path, Period.HOUR).watched_s(Period.HOUR, 7_200) == 30
    assert [counts.requests for counts in of(store, Period.MINUTE).values()] == [3, 1, 2]


def test_tenants_are_counted_together_unless_asked_for(store: CellStore) -> None:
    for tenant in ("a", "b"):
        add(store, stretches(10.0, 2, Stream("demo", "interactive", "eu", tenant)), tenant, 1)
    assert of(store)[0, CHAT].requests == 4
    assert {stream.tenant for _, stream in of(store, tenants=True)} == {"a", "b"}


def test_old_stretches_go_and_a_clock_that_was_ahead_for_a_while_costs_nothing(
    store: CellStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "KEPT", {Period.MINUTE: 5, Period.HOUR: 4})
    for number in range(6):
        add(store, stretches(HOUR * number, 1), "a", number + 1)
    assert [begin for begin, _ in of(store, Period.MINUTE)] == [HOUR * number for number in (1, 2, 3, 4, 5)]
    assert [begin for begin, _ in of(store)] == [HOUR * number for number in (2, 3, 4, 5)]
    for number in range(3):
        add(store, stretches(9_000.0 * 86_400 + number, 1), "a", 7 + number)
    assert [begin for begin, _ in of(store)] == [HOUR * number for number in (3, 4, 5)] + [9_000 * 86_400]
    add(store, stretches(6.0 * HOUR, 1), "a", 10)
    assert 6 * HOUR in {begin for begin, _ in of(store)}


def test_the_rows_stay_bounded(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_COUNTS", 100)
    monkeypatch.setattr(store_module, "_REMEMBERED", 3)
    for hour in range(50):
        new = Stretches()
        for tenant in range(5):
            new.of(Period.HOUR, hour * HOUR, Stream("demo", "interactive", "eu", f"tenant-{tenant}")).requests += 1
        new.watch(hour * HOUR, (hour + 1) * HOUR)
        add(store, new, f"gateway-{hour}", 1)
    begins = {begin for begin, _ in of(store)}
    assert max(begins) == 49 * HOUR
    assert 5 < len(begins) <= 21
    assert store.rows("select gateway from deliveries order by gateway") == [(f"gateway-{n}",) for n in (47, 48, 49)]


def test_counts_that_cannot_be_read_are_left_out(store: CellStore) -> None:
    add(store, stretches(10.0, 2), "a", 1)
    store.write(lambda file: file.execute("update traffic set body = x'00'"))
    assert of(store)[0, CHAT].requests == 0
    add(store, stretches(10.0, 3), "a", 2)
    assert of(store)[0, CHAT].requests == 3


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing\.sqlite: unable to open"):
        read_traffic(tmp_path / "missing.sqlite", Period.HOUR)
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be looked at" * 100)
    with pytest.raises(CellStoreError, match="text: file is not a database"):
        read_traffic(text, Period.HOUR)
