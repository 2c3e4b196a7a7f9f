"""Which replicas a gateway knows, which take requests, and whose turn it is."""

from dataclasses import replace

from deployments.ownership.replicas import Replicas
from deployments.protocol import ReplicaFacts


def facts(name: str) -> ReplicaFacts:
    """A replica that listens at a place of its own."""
    return ReplicaFacts(name, "demo", f"http://{name}", 1, "n", "generate", 1_024, 8, 2_048, 65_536)


def test_ready_open_and_known_are_three_things() -> None:
    replicas = Replicas()
    assert (replicas.ready, replicas.open, replicas.ready_in_turn()) == ([], [], [])
    one, two = facts("r1"), facts("r2")
    replicas.up(one)
    replicas.up(two)
    replicas.cordoned = frozenset({"r1"})
    assert (replicas.ready, replicas.open) == ([one, two], [two])
    replicas.set_aside("r2")
    replicas.set_aside("nobody")
    assert (replicas.ready, replicas.open, replicas.is_ready("r1"), replicas.is_ready("r2")) == ([one], [], True, False)
    assert replicas.url_of("r2") == two.url
    replicas.lost("r2")
    replicas.lost("nobody")
    assert (replicas.url_of("r2"), replicas.url_of("r1")) == (None, one.url)
    replicas.lost("r1")
    assert (replicas.ready, replicas.is_ready("r1")) == ([], False)


def test_what_a_replica_is() -> None:
    replicas = Replicas()
    replicas.up(facts("r1"))
    replicas.up(replace(facts("r2"), group="cheap", max_model_len=512))
    known = ("r1", "r2", "nobody")
    assert [replicas.context_of(name) for name in known] == [1_024, 512, 0]
    assert [replicas.group_of(name) for name in known] == [None, "cheap", None]


def test_each_replica_is_first_in_its_turn() -> None:
    replicas = Replicas()
    for name in ("r0", "r1", "r2"):
        replicas.up(facts(name))
    turns = [[one.replica_id for one in replicas.ready_in_turn()] for _ in range(4)]
    assert turns == [["r1", "r2", "r0"], ["r2", "r0", "r1"], ["r0", "r1", "r2"], ["r1", "r2", "r0"]]
