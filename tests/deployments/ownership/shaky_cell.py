"""A cell in virtual time, whose connections break, delay and repeat: the real dispatcher, owner tracker, channel, page
and owner; a network, engines, clients and a directory's shell that are none. What it does is drawn from its dice, so
one seed gives one run.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast

import aiohttp

from cluster.spec import EngineSettings, Model
from deployments.cell.owners import Owners
from deployments.engine.fence import Fence
from deployments.gateway.cell_pages import LanesPage
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.owner_tracker import ClaimFailed, Overtaken, OwnerTracker
from deployments.ownership.record import QueueTimeout, Rejected
from deployments.ownership.takeover import Running, read_booking
from deployments.protocol import BOOKING_HEADER, EPOCH_HEADER, Finished, ReplicaFacts, ReplicaState, Usage
from deployments.scheduling import Binding, Ending, Lease, Request, SchedulingPolicy
from tests.deployments.ownership.shaky_network import TICK_S, Network, Session

MODEL = Model(name="demo", source="/nowhere", settings=EngineSettings(max_model_len=1_024))
JOIN_EVERY_S = 1.0
SWEEP_S = 0.25
SEATS = 2


class Engine:
    """A replica: a fence, what runs, and which ids it ever got."""

    def __init__(self, cell: "Cell", name: str) -> None:
        self.cell = cell
        self.name = name
        self.facts = ReplicaFacts(name, "demo", f"http://{name}", 1, "n", "generate", 1_024, SEATS, 2_048, 65_536)
        self.fence = Fence()
        self.running: dict[str, str] = {}
        self.started: set[str] = set()
        self.alive = True
        self.drains = False
        self.died: asyncio.Future[None] = cell.loop.create_future()

    def claim(self, epoch: int) -> list[Running]:
        if not self.fence.admits(epoch):
            raise Overtaken(self.fence.highest)
        reported = [(name, booking) for name, booking in self.running.items()]
        return [
            Running(read_booking(booking).lease(self.name, self.cell.now), name in self.started)
            for name, booking in reported
        ]

    def end(self, attempt_id: str, whole: bool) -> None:
        """The exchange is over: every gateway's feed says so."""
        booking = self.running.pop(attempt_id, None)
        if booking is not None and self.alive:
            reported = Finished(
                attempt_id,
                200 if whole else 499,
                Usage(10, 0, 5, 0, int(whole), 0.1, 0.1, 0.0),
                0.1,
                0.2,
                "" if whole else booking,
            )
            self.cell.tell_all(self, lambda gateway: gateway.dispatcher.finished(reported))


class Gateway:
    """The real dispatcher and its owner tracker, and clients."""

    def __init__(self, cell: "Cell", name: str) -> None:
        self.cell = cell
        self.name = name
        self.url = f"http://{name}"
        self.dispatcher = Dispatcher(MODEL, name)
        self.page = LanesPage({"demo": self.dispatcher})
        session = cast(aiohttp.ClientSession, Session(cell))
        self.owner_tracker = OwnerTracker(self.dispatcher, name, session, self, lambda: (SchedulingPolicy(), Binding()))
        self.feeds: dict[str, float] = {}
        self.again: set[str] = set()
        self.tasks = [cell.spawn(self._join()), cell.spawn(self._sweep())]

    def overtaken(self, model: str, highest: int) -> None:
        self.cell.directory_hears(lambda owners, now: owners.overtaken(model, highest, now))

    def doubt(self, gateway_id: str) -> None:
        self.cell.directory_hears(lambda owners, now: owners.give_up(gateway_id, now))

    async def _join(self) -> None:
        while True:
            epoch, highest = self.owner_tracker.epoch, self.owner_tracker.highest
            owned = {} if epoch is None else {"demo": epoch}
            self.cell.directory_hears(
                lambda owners, now, owned=owned, highest=highest: self._register(owners, now, owned, highest)
            )
            await asyncio.sleep(JOIN_EVERY_S)

    def _register(self, owners: Owners, now: float, owned: dict[str, int], highest: int) -> None:
        if self in self.cell.gateways:
            owners.register(self.name, self.url, ["demo"], owned, now, {"demo": highest})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.dispatcher.hand_on(self.cell.now)

    async def client(self, request: Request) -> str:
        """One client's request to its end, as `gateway/placed.py` and `relay.py` run it; in one word."""
        try:
            if not (await self.dispatcher.submit(request)).accepted:
                return "rejected"
            while True:
                placement = await self.dispatcher.placement(request)
                outcome = await self._relay(placement.lease)
                if outcome is not None:
                    return outcome
        except QueueTimeout:
            return "expired"
        except Rejected:
            return "rejected"
        except asyncio.CancelledError:
            return "cancelled"

    async def _relay(self, lease: Lease) -> str | None:
        lost: asyncio.Future[None] = self.cell.loop.create_future()
        self.dispatcher.when_lost(lease, lambda: lost.done() or lost.set_result(None))
        credentials = self.dispatcher.credentials(lease)
        url = self.dispatcher.url_of(lease)
        ending = Ending.FAILED
        try:
            if url is None:
                self.dispatcher.refused(lease, None)
                return None
            await asyncio.sleep(self.cell.delay())
            engine = self.cell.engines[url.removeprefix("http://")]
            if not engine.alive:
                self.dispatcher.refused(lease, None)
                return None
            if engine.drains:
                self.dispatcher.refused(lease, ReplicaState.DRAINING)
                return None
            if not engine.fence.admits(int(credentials[EPOCH_HEADER])):
                self.dispatcher.overtaken(lease, engine.fence.highest)
                return None
            self.cell.reached[lease.attempt_id] += 1
            engine.running[lease.attempt_id] = credentials[BOOKING_HEADER]
            whole = False
            try:
                whole = await self._stream(engine, lease, lost)
            finally:
                self.cell.loop.call_later(self.cell.delay(), engine.end, lease.attempt_id, whole)
            if not whole and lease.attempt_id not in engine.started and lease.request.request_id not in self.again:
                self.again.add(lease.request.request_id)  # its client has seen nothing: once more
                self.dispatcher.refused(lease, None)
                return None
            ending = Ending.FINISHED if whole else Ending.FAILED
            return "answered" if whole else "failed"
        except asyncio.CancelledError:
            ending = Ending.CANCELLED
            raise
        finally:
            self.dispatcher.release(lease, ending)

    async def _stream(self, engine: Engine, lease: Lease, lost: asyncio.Future[None]) -> bool:
        """Whether the whole answer came."""
        for part in range(2):
            working = self.cell.spawn(asyncio.sleep(self.cell.dice.choice((0.0, 0.01, 0.2, 2.0))))
            await asyncio.wait((working, lost, engine.died), return_when=asyncio.FIRST_COMPLETED)
            if lost.done() or not engine.alive:
                working.cancel()
                return False
            if not part:
                engine.started.add(lease.attempt_id)
                self.dispatcher.first_token(lease)
        return True


class Cell(Network):
    """All of it. `deaf`: the directory hears nothing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seed: int, gateways: int, doubles: float, breaks: float
    ) -> None:
        super().__init__(loop, seed, doubles, breaks)
        self.deaf = False
        self.reached: Counter[str] = Counter()
        self.engines: dict[str, Engine] = {}
        self.gateways: list[Gateway] = []
        self.clients: dict[str, asyncio.Task[str]] = {}
        self.owners = Owners(self.now, gateways)
        self._names = 0
        for _ in range(gateways):
            self.add_gateway()
        self.add_engine()

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def add_gateway(self) -> None:
        gateway = Gateway(self, self.name("g"))
        self.gateways.append(gateway)
        for engine in self.engines.values():
            if engine.alive and not engine.drains:
                self._tell(engine, gateway, lambda one, engine=engine: one.dispatcher.replica_up(engine.facts))

    def crash(self, gateway: Gateway) -> None:
        """A killed process: its connections break, it says nothing more, its engines drop what they ran for it."""
        self.gateways.remove(gateway)
        for channel in self.channels:
            channel.cut()
        for task in gateway.tasks:
            task.cancel()
        gateway.owner_tracker.close()
        gateway.dispatcher.follow(None)
        for name in [name for name in self.clients if name.endswith(f"@{gateway.name}")]:
            self.clients.pop(name).cancel()

    def add_engine(self) -> None:
        engine = Engine(self, self.name("r"))
        self.engines[engine.name] = engine
        self.tell_all(engine, lambda gateway: gateway.dispatcher.replica_up(engine.facts))

    def kill(self, engine: Engine) -> None:
        """Its process is gone: whoever reads from it hears so, its feeds break."""
        engine.alive = False
        engine.running.clear()
        engine.died.set_result(None)
        self.tell_all(engine, lambda gateway: gateway.dispatcher.replica_lost(engine.name))

    def drain(self, engine: Engine) -> None:
        """It takes no new work, and goes once it has none."""
        engine.drains = True
        self.tell_all(engine, lambda gateway: gateway.dispatcher.replica_state(engine.name, ReplicaState.DRAINING))
        self.spawn(self._end_drained(engine))

    async def _end_drained(self, engine: Engine) -> None:
        for _ in range(1_000):
            await asyncio.sleep(0.5)
            if not engine.running:
                break
        if engine.alive:
            self.kill(engine)

    def falls_unresponsive(self, engine: Engine) -> None:
        """Its feed is unresponsive for one gateway, then back."""
        gateway = self.dice.choice(self.gateways)
        self._tell(engine, gateway, lambda one: one.dispatcher.replica_state(engine.name, None))
        self._tell(
            engine,
            gateway,
            lambda one: one.dispatcher.replica_up(engine.facts) if engine.alive and not engine.drains else None,
        )

    def tell_all(self, engine: Engine, what: Callable[[Gateway], None]) -> None:
        """Each gateway's feed of that engine brings it, in order."""
        for gateway in self.gateways:
            self._tell(engine, gateway, what)

    def _tell(self, engine: Engine, gateway: Gateway, what: Callable[[Gateway], None]) -> None:
        at_s = gateway.feeds[engine.name] = max(gateway.feeds.get(engine.name, 0.0) + TICK_S, self.now + self.delay())
        self.loop.call_at(at_s, lambda: what(gateway) if gateway in self.gateways else None)

    def submit(self, gateway: Gateway, wait_s: float) -> None:
        """A client asks."""
        name = f"{self.name('q')}@{gateway.name}"
        request = Request(name, 10, 10, self.now, self.now + 1.0, self.now + wait_s)
        self.clients[name] = self.spawn(gateway.client(request))

    def directory_hears(self, what: Callable[[Owners, float], None]) -> None:
        """A call that reaches the directory, or does not; what it changes is told to all."""
        self.loop.call_later(self.delay(), self._directory_does, what)

    def _directory_does(self, what: Callable[[Owners, float], None]) -> None:
        if self.deaf:
            return
        what(self.owners, self.now)
        self.owners.assign(self.now)
        word = self.owners.owned.get("demo")
        for gateway in self.gateways:
            self.loop.call_later(
                self.delay(),
                lambda one=gateway, word=word: one.owner_tracker.reported(word) if one in self.gateways else None,
            )

    def restart_directory(self) -> None:
        self.owners = Owners(self.now, len(self.gateways), self.owners.epochs)

    async def claim(self, session: object, facts: ReplicaFacts, epoch: int, now: float) -> list[Running]:
        """In place of `claims.claim`."""
        await asyncio.sleep(self.delay())
        engine = self.engines[facts.replica_id]
        if not engine.alive:
            raise ClaimFailed("gone")
        answer = engine.claim(epoch)
        await asyncio.sleep(self.delay())
        return answer
