"""Where facts and bills are kept: a folder with a file of facts for each hour, which the directory alone writes, and a
file with the bill of each hour that is settled, in place of its facts.

An hour is settled `SETTLE_S` after its end, once: with its bill in place it is never settled again. What is reported of
it later changes nothing in it, whether it was late or the clock went back: it comes into the file of the hour that is
open, where its tokens are counted, and the time stays unattributed. Both kinds of files have a limit. Facts beyond
`MAX_FACT_BYTES` an hour are lost and counted, so that their time is unattributed; of settled hours the oldest go first.
Cost files of engines are kept here, too, as they were when the facts were written.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from cluster.files import write_whole
from deployments.accounting.bill import (
    HOUR_NS,
    Bill,
    bill_from,
    bill_record,
    hour_name,
    hour_named,
    hour_of,
    lines_where,
    summed,
)
from deployments.accounting.billing import bill_of
from deployments.accounting.facts import Fact, ReplicaBegun, Settled, Tariff, fact_in, line_of, ns
from deployments.accounting.gathering import gathered
from deployments.accounting.pricing import Pricing, StepPricing, TokenPricing
from deployments.engine_model.cost_file import CostFileError, read_cost_file
from deployments.telemetry.line_log import LogHealth, WholeLines

log = logging.getLogger("raylane.cost")

FOLDER = "cost"
"""In the run directory."""
LIVES_FILE = "lives.jsonl"
"""In that folder: the replicas that are there, for a directory that starts again."""
TOTALS_FILE = "totals.json"
"""There, too: the sum of all hours that were settled, for counters that only grow."""
SETTLE_S = 1_200.0
"""After the end of an hour: the longest request that most specs allow, and time for a directory to come back."""
MAX_FACT_BYTES = 512 << 20
"""Of facts of one hour: some 900 requests a second."""
MAX_SETTLED_BYTES = 256 << 20
MAX_SETTLED_HOURS = 400 * 24
"""Thirteen months, so that a year can be compared with the last one."""
PART_BYTES = 16 << 20
"""Of facts that are billed at once: some 100,000 requests, which take 150 MB of memory."""
_FACTS, _BILL, _COSTS = ".jsonl", ".json", ".costs.json"


class CostFileStore:
    """`folder` is made with the first fact. Writing raises nothing: what cannot be written is lost and counted by
    `health`."""

    def __init__(self, folder: Path, health: LogHealth | None = None, max_fact_bytes: int = MAX_FACT_BYTES) -> None:
        self.folder = folder
        self.health = health or LogHealth("cost")
        self._max_fact_bytes = max_fact_bytes
        self._file: WholeLines | None = None
        self._hour_ns = -1
        self._closed_ns = -1
        with suppress(OSError):  # then nothing is settled, either
            self._closed_ns = self._last_settled()
        self._is_behind = False
        self._costs: dict[str, tuple[int, str]] = {}
        """By their paths: when they were changed last, and their names here."""

    def append(self, lines: bytes, now_ns: int, carried: Callable[[], bytes] = bytes) -> bool:
        """Adds whole lines to the file of this hour, or of the first that is open where the clock is behind; a file
        begins with `carried()`. Whether they were written, or are lost for good, since the hour has its limit."""
        hour_ns = max(hour_of(now_ns), self._closed_ns + HOUR_NS)
        if now_ns < hour_ns and not self._is_behind:
            log.warning(
                "the clock went back into a settled hour: what is reported now counts in %s", hour_name(hour_ns)
            )
        self._is_behind = now_ns < hour_ns
        try:
            file = self._open(hour_ns, carried)
            if file.size + len(lines) > self._max_fact_bytes:
                self.health.lost(lines.count(b"\n"), OSError(f"the facts of this hour have {file.size} bytes"))
                return True
            file.add(lines)
        except OSError as error:
            self.health.lost(0, error)
            self._leave()
            return False
        self.health.well()
        return True

    def keep_lives(self, lines: bytes) -> None:
        """Replaces what the next directory is to know of replicas."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / LIVES_FILE, lines.decode())
        except OSError as error:
            self.health.lost(0, error)

    def lives(self) -> list[Fact]:
        try:
            return [fact for fact in _facts(self.folder / LIVES_FILE) if fact is not None]
        except OSError as error:
            log.error("the replicas that were there are not known: %s", error)
            return []

    def keep_costs(self, path: str) -> str:
        """Copies a cost file into the folder, and returns its name there; empty where it cannot be read."""
        try:
            changed_ns = Path(path).stat().st_mtime_ns
            if self._costs.get(path, (0, ""))[0] != changed_ns:
                text = Path(path).read_text(encoding="utf-8")
                name = hashlib.sha256(text.encode()).hexdigest()[:16] + _COSTS
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(self.folder / name, text)
                self._costs[path] = changed_ns, name
        except (OSError, UnicodeDecodeError) as error:
            if path not in self._costs:
                log.warning("the cost file %s cannot be kept, so that work is priced by tokens: %s", path, error)
                self._costs[path] = 0, ""
        return self._costs[path][1]

    def due(self, now_ns: int) -> list[int]:
        """The hours that are to be settled, oldest first."""
        settled_ns = self._last_settled()
        return [one for one in self._hours(_FACTS) if settled_ns < one <= now_ns - HOUR_NS - ns(SETTLE_S)]

    def close_hour(self, hour_ns: int, now_ns: int, carried: Callable[[], bytes] = bytes) -> bool:
        """An hour is about to be settled: from now on nothing comes into it. Whether that is written."""
        if not self.append(line_of(Settled(hour_ns)), now_ns, carried):
            return False
        self._closed_ns = max(self._closed_ns, hour_ns)
        return True

    def settle(self, hour_ns: int) -> None:
        """Writes the bill of an hour that was closed before, and of those before it without a file, and removes the
        facts; of a settled hour it only does what is left to do. Raises OSError."""
        settled_ns = self._last_settled()
        if hour_ns > settled_ns:
            first_ns = settled_ns + HOUR_NS if settled_ns >= 0 else hour_ns - HOUR_NS
            bill = self._bill_of(range(first_ns, hour_ns + 1, HOUR_NS), until=hour_ns)
            write_whole(self.folder / (hour_name(hour_ns) + _BILL), json.dumps(bill_record(bill)))
        for old_ns in self._hours(_FACTS):
            if old_ns <= hour_ns:
                (self.folder / (hour_name(old_ns) + _FACTS)).unlink(missing_ok=True)
        self._keep_totals()
        self._prune()

    def bill(self, since_ns: int = 0, until_ns: int | None = None) -> Bill:
        """The bill of all hours that begin in that time, settled or not; by default up to now, or to the hour that is
        open where the clock is behind. Raises OSError where a file cannot be read."""
        settled = self._hours(_BILL)
        open_hours = [hour_ns for hour_ns in self._hours(_FACTS) if not settled or hour_ns > settled[-1]]
        known = max([time.time_ns(), *(hour_ns + 1 for hour_ns in (*settled, *open_hours))])
        last_ns = known if until_ns is None else until_ns
        found = Bill()
        for hour_ns in settled:
            if since_ns <= hour_ns:
                found = found.plus(self._settled(hour_ns))
        found = lines_where(found, lambda key: since_ns <= key.hour_ns < last_ns)
        if not open_hours:
            return found
        first_ns = settled[-1] + HOUR_NS if settled else open_hours[0] - HOUR_NS
        hours = range(max(first_ns, hour_of(since_ns + HOUR_NS - 1)), last_ns, HOUR_NS)
        return found.plus(self._bill_of(hours)) if hours else found

    def totals(self) -> Bill:
        """All hours that were ever settled here, summed up (their lines' hour is 0). Raises OSError."""
        return self._totals()[1]

    def files(self) -> list[tuple[str, int]]:
        """The names of all files, and their bytes: what another machine needs for the bill."""
        names = [hour_name(hour_ns) + kind for kind in (_BILL, _FACTS) for hour_ns in self._hours(kind)]
        names += sorted(path.name for path in self.folder.glob(f"*{_COSTS}"))
        return [(name, path.stat().st_size) for name in names if (path := self.folder / name).exists()]

    def part(self, name: str, offset: int, length: int) -> bytes:
        """A part of one of `files`. Raises KeyError for another name, and OSError."""
        if name not in dict(self.files()):
            raise KeyError(name)
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def _open(self, hour_ns: int, carried: Callable[[], bytes]) -> WholeLines:
        path = self.folder / (hour_name(hour_ns) + _FACTS)
        if self._file is None or self._hour_ns != hour_ns or not self._file.is_at(path):
            self._leave()
            self.folder.mkdir(parents=True, exist_ok=True)
            file = WholeLines(path)
            try:
                file.add(carried() + (line_of(Settled(self._closed_ns)) if self._closed_ns >= 0 else b""))
            except OSError:
                file.close()
                raise
            self._file, self._hour_ns = file, hour_ns
        return self._file

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _last_settled(self) -> int:
        """-1: none is."""
        return max(self._hours(_BILL), default=-1)

    def _hours(self, kind: str) -> list[int]:
        """The hours that have a file of that kind, oldest first. Raises OSError, unless there is no folder."""
        try:
            names = [path.name.removesuffix(kind) for path in self.folder.iterdir() if path.suffix == kind]
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for name in names:
            try:
                found.append(hour_named(name))
            except ValueError:
                continue
        return sorted(found)

    def _bill_of(self, hours: Sequence[int], until: int | None = None) -> Bill:
        """From the facts; `until`: up to the word that this hour is settled. Replicas have nothing to do with each
        other, so that those of many facts are billed in parts, which bounds the memory."""
        paths = {
            hour_ns: self.folder / (hour_name(hour_ns) + _FACTS)
            for hour_ns in self._hours(_FACTS)
            if hour_ns + HOUR_NS >= hours[0]
        }
        parts = 1 + sum(path.stat().st_size for path in paths.values() if path.exists()) // PART_BYTES
        unread = 0

        def read(part: int) -> Iterator[tuple[int, Fact]]:
            nonlocal unread
            for hour_ns, path in paths.items():
                for fact in _facts(path, lambda replica_id: parts == 1 or crc32(replica_id) % parts == part):
                    if until is not None and isinstance(fact, Settled) and fact.hour_ns >= until:
                        return
                    if fact is not None:
                        yield hour_ns, fact
                    elif part == 0:
                        unread += 1

        found = [bill_of(gathered(read(part)), hours, self._pricing) for part in range(parts)]
        basis = {key: text for bill in found for key, text in bill.basis.items()}
        return Bill(summed((line.key, line.amounts) for bill in found for line in bill.lines), basis, unread)

    def _settled(self, hour_ns: int) -> Bill:
        path = self.folder / (hour_name(hour_ns) + _BILL)
        try:
            return bill_from(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            log.error("%s is no bill: %s", path, error)
            return Bill(unread=1)

    def _totals(self) -> tuple[int, Bill]:
        """The last settled hour, and the totals: those in the file, and the bills that it does not hold yet."""
        through_ns, totals = -1, Bill()
        try:
            record = json.loads((self.folder / TOTALS_FILE).read_text(encoding="utf-8"))
            through_ns, totals = hour_named(record["through"]), bill_from(record)
        except FileNotFoundError:
            pass
        except (KeyError, TypeError, ValueError) as error:
            log.error("%s is made anew of the bills that are there: %s", self.folder / TOTALS_FILE, error)
        newer = [hour_ns for hour_ns in self._hours(_BILL) if hour_ns > through_ns]
        for hour_ns in newer:
            totals = totals.plus(self._settled(hour_ns))
        pairs = ((replace(line.key, hour_ns=0), line.amounts) for line in totals.lines)
        return max([through_ns, *newer]), replace(totals, lines=summed(pairs))

    def _keep_totals(self) -> None:
        through_ns, totals = self._totals()
        write_whole(self.folder / TOTALS_FILE, json.dumps({**bill_record(totals), "through": hour_name(through_ns)}))

    def _pricing(self, tariff: Tariff) -> Pricing:
        """By the tariff's cost file; by tokens where it has none."""
        if not tariff.costs:
            return TokenPricing(tariff.decode_weight)
        try:
            file = read_cost_file(self.folder / tariff.costs)
        except CostFileError as error:
            log.warning("the work of %s is priced by tokens: %s", tariff.model, error)
            return TokenPricing(tariff.decode_weight)
        return StepPricing(file.cost_model(), tariff.step_tokens, f"{file.model} on {file.hardware} ({file.basis})")

    def _prune(self) -> None:
        hours = self._hours(_BILL)
        paths = [self.folder / (hour_name(hour_ns) + _BILL) for hour_ns in hours]
        sizes = [path.stat().st_size for path in paths]
        while paths and (sum(sizes) > MAX_SETTLED_BYTES or len(paths) > MAX_SETTLED_HOURS):
            paths.pop(0).unlink(missing_ok=True)
            sizes.pop(0)


_USAGE = b'["usage","'


def _facts(path: Path, keep: Callable[[bytes], bool] | None = None) -> Iterator[Fact | None]:
    """The facts in a file; None for each line that is none, such as one that broke off. Replicas that are not to be
    kept, by their ids, are left out, and what ran on them. Raises OSError, unless there is no file."""
    try:
        with path.open("rb") as file:
            for line in file:
                words = line.split(b'"', 6) if keep is not None and line.startswith(_USAGE) else ()
                if keep is not None and len(words) > 6 and not keep(words[5]):
                    continue  # most lines are such: to leave one out costs less than to read it
                try:
                    fact = fact_in(line)
                except ValueError:
                    yield None
                    continue
                if keep is None or not isinstance(fact, ReplicaBegun) or keep(fact.replica_id.encode()):
                    yield fact
    except FileNotFoundError:
        return
