"""Every log that is written on and on, each behind one face, for the tests of full and failing disks."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

from autoscaling.forecast.history import read_history
from autoscaling.log import SCALING, log_name
from autoscaling.serve.live_forecaster import LiveForecaster
from deployments.accounting.bill import HOUR_NS
from deployments.accounting.facts import NS, AttemptUsage, Count, Fact, ReplicaBegun, ReplicaReady, Tariff
from deployments.accounting.store import BillStore, bill_in
from deployments.cell.act import Act, ActKind, Audit
from deployments.cell.departure import MemberKind, Ready
from deployments.cell.lifecycle_log import LifecycleLog
from deployments.decision_log import DecisionLog, log_files, read_log
from deployments.decisions import Input, replay
from deployments.engine.step_log import EngineFacts, StepLine, StepLog
from deployments.scheduling.recorder import SCHEDULING, RecordingScheduler
from deployments.store import FILE_NAME, CellStore, KeptValue
from deployments.telemetry.journal import Journal
from deployments.telemetry.ledger import Ledger
from deployments.telemetry.line_log import LogHealth, Logs
from deployments.traffic.counts import Period, Stream, Stretches
from deployments.traffic.store import add_traffic, traffic_in
from tests.autoscaling.serve.scaling_harness import ScalingHarness
from tests.deployments.accounting.replicas import BEGIN, PRICE
from tests.deployments.scheduling.world import POLICY, make_request

LINES = 12


class Writer(Protocol):
    """One log. `raises`: whoever writes to it has to know of a failure."""

    raises: bool

    def write(self) -> None:
        """Does what makes it write."""

    def failing(self) -> bool:
        """Whether it says that it cannot be written."""

    def check(self, gaps: bool) -> None:
        """Reads it: nothing in it is torn, and what follows a gap is there."""

    def close(self) -> None:
        """Ends it."""


class Decisions:
    raises = False

    def __init__(self, folder: Path) -> None:
        self.health = LogHealth("decisions")
        self.log = DecisionLog(folder / "decisions", "m", self.health)
        self.scheduler = RecordingScheduler(POLICY, self.log.write, self.log.due, self.log.lost)
        self.twin = RecordingScheduler(POLICY, lambda entry: None)
        self.number = 0
        self.folder = folder / "decisions"

    def write(self) -> None:
        self.number += 1
        for scheduler in (self.scheduler, self.twin):  # as much as fills a buffer
            for part in range(50):
                scheduler.submit(make_request(f"q{self.number}-{part}", 100), self.number)
        assert self.scheduler.step(self.number) == self.twin.step(self.number)
        assert self.scheduler.snapshot(self.number) == self.twin.snapshot(self.number)

    def failing(self) -> bool:
        return self.log.broken

    def check(self, gaps: bool) -> None:
        self.log.close()
        entries = list(read_log(log_files(self.folder, "m")))
        found = replay(entries, (SCHEDULING,))
        assert (found.difference, found.gaps > 0) == (None, gaps)
        last = entries[-1]
        assert isinstance(last, Input)
        assert (last.at_s, last.method) == (self.number, "step")

    def close(self) -> None:
        self.log.close()


class Scaling:
    raises = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs"
        self.outcome = ScalingHarness(self.folder, 1)
        self.count = 1

    def write(self) -> None:
        self.count = 3 - self.count  # a changed spec is followed, and so written down, at once
        self.outcome.apply(policy="fixed", count=self.count)
        self.outcome.scaling.turn()
        assert self.outcome.cell.states[-1].requested == self.count

    def failing(self) -> bool:
        return "no_log" in self.outcome.cell.states[-1].alarms

    def check(self, gaps: bool) -> None:
        found = replay(read_log(log_files(self.folder, log_name("m"))), (SCALING,))
        assert (found.difference, found.gaps > 0) == (None, gaps)

    def close(self) -> None:
        self.outcome.scaling.close()


class Lines:
    """A log of lines that stand alone."""

    raises = False

    def __init__(self, path: Path, health: LogHealth, write: Callable[[], None], close: Callable[[], None]) -> None:
        self.path, self.health, self._write, self.close = path, health, write, close

    def write(self) -> None:
        self._write()

    def failing(self) -> bool:
        return self.health.error is not None

    def check(self, gaps: bool) -> None:
        lines = self.path.read_text().splitlines()
        assert len([json.loads(line) for line in lines]) >= LINES
        assert (self.health.lost_lines > 0) == gaps


def access(folder: Path) -> Lines:
    logs = Logs()
    journal = Journal(folder / "logs" / "access.jsonl", None, logs)
    return Lines(
        folder / "logs" / "access.jsonl", logs.named("access"), lambda: journal.write(ended_ledger()), journal.close
    )


def trace(folder: Path) -> Lines:
    logs = Logs()
    journal = Journal(None, folder / "trace.jsonl", logs)
    return Lines(folder / "trace.jsonl", logs.named("trace"), lambda: journal.write(ended_ledger()), journal.close)


def steps(folder: Path) -> Lines:
    health = LogHealth("steps")
    log = StepLog(folder / "steps" / "s.jsonl", health)
    log.begin(EngineFacts(64, 2_048, 65_536, 128))
    step = StepLine(12.5, 1, 7, 2, 3, 4, 0.25)
    return Lines(folder / "steps" / "s.jsonl", health, lambda: log.write(step), log.close)


def ended_ledger() -> Ledger:
    ledger = Ledger(request_id="q", attempt_id="e", path="/v1/completions", arrived_s=1.0, arrived_unix_s=2.0)
    ledger.ended_s = 2.0
    return ledger


class Arrivals:
    """Written by a thread of its own; the next one tries again."""

    raises = False

    def __init__(self, folder: Path) -> None:
        self.path = folder / "arrivals.json"
        self.live_forecaster = LiveForecaster(
            SimpleNamespace(
                facts=None, model=SimpleNamespace(name="m", group_key="m"), setup=SimpleNamespace(forecast="none")
            ),
            self.path,
        )  # type: ignore[arg-type]
        self.unix_s = 1e9

    def write(self) -> None:
        self.unix_s += 600.0
        self.live_forecaster.look(SimpleNamespace(unix_s=self.unix_s, epoch=1, arrived_work=self.unix_s - 1e9))  # type: ignore[arg-type]
        for thread in threading.enumerate():
            if thread.name == "raylane-arrivals":
                thread.join(20)

    def check(self, gaps: bool) -> None:
        assert len(read_history(self.path)) >= LINES

    def close(self) -> None:
        pass


class Store:
    """The cell's: an order that cannot be written is not in force; all else is written with the next, or delivered
    again."""

    raises = False

    def __init__(self, folder: Path) -> None:
        self.store = CellStore(folder / FILE_NAME)
        self.audit, self.lives, self.bills = Audit(self.store), LifecycleLog(self.store), BillStore(self.store)
        self.epochs = KeptValue(self.store, "epochs", dict[str, int])
        self.known: list[Fact] = [
            Tariff(BEGIN, "m", "default", "here", "h100", 1, PRICE, "", 512, 4.0),
            ReplicaBegun(BEGIN, "r", "m"),
            ReplicaReady(BEGIN, "r"),
        ]
        self.waiting: list[Fact] = list(self.known)
        self.counted = Stretches()
        self.written = self.acts = 0

    def write(self) -> None:
        self.written += 1
        with suppress(OSError):
            self.audit.write(Act(1.0, ActKind.HOLD, "m", "me", why="x" * 300, replicas=2, until_unix_s=1e10))
            self.acts += 1
        self.epochs.write({f"model-{number}": self.written for number in range(20)})
        self.lives.write(Ready(MemberKind.REPLICA, "r" * 100, float(self.written), "m"))
        times = BEGIN + (self.written - 1) * NS, BEGIN + self.written * NS
        for part in range(3):
            name = f"{self.written}-{part}"
            self.waiting.append(AttemptUsage(name, "r", "m", "a", "chat", *times, Count.ENGINE, 100, 0, 10))
        if self.bills.add(self.waiting, times[1]):
            self.waiting.clear()
        self.counted.of(Period.HOUR, float(self.written), Stream("m", "chat", "here")).requests += 1
        with suppress(OSError):
            self.store.write(lambda file: add_traffic(file, "g", self.written, self.counted))
            self.counted = Stretches()

    def failing(self) -> bool:
        return self.store.health.error is not None

    def check(self, gaps: bool) -> None:
        store = CellStore(self.store.path)
        assert KeptValue(store, "epochs", dict[str, int]).read()["model-7"] == self.written
        assert len(Audit(store).read()) == self.acts - self.removed
        numbers = [round(event.at_unix_s) for event in LifecycleLog(store).read()]
        assert numbers == list(range(1 + self.removed, self.written + 1))
        with store.reading() as file:
            bill = bill_in(file, until_ns=BEGIN + HOUR_NS)
            (traffic,) = traffic_in(file, Period.HOUR).counts.values()
        assert traffic.requests == self.written - self.removed
        assert (bill.unread, self.store.health.lost_lines) == (0, 0)
        assert sum(line.amounts.requests for line in bill.lines) == 3 * (self.written - self.removed)
        assert self.removed or BillStore(store).known() == self.known
        store.close()

    removed = 0

    def close(self) -> None:
        self.store.close()


WRITERS: dict[str, Callable[[Path], Writer]] = {
    "decisions": Decisions,
    "scaling": Scaling,
    "access": access,  # type: ignore[dict-item]
    "trace": trace,  # type: ignore[dict-item]
    "steps": steps,  # type: ignore[dict-item]
    "arrivals": Arrivals,  # type: ignore[dict-item]
    "store": Store,
}
"""Every file that a gateway, a replica, the directory or the controller goes on writing to."""
