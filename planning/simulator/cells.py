"""Several simulated cells that help each other: each is a `PeeredCell`, and between them runs the production peering
(`deployments/peering`) over links with round trips. Faults (`faults.py`) befall cells and links.

All cells share one clock and one workload: `homes` says where each request arrives, and its number in the workload is
its id in every cell. What crosses a link (questions, digests, offers, answers) takes half a round trip. A client gets
the bytes of a peer half a round trip after they left it.

A hand-over is a connection. While a link is cut, what belongs to one waits, as TCP sends again; after `LOST_AGES`
times the age at which a digest is worth nothing, both ends give the connection up. Digests that meet a cut link are
lost. A cell that is lost resets its connections; when it comes back it knows nothing, under a new epoch, and its own
clients are with it again. Clients with a list of endpoints (`clients.py`) go on to another cell meanwhile.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cluster.spec import ClusterSpec
from deployments.peering import Question
from deployments.peering.cell_peering import LOST_AGES
from planning.simulator.cells_outcome import CellsOutcome, marked, replica_hours
from planning.simulator.clients import ClientLists, SimulatedClients
from planning.simulator.faults import Fault, FaultKind, check_timeline
from planning.simulator.peered_cell import CellPlan, PeeredCell
from planning.simulator.workload import Workload


class CellsSimulator:
    """One run of several cells. `homes`: the index of the plan in which each request of the workload arrives. `rtt_s`:
    the round trip between each two cells. `clients`: they have lists of all cells; None: each knows
    its own cell alone.

    Raises ValueError where a plan names no region of the spec, or faults of one kind overlap.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        plans: Sequence[CellPlan],
        workload: Workload,
        homes: NDArray[np.int64],
        rtt_s: Mapping[frozenset[str], float],
        faults: Sequence[Fault] = (),
        clients: ClientLists | None = None,
    ) -> None:
        self.workload, self.homes = workload, homes
        self.now = 0.0
        self.refusals: Counter[str] = Counter()
        self.hops: list[tuple[float, str, str]] = []
        self.served: dict[int, PeeredCell] = {}
        self.reset: set[int] = set()
        self.broken: set[int] = set()
        self.refused: set[int] = set()
        self._spec, self._plans = spec, {plan.name: plan for plan in plans}
        self._calls: list[tuple[float, int, Callable[[float], None]]] = []
        self._made = 0
        check_timeline(faults)
        self._rtt_s = rtt_s
        self._slower_s: dict[frozenset[str], float] = dict.fromkeys(rtt_s, 0.0)
        self._first_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}
        """When answers began and ended at the gateway that the client has asked."""
        self._held: dict[frozenset[str], list[Callable[[], None]]] = {}
        """Of each link that is cut, what waits for it."""
        names = list(self._plans)
        self._clients: SimulatedClients | None = None
        if clients is not None:
            self._clients = SimulatedClients(self, clients, [names[home] for home in homes], names, self._rtt_s)
        owned = [[] if clients else np.flatnonzero(homes == number).tolist() for number in range(len(plans))]
        self.cells = [PeeredCell(self, plan, spec, own) for plan, own in zip(plans, owned, strict=True)]
        self._retired: list[PeeredCell] = []
        self._lost: dict[str, PeeredCell] = {}
        self._until_s = float(workload.arrived_s[-1]) if len(workload) else 0.0
        self._policy = self.cells[0].peering.policy
        self._give_up_s = LOST_AGES * self._policy.max_age_s
        for number, cell in enumerate(self.cells):  # not all at the same moment
            self.at(self._policy.digest_period_s * number / len(self.cells), partial(self._exchange, cell.name))
        for fault in faults:
            self.at(fault.at_s, partial(self._begin, fault))
            if fault.until_s < math.inf:
                self.at(fault.until_s, partial(self._end, fault))
        if self._clients is not None:
            self._clients.begin(workload.arrived_s.tolist())

    @property
    def arrived(self) -> bool:
        """Whether nothing arrives any more."""
        return self.now >= self._until_s and not (self._clients and self._clients.trying)

    def run(self) -> CellsOutcome:
        """Runs until everything that arrived has ended."""
        calls = self._calls
        while True:
            cells = self.cells
            due = [cell.next_s() for cell in cells]
            while True:  # a turn of one cell changes no other
                cell_s = min(due, default=math.inf)
                call_s = calls[0][0] if calls else math.inf
                if min(cell_s, call_s) == math.inf:
                    return self._outcome()
                self.now = min(cell_s, call_s)
                if call_s <= cell_s:
                    heapq.heappop(calls)[2](call_s)
                    break
                number = due.index(cell_s)
                cells[number].turn(cell_s)
                due[number] = cells[number].next_s()

    # Links.
    def carry(self, sender: PeeredCell, target: str, call: Callable[[PeeredCell, float], None]) -> None:
        """A message of a hand-over crosses a link, between two cells as they are now: one that is lost meanwhile, or
        starts again, does not get it."""
        receiver, link = self.cell(target), frozenset((sender.name, target))
        if receiver is None:
            self._refused(sender, target)
        elif link in self._held:
            self._held[link].append(partial(self.carry, sender, target, call))
        else:
            self.at(self.now + self._delay_s(link), partial(self._arrive, sender, receiver, call))

    def _arrive(
        self, sender: PeeredCell, receiver: PeeredCell, call: Callable[[PeeredCell, float], None], now: float
    ) -> None:
        if receiver.alive:
            call(receiver, now)
        elif sender.alive:
            self._refused(sender, receiver.name)

    def _refused(self, sender: PeeredCell, target: str) -> None:
        """The cell is lost: whoever sends there learns it after a round trip."""
        delay_s = 2 * self._delay_s(frozenset((sender.name, target)))
        self.at(self.now + delay_s, lambda now: sender.peer_gone(target, now) if sender.alive else None)

    def _delay_s(self, link: frozenset[str]) -> float:
        return (self._rtt_s[link] + self._slower_s[link]) / 2

    def at(self, time_s: float, call: Callable[[float], None]) -> None:
        """Calls `call` at that time."""
        self._made += 1
        heapq.heappush(self._calls, (time_s, self._made, call))

    # Clients.
    def cell(self, name: str) -> PeeredCell | None:
        """The cell of that name; None: it is lost."""
        return next((cell for cell in self.cells if cell.name == name), None)

    def way_s(self, client: str, name: str) -> float | None:
        """From clients of one region to the cell of another, one way (seconds); None: the link is cut."""
        link = frozenset((client, name))
        return 0.0 if client == name else None if link in self._held else self._delay_s(link)

    def answers(self, index: int, now: float) -> None:
        self._first_s[index] = now
        self.refused.discard(index)
        if self._clients is not None:
            self._clients.has_answer(index)

    def answered(self, index: int, now: float) -> None:
        self._last_s[index] = now

    def rejected(self, index: int, cell: str, now: float) -> None:
        if self._clients is not None:
            self._clients.rejected(index, cell, now)

    # Digests.
    def _exchange(self, name: str, now: float) -> None:
        cell, policy = self.cell(name), self._policy
        if cell is not None:
            cell.sweep(now)
            for peer, question in cell.peering.ask(now).items():
                asked = self.cell(peer)
                if asked is not None:
                    self._digest(frozenset((name, peer)), partial(self._answer, cell, asked, question))
        open_hops = cell is not None and len(cell.peering.away)
        if open_hops or now < self._until_s + max(policy.hand_over.quiet_s, policy.digest_period_s):
            self.at(now + policy.digest_period_s, partial(self._exchange, name))

    def _digest(self, link: frozenset[str], call: Callable[[float], None]) -> None:
        """A question or an answer: lost where the link is cut."""
        if link not in self._held:
            self.at(self.now + self._delay_s(link), call)

    def _answer(self, asker: PeeredCell, cell: PeeredCell, question: Question, now: float) -> None:
        if cell.alive:
            digest = cell.digest(question, now)
            heard = partial(asker.heard, digest=digest)
            self._digest(frozenset((asker.name, cell.name)), lambda now: heard(now) if asker.alive else None)

    # Faults.
    def _begin(self, fault: Fault, now: float) -> None:
        match fault.kind:
            case FaultKind.REGION_LOSS:
                self._lose(fault, now)
            case FaultKind.PARTITION:
                held = self._held[fault.cells] = []
                self.at(now + self._give_up_s, lambda then: self._part(fault.cells, held, then))
            case FaultKind.SLOW_LINK:
                self._slower_s[fault.cells] += fault.more_rtt_s
            case FaultKind.ZONE_LOSS:
                cell = self.cell(fault.cell)
                if cell is not None:
                    cell.fleet.lose_zone(fault.share, 0.0 if fault.room_elsewhere else fault.for_s, now)

    def _end(self, fault: Fault, now: float) -> None:
        match fault.kind:
            case FaultKind.REGION_LOSS:
                self._come_back(fault, now)
            case FaultKind.PARTITION:
                for again in self._held.pop(fault.cells, []):
                    again()
            case FaultKind.SLOW_LINK:
                self._slower_s[fault.cells] -= fault.more_rtt_s
            case FaultKind.ZONE_LOSS:
                pass

    def _part(self, link: frozenset[str], held: list[Callable[[], None]], now: float) -> None:
        """Both ends give up what has not been heard of for too long, unless the link is whole again."""
        if self._held.get(link) is held:
            held.clear()
            for name in link:
                cell, (other,) = self.cell(name), link - {name}
                if cell is not None:
                    cell.peer_gone(other, now)

    def _lose(self, fault: Fault, now: float) -> None:
        cell = self.cell(fault.cell)
        if cell is None:
            return
        self._clients_lose(cell, cell.lose(now), now)
        self.cells.remove(cell)
        self._retired.append(cell)
        self._lost[cell.name] = cell
        for peer in self.cells:
            wait_s = self._delay_s(frozenset((peer.name, cell.name)))
            self.at(now + wait_s, lambda then, peer=peer: peer.peer_gone(cell.name, then) if peer.alive else None)  # type: ignore[misc]
        for arrived_s, index in cell.to_come():
            if arrived_s < fault.until_s:
                self.at(arrived_s, lambda now, index=index: self.reset.add(index))  # type: ignore[misc]

    def _clients_lose(self, cell: PeeredCell, open_requests: set[int], now: float) -> None:
        """The connections of a cell's own clients break."""
        for index in sorted(open_requests):
            if self._clients is None or self._clients.has_head(index, now):
                self.reset.add(index)
            else:
                self._clients.broke(index, cell.name, now)

    def _come_back(self, fault: Fault, now: float) -> None:
        lost = self._lost.pop(fault.cell, None)
        if lost is not None:
            to_come = [index for arrived_s, index in lost.to_come() if arrived_s >= now]
            plan = self._plans[lost.name]
            cell = PeeredCell(self, plan, self._spec, to_come, lost.peering.epoch + 1, now)
            cell.start_again(lost, now)
            names = list(self._plans)
            self.cells = sorted([*self.cells, cell], key=lambda one: names.index(one.name))

    def _outcome(self) -> CellsOutcome:
        count, homes, names = len(self.workload), self.homes, list(self._plans)
        numbers = {name: number for number, name in enumerate(names)}
        served = np.full(count, -1)
        ttft_s, finished_s = np.full(count, np.nan), np.full(count, np.nan)
        went = homes.copy()
        if self._clients is not None:
            for index, name in self._clients.asked.items():
                went[index] = numbers[name]
            self.reset |= self._clients.unanswered
            self.broken |= self._clients.ended
        for index, first_s in self._first_s.items():
            home, asked, cell = names[homes[index]], names[went[index]], self.served[index]
            served[index] = numbers[cell.name]
            back_s = 0.0 if asked == home else self._rtt_s[frozenset((home, asked))] / 2
            ttft_s[index] = first_s + back_s - self.workload.arrived_s[index]
            finished_s[index] = self._last_s.get(index, math.nan) + back_s
        everyone = [*self._retired, *self.cells]
        lives = {
            name: sorted(
                (life for cell in everyone if cell.name == name for life in cell.lives(self.now)),
                key=lambda life: life.started_s,
            )
            for name in names
        }
        usd = sum((self._plans[name].usd_per_hour or 0.0) * hours for name, hours in replica_hours(lives).items())
        hops = tuple((at_s, numbers[source], numbers[target]) for at_s, source, target in self.hops)
        return CellsOutcome(
            tuple(names),
            homes,
            went,
            served,
            ttft_s,
            finished_s,
            hops,
            dict(self.refusals),
            marked(self.reset, count),
            marked(self.broken, count),
            marked(self.refused, count),
            lives,
            usd,
        )
