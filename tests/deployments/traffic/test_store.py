import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deployments.traffic import store as store_module
from deployments.traffic.counts import Period, Stream, Stretches, TrafficCounts
from deployments.traffic.store import StoreError, TrafficStore

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


def of(store: TrafficStore, period: Period = Period.HOUR, **options: bool) -> dict[tuple[int, Stream], TrafficCounts]:
    return {(begin, stream): counts for (_, begin, stream), counts in store.read(period, **options).counts.items()}


def test_writes_add_up(tmp_path: Path) -> None:
    store = TrafficStore(tmp_path / "t.sqlite")
    store.add(stretches(7_210.0, 3))
    store.add(stretches(7_290.0, 2))
    TrafficStore(store.path).add(stretches(7_290.0, 1, Stream("demo", "batch", "eu", "someone")))
    ((key, whole),) = ((key, counts) for key, counts in of(store).items() if key[1] == CHAT)
    assert key[0] == 7_200
    assert (whole.requests, whole.prompt_tokens, whole.cached_tokens, whole.output_tokens) == (5, 500, 100, 50)
    assert whole.prompt.tokens == 500
    assert store.read(Period.HOUR).watched_s(Period.HOUR, 7_200) == 30
    assert [counts.requests for counts in of(store, Period.MINUTE).values()] == [3, 1, 2]


def test_tenants_are_counted_together_unless_asked_for(tmp_path: Path) -> None:
    store = TrafficStore(tmp_path / "t.sqlite")
    for tenant in ("a", "b"):
        store.add(stretches(10.0, 2, Stream("demo", "interactive", "eu", tenant)))
    assert of(store)[0, CHAT].requests == 4
    assert {stream.tenant for _, stream in of(store, tenants=True)} == {"a", "b"}


def test_old_stretches_go_and_a_wrong_clock_costs_nothing_later(tmp_path: Path) -> None:
    store = TrafficStore(tmp_path / "t.sqlite")
    day_s = 86_400
    for at_s in (0.0, 1.0 * day_s, 4.5 * day_s):
        store.add(stretches(at_s, 1))
    assert {begin for begin, _ in of(store, Period.MINUTE)} == {4.5 * day_s}
    assert len(of(store)) == 3
    store.add(stretches(9_000.0 * day_s, 1))
    store.add(stretches(5.0 * day_s, 1))
    assert 5.0 * day_s in {begin for begin, _ in of(store, Period.MINUTE)}
    assert 5.0 * day_s in {begin for begin, _ in of(store)}


def test_the_file_stays_bounded(tmp_path: Path) -> None:
    store = TrafficStore(tmp_path / "t.sqlite", max_bytes=60_000)
    for hour in range(50):
        new = Stretches()
        for tenant in range(5):
            counts = new.of(Period.HOUR, hour * HOUR, Stream("demo", "interactive", "eu", f"tenant-{tenant}"))
            for tokens in range(1, 60):
                counts.finish(tokens**3, 0, tokens)
        new.watch(hour * HOUR, (hour + 1) * HOUR)
        store.add(new)
    begins = {begin for begin, _ in of(store)}
    assert store.path.stat().st_size < 200_000
    assert max(begins) == 49 * HOUR
    assert 5 < len(begins) < 45


@pytest.mark.whole
def test_gateways_write_at_once_and_a_killed_one_tears_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from deployments.traffic.store import TrafficStore;"
        "from tests.deployments.traffic.test_store import stretches;"
        "store = TrafficStore(Path(sys.argv[1]));\n"
        # A pause, as gateways have: the lock of SQLite is not fair, so a writer without it starves the other.
        "while True: store.add(stretches(10.0, 1)); print(flush=True); time.sleep(0.02)"
    )
    store = TrafficStore(tmp_path / "t.sqlite")
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(store.path)], stdout=subprocess.PIPE) for _ in range(2)
    ]
    begun, done = [], []
    try:
        for writer in writers:
            assert writer.stdout is not None
            begun.append(writer.stdout.readline())
        time.sleep(0.3)
    finally:
        for writer in writers:
            writer.kill()
            done.append(1 + len(writer.communicate()[0]))
    assert all(begun)
    found = of(store)[0, CHAT].requests
    assert sum(done) <= found <= sum(done) + len(writers)
    store.add(stretches(10.0, 1))
    assert of(store)[0, CHAT].requests == found + 1


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = TrafficStore(tmp_path / "missing.sqlite")
    with pytest.raises(StoreError, match=r"missing\.sqlite: unable to open"):
        missing.read(Period.HOUR)
    with pytest.raises(StoreError, match="unable to open"):
        missing.identity()
    text = tmp_path / "text"
    text.write_text("no database, but long enough to be looked at" * 100)
    with pytest.raises(StoreError, match="text: file is not a database"):
        TrafficStore(text).read(Period.HOUR)
    with pytest.raises(sqlite3.DatabaseError):
        TrafficStore(text).add(stretches(0.0, 1))
    newer = TrafficStore(tmp_path / "newer.sqlite")
    monkeypatch.setattr(store_module, "VERSION", 3)
    newer.add(stretches(0.0, 1))
    monkeypatch.undo()
    with pytest.raises(StoreError, match="version = '3'; allowed: '2'"):
        newer.read(Period.HOUR)


def test_a_file_keeps_its_id(tmp_path: Path) -> None:
    stores = [TrafficStore(tmp_path / name) for name in ("a", "b", "a")]
    for store in stores:
        store.add(stretches(0.0, 1))
    ids = [store.identity() for store in stores]
    assert ids[0] == ids[2] != ids[1]
