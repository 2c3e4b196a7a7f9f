"""The directory: the one named Ray actor of a cell that knows which engine replicas and gateways exist, which gateway
owns which model, which spec is in force, what operators have ordered, what autoscalers have decided, how replicas
start, who ended and why, and the cluster's secret.

Replicas and gateways register with it again and again (so a restarted directory fills itself), gateways wait on it for
changes. Nothing on a request's path calls it: gateways go on with what they know, owners with what they own, while it,
or Ray's head, is down. Whether a listed replica lives is not decided here but by its feed. Operators' orders, the
epochs of ownership, the spec in force and who ended are in the cell's store (`deployments/store.py`), which it alone
writes, and reads at its start.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray._common.constants import HEAD_NODE_RESOURCE_NAME

from cluster.files import kept_text, write_private
from cluster.versions import ENGINE, differences, versions_here
from deployments.accounting.bill import Bill, Dimension
from deployments.accounting.facts import Tariff
from deployments.accounting.store import bill_in, totals_in
from deployments.cell.act import Act, Audit
from deployments.cell.cost_book import CostBook
from deployments.cell.departure import DepartureCause, Ended, MemberKind
from deployments.cell.departure_tracker import DepartureTracker, Presence
from deployments.cell.lifecycle_log import write_story
from deployments.cell.listing import Listing
from deployments.cell.orders import OperatorOrders, Orders
from deployments.cell.owners import Owners, Ownership
from deployments.cell.scaling_state import ScalingState, ScalingStates
from deployments.cell.spending import Reservation
from deployments.protocol import ReplicaFacts
from deployments.starts.start import CellStarts, ReplicaStart, StartReport
from deployments.starts.tracker import StartTracker
from deployments.store import FILE_NAME, GATEWAYS, CellStore, KeptValue
from deployments.traffic.counts import Period, StretchRecord
from deployments.traffic.store import add_traffic, traffic_in
from deployments.wire import Natural

log = logging.getLogger("raylane.directory")

NAME = "raylane-directory"
NAMESPACE = "raylane"
SECRET_FILE = "secret"
"""In the run directory."""
REGISTER_EVERY_S = 2.0
FORGET_AFTER_S = 15.0
"""A replica that did not register for so long leaves the list."""
FORGET_CORDON_AFTER_S = 600.0
"""...but its cordon stays for so long: it may only have been cut off, and nobody would cordon it again."""
RESTORE_S = 5.0
"""Within this time the gateways tell a directory that has restarted what spec was in force."""
GIVE_UP_AFTER_S = 60.0
"""...and after so long it has ended, though no gateway was there to say so."""


@dataclass(frozen=True, slots=True)
class SpecInForce:
    """`number`: a spec that is put in force later has a larger one. `deployed`: the digest of the spec that was
    deployed last. `cell_unix_s`: when the cell was brought up in which it is in force."""

    number: Natural = 0
    spec_json: str | None = None
    deployed: str = ""
    cell_unix_s: float = 0.0


class Directory:
    """The actor's class. `run_dir` holds the cell's store and its secret; without one they end with the actor.

    `began_unix_s`: when the cell was brought up. `secret` is for tests: Ray keeps an actor's arguments in its store, so
    an actor gets its secret by `use_secret`, or reads it from `run_dir` when it starts again.
    """

    def __init__(
        self, secret: str = "", gateways: int = 1, run_dir: str | None = None, began_unix_s: float = 0.0
    ) -> None:
        self._run_dir = None if run_dir is None else Path(run_dir).expanduser()
        self._secret = secret or kept_text(self._run_dir, SECRET_FILE)
        self.store = CellStore(None if self._run_dir is None else self._run_dir / FILE_NAME)
        self._epochs = KeptValue(self.store, "epochs", dict[str, Natural])
        self._gateways = KeptValue(self.store, GATEWAYS, dict[str, str])
        self._owners = Owners(time.monotonic(), gateways, self._epochs.read())
        self._replicas: dict[str, ReplicaFacts] = {}
        self._seen: dict[str, float] = {}
        self._version = 0
        self._kept_spec = KeptValue(self.store, "spec", SpecInForce)
        self._spec = self._kept_spec.read()
        if self._spec.cell_unix_s != began_unix_s:  # that of a cell before this one
            self._spec = replace(self._spec, spec_json=None, deployed="", cell_unix_s=began_unix_s)
        self._changed = asyncio.Condition()
        self._audit = Audit(self.store)
        self._history = OperatorOrders(self._audit.read())
        self._cordons_seen = dict.fromkeys(self._history.cordons, time.monotonic())
        self._scaling = ScalingStates()
        self._departure_tracker = DepartureTracker(self.store, began_unix_s, self._publish_soon, self._process_died)
        is_new = began_unix_s > 0 and self._departure_tracker.is_first
        self._starts = StartTracker(began_unix_s if is_new else None)
        self.costs = CostBook(self.store, self._starts)
        self._starts.recall(self._departure_tracker.starts_before)
        self._missing: dict[str, float] = {}
        self._soon: set[asyncio.Task[None]] = set()

    async def secret(self) -> str:
        """The bearer token that every path of a replica's port asks for. Raises LookupError before there is one."""
        if not self._secret:
            raise LookupError("the cell's secret is not known yet")
        return self._secret

    async def use_secret(self, secret: str) -> str:
        """Takes the secret of a cell that has none yet, and keeps it for the next start; returns the one in force."""
        if not self._secret:
            if self._run_dir is not None:
                write_private(self._run_dir / SECRET_FILE, secret)
            self._secret = secret
        return self._secret

    async def register(self, facts: ReplicaFacts, epoch: int = 0, where: str = "") -> None:
        """Lists a replica, or keeps it listed. `epoch` is the highest that it has seen, `where` its machine
        (`departure_tracker.machine`)."""
        now = self._seen[facts.replica_id] = time.monotonic()
        self._owners.saw({facts.model: epoch}, now)
        self._missing.pop(facts.replica_id, None)
        self._departure_tracker.replica(facts.replica_id, facts.group_key, facts.pid, where)
        self.costs.serves(facts)
        if facts.replica_id in self._history.cordons:
            self._cordons_seen[facts.replica_id] = time.monotonic()
        if self._replicas.get(facts.replica_id) != facts:
            self._replicas[facts.replica_id] = facts
            await self._publish()

    async def deregister(self, replica_id: str) -> None:
        """Takes a replica off the list, for good; an unknown one is no error."""
        uncordoned = self._history.forget(replica_id)
        self._seen.pop(replica_id, None)
        self._missing.pop(replica_id, None)
        if self._replicas.pop(replica_id, None) is not None or uncordoned:
            await self._publish()

    async def ended(self, event: Ended) -> None:
        if event.kind is MemberKind.REPLICA and event.cause is not DepartureCause.STOPPED:
            facts = self._replicas.get(event.who)
            key = event.model if facts is None else facts.group_key
            self._starts.asked(key, 1, time.time())  # Serve starts another one
        self._departure_tracker.ended(event)
        self.costs.vacate(event.who, event.at_unix_s)

    async def closing(self) -> None:
        """The cell is taken down: what ends from now on is no loss."""
        self._departure_tracker.close()

    async def join(
        self,
        gateway_id: str,
        url: str,
        models: Sequence[str],
        owned: Mapping[str, int],
        seen: Mapping[str, int],
        presence: Presence | None = None,
    ) -> None:
        """A gateway lives and listens for the others at `url`; under the epochs of `owned` it believes to own models,
        those of `seen` are the highest that it has heard of."""
        if presence is not None:
            self._departure_tracker.process(MemberKind.GATEWAY, gateway_id, presence)
        await self._changing(lambda now: self._owners.register(gateway_id, url, models, owned, now, seen))

    async def leave(self, gateway_id: str) -> None:
        """A gateway stops; returns once its models have other owners, if there is another gateway."""
        self._departure_tracker.ended(Ended(MemberKind.GATEWAY, gateway_id, time.time(), DepartureCause.STOPPED))
        await self._changing(lambda now: self._owners.leave(gateway_id, now))

    async def give_up(self, gateway_id: str) -> None:
        await self._changing(lambda now: self._owners.give_up(gateway_id, now))

    async def overtaken(self, model: str, highest: int) -> None:
        """An engine has seen an epoch that the model's owner has not."""
        await self._changing(lambda now: self._owners.overtaken(model, highest, now))

    async def apply(self, spec_json: str) -> int:
        """Puts a changed spec in force: every gateway of the cell takes it over. Returns its number, which is larger
        than any before, also where the file with these is lost."""
        await self._put_in_force(spec_json, max(self._spec.number + 1, time.time_ns()))
        return self._spec.number

    async def deployed(self, spec_json: str, models: Sequence[str] = ()) -> None:
        """Somebody deploys the cell with this spec, which has these models in this region. One that is deployed for the
        first time is put in force; what an operator has changed since stays."""
        digest = hashlib.sha256(spec_json.encode()).hexdigest()
        if digest == self._spec.deployed and self._spec.spec_json is None:
            await asyncio.sleep(RESTORE_S)
        if digest != self._spec.deployed or self._spec.spec_json is None:
            self._spec = replace(self._spec, deployed=digest)
            self._starts.deployed(models, time.time())
            await self.apply(spec_json)

    async def restore(self, spec_json: str, number: int = 0) -> None:
        """A gateway tells a directory that has restarted what was in force before; what is older than that which the
        directory has kept, or has heard of since, stays out."""
        if number > self._spec.number or (number == self._spec.number and self._spec.spec_json is None):
            await self._put_in_force(spec_json, number)

    async def _put_in_force(self, spec_json: str, number: int) -> None:
        self._spec = replace(self._spec, spec_json=spec_json, number=number)
        self._kept_spec.write(self._spec)  # before anyone hears of it
        await self._publish()

    async def exchange(self, act: Act, spec_json: str, based_on: str | None) -> tuple[Orders, int] | None:
        """An act that is a change of the spec: once it is written down, the spec is put in force. Returns the orders in
        force then, and the spec's number.

        None, and nothing is done, where another spec is in force than the one that the change was made of. Raises
        OSError as `order` does.
        """
        if self._spec.spec_json not in (None, based_on):  # None: it has restarted, and would get `based_on` again
            return None
        self._audit.write(act)
        self._history.take(act)
        number = await self.apply(spec_json)
        return await self.orders(), number

    async def order(self, *acts: Act) -> Orders:
        """Acts of an operator: written down, put in force in the whole cell. Returns what is in force then. Raises
        OSError if one cannot be written; then neither it nor a later one is in force."""
        for act in acts:
            self._audit.write(act)
            self._history.take(act)
            if act.replica_id in self._history.cordons:
                self._cordons_seen[act.replica_id] = time.monotonic()
        await self._publish()
        return await self.orders()

    async def orders(self) -> Orders:
        return self._history.orders(time.time())

    async def scaling(self, state: ScalingState, controller: Presence | None = None) -> None:
        """An autoscaler has decided, in Serve's controller. Gateways hear of it if it is news."""
        if controller is not None:
            self._departure_tracker.process(MemberKind.CONTROLLER, f"controller-{controller.pid}", controller)
        self._starts.decided(state.model, state.requested, state.applied, state.ready, time.time())
        if self._scaling.take(state):
            await self._publish()

    async def traffic(self, gateway_id: str, delivery: int, counted: StretchRecord) -> None:
        """A gateway delivers what it counted, again and again until it hears that it is written. Raises OSError."""
        self.store.write(lambda file: add_traffic(file, gateway_id, delivery, counted.stretches()))

    async def traffic_since(self, period: Period, unix_s: float) -> StretchRecord:
        """The traffic of the stretches that begin since then, by tenant. Raises OSError."""
        return await self.store.ask(lambda file: traffic_in(file, period, unix_s, tenants=True).record())

    async def cost_facts(self, facts: list[bytes], tariffs: Collection[Tariff]) -> bool:
        """See `CostBook.take`."""
        return self.costs.take(facts, tariffs)

    async def reserve(self, attempt_id: str, wanted: Reservation, budget: int) -> bool:
        """See `CostBook.reserve`."""
        return self.costs.reserve(attempt_id, wanted, budget)

    async def cost_bill(self, since_ns: int, until_ns: int | None, by: Sequence[Dimension]) -> Bill:
        """The bill of that time, its lines summed up over all dimensions but those. Raises OSError."""
        return await self.store.ask(lambda file: bill_in(file, since_ns, until_ns, by))

    async def cost_totals(self) -> Bill:
        """All hours that are settled, summed up. Raises OSError."""
        return await self.store.ask(totals_in)

    async def version_differences(self, found: Mapping[str, str]) -> list[str]:
        """What a node has in another version than the head has now, or lacks. Where the head or the node has no engine,
        engines are not compared."""
        needed = await asyncio.to_thread(versions_here, fresh=True)
        return differences(
            {name: version for name, version in needed.items() if name != ENGINE or name in found}, found
        )

    async def asked(self, replicas: Mapping[str, int]) -> None:
        """So many replicas of these models are requested from Serve."""
        for model, number in replicas.items():
            self._starts.asked(model, number, time.time())

    async def start_wait_s(self, model: str) -> float:
        """How long a replica waits before it begins its start, after others of the model failed (seconds)."""
        return self._starts.wait_s(model, time.time())

    async def starting(self, report: StartReport) -> None:
        """A replica starts, and says how far it is."""
        if self._starts.report(report, time.time()):
            await self._publish()
        self.costs.began(report)

    async def started(self, report: StartReport) -> None:
        """A replica is ready: it registers next."""
        self.costs.got_ready(report)
        self._departure_tracker.started(self._starts.ready(report, time.time()))
        await self._publish()

    async def start_failed(self, report: StartReport, cause: str, story: str) -> None:
        """A replica could not start; `story` has all that is known of it."""
        file = write_story(self._run_dir, report.model, story)
        await self._failed(self._starts.failed(report, cause, file, time.time()))

    async def starts(self) -> CellStarts:
        return self._starts.starts()

    async def _failed(self, start: ReplicaStart) -> None:
        log.warning("replica %s did not start: %s: %s", start.replica_id, start.phase, start.cause)
        self._departure_tracker.started(start)
        self.costs.vacate(start.replica_id, start.ended_unix_s)
        await self._publish()

    async def watch(self, known_version: int, timeout_s: float) -> Listing:
        """The listing as soon as its version differs from `known_version`, or as it is after `timeout_s`."""
        await self._forget_unresponsive()
        await self._changing(self._owners.assign)
        self._kept_spec.write(self._spec)  # if it could not be written before
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait_for(lambda: self._version != known_version)
            orders, scaling = self._history.orders(time.time()), self._scaling.scaling()
            ended, starts = self._departure_tracker.departures(), self._starts.starts()
            live, spec = tuple(self._replicas.values()), self._spec
            facts = (*self._ownership, orders, scaling, ended, starts)
            return Listing(self._version, live, spec.spec_json, *facts, spec.number)

    async def _forget_unresponsive(self) -> None:
        if self._departure_tracker.sweep():
            self.costs.lives.forget_unheard()
        for start in self._starts.sweep(time.time()):  # those that tell nothing any more have failed
            await self._failed(start)
        for replica_id in [key for key, seen in self._missing.items() if seen < time.monotonic() - GIVE_UP_AFTER_S]:
            del self._missing[replica_id]
            self._departure_tracker.given_up(MemberKind.REPLICA, replica_id)
            self.costs.vacate(replica_id, time.time())
        limit = time.monotonic() - FORGET_AFTER_S
        for replica_id in [key for key, seen in self._seen.items() if seen < limit]:
            self._missing[replica_id] = self._seen.pop(replica_id)
            if self._replicas.pop(replica_id, None) is not None:
                await self._publish()
        limit = time.monotonic() - FORGET_CORDON_AFTER_S
        for replica_id in [key for key, seen in self._cordons_seen.items() if seen < limit]:
            del self._cordons_seen[replica_id]
            if self._history.forget(replica_id):
                await self._publish()

    @property
    def _ownership(self) -> tuple[tuple[Ownership, ...], tuple[tuple[str, str], ...], tuple[str, ...]]:
        owners = self._owners
        return tuple(owners.owned.values()), tuple(owners.gateways.items()), owners.lost

    async def _changing(self, change: Callable[[float], None]) -> None:
        before = self._ownership
        lost = self._owners.lost
        change(time.monotonic())
        for gateway_id in set(self._owners.lost) - set(lost):
            self._departure_tracker.given_up(MemberKind.GATEWAY, gateway_id)
        self._epochs.write(self._owners.epochs)  # before anyone hears of a new one
        self._gateways.write(self._owners.gateways)
        if self._ownership != before:
            await self._publish()

    def _process_died(self, kind: MemberKind, who: str) -> None:
        """A process on this machine is gone: a gateway's models need not wait for its silence."""
        if kind is MemberKind.GATEWAY:
            self._do_soon(self.give_up(who))

    def _publish_soon(self) -> None:
        self._do_soon(self._publish())

    def _do_soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    async def _publish(self) -> None:
        async with self._changed:
            self._version += 1
            self._changed.notify_all()


def start_directory(secret: str, gateways: int = 1, run_dir: Path | None = None) -> Any:
    """Starts the cell's directory, which expects so many gateways, or returns the handle of the running one. It runs on
    Ray's head, like Serve's controller, and there is `run_dir` (`~`: the home directory there).

    Raises ValueError when the running one has another secret.
    """
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Directory)
    options = {
        "name": NAME,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_concurrency": 1_000,
        "resources": {HEAD_NODE_RESOURCE_NAME: 0.001},
    }
    place = None if run_dir is None else str(run_dir)
    directory = actor.options(**options).remote(gateways=gateways, run_dir=place, began_unix_s=time.time())
    if ray.get(directory.use_secret.remote(secret)) != secret:
        raise ValueError("the cell runs with another secret than the one given; take it down first")
    return directory


def cell_host(many_nodes: bool) -> str:
    """Where this process listens for the rest of its cell: on its node's address if the cell has other nodes."""
    return str(ray.util.get_node_ip_address()) if many_nodes else "127.0.0.1"


def find_directory() -> Any:
    """The handle of the cell's directory. Raises ValueError when there is none."""
    return ray.get_actor(NAME, namespace=NAMESPACE)
