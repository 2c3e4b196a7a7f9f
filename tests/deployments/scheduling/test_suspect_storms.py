"""Queries of death among many clients who retry: at most two replicas are lost to one, and bystanders are answered."""

import random
from collections import Counter
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from deployments.scheduling import Ending, Lease, RejectCause
from deployments.scheduling.request import FORGET_S
from tests.deployments.scheduling.test_suspects import BIG, ask
from tests.deployments.scheduling.world import make_scheduler


@dataclass
class Client:
    """Sends its body, and sends it anew when an answer that had begun broke off, up to `tries` times."""

    name: str
    body: str
    tries: int
    sent: int = 0
    ended: str = ""


class World:
    """Replicas that die when they do what a deadly body asks for, the shell's words of it in any order, and clients
    that retry."""

    def __init__(self, source: random.Random, replicas: int, deadly: str, at: str) -> None:
        self.source = source
        self.scheduler = make_scheduler(0)
        self.now = 0.0
        self.deaths = 0
        self.ran_at: Counter[str] = Counter()
        self._deadly, self._at = deadly, at
        self._ups = 0
        self._clients: dict[str, Client] = {}
        self._started: set[int] = set()
        for _ in range(replicas):
            self._up()

    def _up(self) -> None:
        self._ups += 1
        self.scheduler.replica_up(f"r{self._ups}", BIG, self.now)

    def send(self, client: Client) -> None:
        """The client asks, for the first time or again."""
        client.sent += 1
        name = f"{client.name}-{client.sent}"
        self._clients[name] = client
        self._hear(client, self.scheduler.submit(ask(name, client.body, self.now), self.now).cause)

    def run(self, clients: list[Client]) -> None:
        """Until everybody has an answer or gave up."""
        waiting = list(clients)
        for _ in range(3_000):
            self.now = round(self.now + 0.01, 2)
            if waiting and self.source.random() < 0.5:
                self.send(waiting.pop())
            self._step()
            running = [lease for lease, _ in self.scheduler.leases.values()]
            if running:
                self._goes_on(self.source.choice(running))
            elif not waiting and all(client.ended for client in clients):
                return
        raise AssertionError([client for client in clients if not client.ended])

    def _step(self) -> None:
        for gone in self.scheduler.step(self.now).turned_away:
            self._hear(self._clients[gone.request.request_id], gone.admission.cause)

    def _hear(self, client: Client, cause: RejectCause | None) -> None:
        if cause is not None:
            client.ended = cause.value

    def _goes_on(self, lease: Lease) -> None:
        """Its first token comes, or its end; or it kills."""
        started = lease.lease_id in self._started
        if lease.request.digest == self._deadly and started == (self._at == "decode"):
            self._kill(lease.replica_id)
        elif started:
            self.scheduler.release(lease, Ending.FINISHED, None, self.now)
            self._clients[lease.request.request_id].ended = "answered"
        else:
            self._started.add(lease.lease_id)
            self.scheduler.first_token(lease, self.now)

    def _kill(self, replica_id: str) -> None:
        self.deaths += 1
        dead = [lease for lease, _ in self.scheduler.leases.values() if lease.replica_id == replica_id]
        self.source.shuffle(dead)
        self.ran_at.update({lease.request.digest for lease in dead})
        reported_at_once = dead[
            : self.source.randrange(len(dead) + 1)
        ]  # their connections broke; of the others the feed's end tells
        for lease in reported_at_once:
            self._broke(lease)
            if self.source.random() < 0.3:
                self._step()
        lost = self.scheduler.replica_lost(replica_id, self.now)
        for lease in lost:
            self._again(lease)
        self._up()

    def _broke(self, lease: Lease) -> None:
        self.scheduler.died(lease, self.now)
        if lease.lease_id in self._started:
            self.scheduler.release(lease, Ending.FAILED, None, self.now)
            self._again(lease)
        else:
            self.scheduler.release(lease, Ending.REFUSED, None, self.now)

    def _again(self, lease: Lease) -> None:
        """Bytes had been sent: the client asks anew. None had: its gateway does."""
        client = self._clients[lease.request.request_id]
        if lease.lease_id not in self._started:
            again = replace(lease.request, attempts=lease.attempt)
            self._hear(client, self.scheduler.submit(again, self.now, admitted=True).cause)
        elif client.sent < client.tries:
            self.send(client)
        else:
            client.ended = "lost"


def stormed(seed: int, replicas: int, others: int, at: str) -> tuple[World, list[Client]]:
    """A deadly body among so many others', each client with ten tries."""
    source = random.Random(seed)
    world = World(source, replicas, "deadly", at)
    clients = [Client(f"c{number}", f"b{number}", 10) for number in range(others)]
    clients.append(Client("killer", "deadly", 10))
    source.shuffle(clients)
    world.run(clients)
    assert world.deaths == 2
    return world, clients


@pytest.mark.whole
@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 4), st.integers(0, 20))
def test_a_body_that_kills_before_its_first_token_costs_two_replicas_and_nobody_else_an_answer(
    seed: int, replicas: int, others: int
) -> None:
    _, clients = stormed(seed, replicas, others, "prefill")
    assert {client.name: client.ended for client in clients} == {
        client.name: "query_of_death" if client.body == "deadly" else "answered" for client in clients
    }


@pytest.mark.whole
@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 4), st.integers(0, 20))
def test_a_body_that_kills_in_mid_answer_costs_two_replicas_and_only_those_an_answer_that_ran_at_both(
    seed: int, replicas: int, others: int
) -> None:
    world, clients = stormed(seed, replicas, others, "decode")
    for client in clients:
        assert client.ended == "answered" or world.ran_at[client.body] == 2
    (killer,) = [client for client in clients if client.body == "deadly"]
    assert killer.ended == "query_of_death"
    now = world.now + 2 * FORGET_S
    world.scheduler.step(now)
    assert all(
        world.scheduler.submit(ask(f"later-{client.name}", client.body, now), now).accepted for client in clients
    )
