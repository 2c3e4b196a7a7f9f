"""What of a gateway's metrics is read when Prometheus asks: lanes and leases from the schedulers' snapshots, ownership,
what the directory and autoscalers announce, files that commands publish."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, TypeVar

from cluster.spec import GatewaySpec, group_of, model_of
from deployments.accounting.bill import Bill
from deployments.cell.listing import Announced
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.owner_tracker import OwnerTracker
from deployments.scheduling import Snapshot
from deployments.telemetry import table
from deployments.telemetry.exposition import Source
from deployments.telemetry.metrics import MAX_TENANTS
from deployments.telemetry.published_error import PublishedError, read_published
from deployments.telemetry.table import Sample
from deployments.traffic.published_drift import PublishedDriftError, read_drift

Samples = Iterator[Sample]
Content = TypeVar("Content")
log = logging.getLogger("raylane.gateway")


def sources(
    settings: GatewaySpec,
    dispatchers: Mapping[str, Dispatcher],
    owner_trackers: Mapping[str, OwnerTracker],
    announced: Announced,
    gateways: Callable[[], list[str]],
    cost: Callable[[], Bill],
) -> list[Source]:
    """`gateways`: the ids of all gateways, this one's first. The directory counts for the whole cell, so one gateway
    tells it: the first of them by id."""

    def tells() -> bool:
        known = gateways()
        return known[0] == min(known)

    tenants: dict[str, str] = {}
    found: list[Source] = [
        lambda: (one for name, dispatcher in dispatchers.items() for one in of_model(name, dispatcher)),
        lambda: (one for name, tracker in owner_trackers.items() for one in of_ownership(name, tracker)),
        lambda: of_scaling(announced, {name for name, one in dispatchers.items() if one.own is not None}),
        lambda: of_cell(announced) if tells() else (),
        lambda: of_cost(cost(), tenants) if tells() else (),
    ]
    if settings.simulator_error is not None:
        found.append(simulator_error(Path(settings.simulator_error)))
    if settings.drift is not None:
        found.append(drift(Path(settings.drift)))
    return found


def of_model(model: str, dispatcher: Dispatcher) -> Samples:
    """Of a model that this gateway owns."""
    if (snapshot := dispatcher.snapshot()) is not None:
        yield from _of_lanes(model, snapshot)
        yield from _of_rates(model, snapshot)
        yield from _of_leases(model, snapshot)
        yield from _of_groups(model, snapshot)
        yield from _of_suspects(model, snapshot)
        if snapshot.ladder is not None:
            yield table.LADDER_STEPS, (model,), snapshot.ladder.at
    peering = dispatcher.own.peering if dispatcher.own is not None else None
    if peering is None:
        return
    now = time.monotonic()
    for cell, peer in peering.core.peers.by_cell.items():
        if peer.digest is not None:
            yield table.DIGEST_AGE, (model, cell), now - peer.asked_s
        if peer.rtt_s is not None:
            yield table.PEER_RTT, (model, cell), peer.rtt_s
    for metric, counts in ((table.GUESTS_REFUSED, peering.refusals), (table.STAYS, peering.stays)):
        for reason, count in sorted(counts.items()):
            yield metric, (model, str(reason)), count


def _of_lanes(model: str, snapshot: Snapshot) -> Samples:
    for lane in snapshot.lanes:
        labels = model, lane.name
        yield table.WAITING_REQUESTS, labels, lane.waiting
        yield table.WAITING_TOKENS, labels, lane.work_tokens
        yield table.OLDEST_WAIT, labels, lane.oldest_wait_s
        if lane.work_s is not None:
            yield table.WAITING_SECONDS, labels, lane.work_s
        for level, wait_s in zip(("p50", "p95"), lane.eta_s or (), strict=False):
            yield table.EXPECTED_WAIT, (*labels, level), wait_s
        yield table.WAIT_ESTIMATES, (*labels, "yes"), lane.covered
        yield table.WAIT_ESTIMATES, (*labels, "no"), lane.estimated - lane.covered
        yield table.WAIT_ESTIMATES, (*labels, "cancelled"), lane.censored
    for (lane_name, cause), count in snapshot.rejections.items():
        yield table.REJECTIONS, (model, lane_name, cause), count


def _of_rates(model: str, snapshot: Snapshot) -> Samples:
    yield table.PROMOTED, (model,), snapshot.promoted
    yield table.PREFIX_TRUST, (model,), snapshot.prefix_trust
    for metric, value in (
        (table.SERVICE_RATE, snapshot.tokens_per_s),
        (table.OUTPUT_ERROR, snapshot.output_error),
        (table.OTHER_LANE, snapshot.other_lane),
    ):
        if value is not None:
            yield metric, (model,), value


def _of_leases(model: str, snapshot: Snapshot) -> Samples:
    for replica in snapshot.replicas:
        yield table.LEASES, (model, replica.replica_id, replica.status), replica.leases
        yield table.BOOKED_KV_TOKENS, (model, replica.replica_id), replica.kv_tokens
    for ending, count in snapshot.endings.items():
        yield table.LEASES_ENDED, (model, ending), count


def _of_groups(model: str, snapshot: Snapshot) -> Samples:
    for replica in snapshot.replicas if snapshot.groups else ():
        yield table.REPLICA_GROUP, (model, replica.group, replica.replica_id), 1
    for group in snapshot.groups:
        yield table.GROUP_FINISHED, (model, group.group), group.finished
        if group.tokens_per_s is not None:
            yield table.GROUP_RATE, (model, group.group), group.tokens_per_s
    for demand in snapshot.demands:
        yield table.GROUP_WAITING, (model, demand.lane, ",".join(demand.groups)), demand.waiting


def _of_suspects(model: str, snapshot: Snapshot) -> Samples:
    banned = sum(one.banned for one in snapshot.suspects)
    yield table.SUSPECTS, (model, "banned"), banned
    yield table.SUSPECTS, (model, "suspect"), len(snapshot.suspects) - banned
    yield table.WAITING_ASIDE, (model,), snapshot.aside
    yield table.QUERIES_OF_DEATH, (model,), snapshot.bans


def of_ownership(model: str, tracker: OwnerTracker) -> Samples:
    dispatcher, own = tracker.dispatcher, tracker.dispatcher.own
    yield table.OWNER_EPOCH, (model,), tracker.epoch or 0
    yield table.OWNER_KNOWN, (model,), float(dispatcher.owner is not None)
    yield table.TAKEOVERS, (model,), tracker.taken_over
    yield table.HANDED_ON, (model,), dispatcher.handed_on
    yield table.RECONCILED, (model,), own.reconciled if own is not None else 0
    yield table.LOST_REQUESTS, (model,), dispatcher.losses.requests
    yield table.LOST_TOKENS, (model,), dispatcher.losses.tokens


def of_scaling(announced: Announced, owned: set[str]) -> Samples:
    """Operators' orders and autoscalers' decisions on the models that this gateway owns."""
    orders, scaling = announced.orders, announced.scaling
    for model in sorted(owned):
        yield table.CORDONED, (model,), len(orders.cordoned(model))
    for key in sorted({key for key, _ in orders.controls if model_of(key) in owned}):
        for control in announced.controls_of(key):
            yield table.CONTROL, (key, control.kind.value), control.replicas
            yield table.CONTROL_UNTIL, (key, control.kind.value), control.until_unix_s
    for state in scaling.states:
        if model_of(state.model) in owned:
            if (group := group_of(state.model)) is not None:
                yield table.SCALING_OVERFLOW, (model_of(state.model), group), state.overflow
            yield table.SCALING_DECIDED, (state.model,), state.at_unix_s
            for name in ("requested", "applied", "ready", "starting"):
                yield table.REPLICAS, (state.model, name), getattr(state, name)
    for metric, counts in (
        (table.OPERATOR_ACTS, orders.acts),
        (table.SCALING_DECISIONS, scaling.decisions),
        (table.SCALING_ALARMS, scaling.alarms),
    ):
        for key, word, count in counts:
            if model_of(key) in owned:
                yield metric, (key, str(word)), count


def of_cell(announced: Announced) -> Samples:
    """What ended in the cell, and what starts."""
    for tally in announced.departures.tallies:
        labels = tally.kind.value, tally.model, tally.cause.value
        yield table.DEPARTURES, (*labels, "yes" if tally.cause.planned else "no"), tally.count
        yield table.DEPARTED_REQUESTS, (*labels, "broken"), tally.lost.broken
        yield table.DEPARTED_REQUESTS, (*labels, "placed_again"), tally.lost.placed_again
        yield table.DEPARTED_TOKENS, labels, tally.lost.tokens
    starts = announced.starts
    for (model, phase), count in sorted(Counter((start.model, start.phase) for start in starts.running).items()):
        yield table.STARTING, (model, phase.value), count
    for done in starts.tallies:
        yield table.STARTS, (done.model,), done.ready
        for phase, spent_s in done.seconds.items():
            yield table.START_SECONDS, (done.model, phase.value), spent_s
        for phase, number in done.failed_in.items():
            yield table.FAILED_STARTS, (done.model, phase.value), number
    for model, start in {start.model: start for start in starts.done}.items():
        for phase, spent_s in start.seconds.items():
            yield table.LAST_START, (model, phase.value), spent_s


def of_cost(bill: Bill, tenants: dict[str, str]) -> Samples:
    """What the settled hours cost, of the first hundred tenants, and of the others together. `tenants`: under which
    name each was shown before, and is from now on."""
    sums: defaultdict[tuple[str, ...], list[Any]] = defaultdict(lambda: [Fraction(0), 0, 0, 0])
    for line in bill.lines:
        key, amounts = line.key, line.amounts
        tenant = tenants.setdefault(key.tenant, key.tenant if len(tenants) < MAX_TENANTS else "other")
        found = sums[key.model, key.group, key.region, tenant, key.traffic_class, key.share.value]
        for place, value in enumerate((line.usd, amounts.ns, amounts.prompt_tokens, amounts.output_tokens)):
            found[place] += value
    for labels, (dollars, nanoseconds, prompt, output) in sums.items():
        yield table.COST_USD, labels, float(dollars)
        yield table.COST_SECONDS, labels, nanoseconds / 1e9
        yield table.COST_TOKENS, (*labels, "prompt"), prompt
        yield table.COST_TOKENS, (*labels, "output"), output


class _PublishedFile(Generic[Content]):
    """The file that a spec's `key` names. What is wrong with it is logged once, not at each scrape."""

    def __init__(self, key: str, path: Path, read: Callable[[Path], Content], unusable: type[ValueError]) -> None:
        self._key, self._path, self._read, self._unusable = key, path, read, unusable
        self._reported = ""

    def read(self) -> Content | None:
        """None while it cannot be used."""
        try:
            return self._read(self._path)
        except self._unusable as error:
            if str(error) != self._reported:
                self._reported = str(error)
                log.warning("%s: %s", self._key, error)
            return None


def simulator_error(path: Path) -> Source:
    """While the file cannot be read there is `raylane_simulator_error_known` 0 and nothing else."""
    file = _PublishedFile("gateway.simulator_error", path, read_published, PublishedError)

    def read() -> Samples:
        published = file.read()
        yield table.SIMULATOR_ERROR_KNOWN, (), float(published is not None)
        if published is None:
            return
        yield table.SIMULATOR_CAPACITY_ERROR, (published.model,), published.capacity_error
        for at in published.loads:
            for figure in at.figures:
                labels = published.model, f"{at.load:g}", figure.name
                yield table.SIMULATOR_ERROR, labels, figure.error
                yield table.SIMULATOR_SPREAD, labels, figure.spread

    return read


def drift(path: Path) -> Source:
    """While the file cannot be read there is `raylane_drift_known` 0 and nothing else."""
    file = _PublishedFile("gateway.drift", path, read_drift, PublishedDriftError)

    def read() -> Samples:
        published = file.read()
        yield table.DRIFT_KNOWN, (), float(published is not None)
        if published is None:
            return
        yield table.DRIFT_COMPARED, (), published.compared_unix_s
        for one in published.figures:
            yield table.DRIFT_RATIO, (one.model, one.traffic_class, one.region, one.quantity), one.ratio

    return read
