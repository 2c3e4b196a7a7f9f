"""What is in force follows from the acts alone, in their order, also after they went through the file."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.cell.act import Act, ActKind, Audit
from deployments.cell.control import Control, ControlKind
from deployments.cell.orders import OperatorOrders, Orders
from deployments.store import CellStore

texts = st.text(max_size=20)
acts = st.builds(
    Act,
    at_unix_s=st.floats(0, 1e10),
    kind=st.sampled_from(ActKind),
    model=st.sampled_from(["a", "b"]),
    by=texts,
    why=texts,
    replica_id=st.sampled_from(["r1", "r2", "r3"]),
    replicas=st.integers(0, 100),
    until_unix_s=st.floats(0, 1e10),
    reason=texts,
)


def hold(replicas: int, until_s: float = 100.0, kind: ActKind = ActKind.HOLD, model: str = "m") -> Act:
    return Act(0.0, kind, model, "me", "load test", replicas=replicas, until_unix_s=until_s)


def test_a_later_one_of_a_kind_replaces_the_earlier_and_a_release_ends_all() -> None:
    history = OperatorOrders([hold(3), hold(5), hold(4, kind=ActKind.PIN), hold(1, model="other")])
    orders = history.orders(0.0)
    assert orders.of("m", 0.0) == (
        Control(ControlKind.HOLD, 5, 100.0, "me", "load test"),
        Control(ControlKind.PIN, 4, 100.0, "me", "load test"),
    )
    assert orders.of("m", 100.0) == ()
    history.take(Act(1.0, ActKind.RELEASE, "m", "me"))
    assert [model for model, _ in history.orders(1.0).controls] == ["other"]
    assert {(model, kind): count for model, kind, count in history.orders(1.0).acts} == {
        ("m", ActKind.HOLD): 2,
        ("m", ActKind.PIN): 1,
        ("m", ActKind.RELEASE): 1,
        ("other", ActKind.HOLD): 1,
    }


def test_what_has_ended_is_not_in_force_unless_the_clock_was_ahead() -> None:
    history = OperatorOrders([hold(3, until_s=10.0)])
    assert [len(history.orders(now).controls) for now in (9.9, 10.0, 9.9)] == [1, 0, 1]


def test_cordons() -> None:
    history = OperatorOrders(
        [Act(1.0, ActKind.CORDON, "m", "me", "odd", "r1"), Act(2.0, ActKind.CORDON, "n", "you", "", "r2")]
    )
    orders = history.orders(3.0)
    assert (orders.cordoned("m"), orders.cordoned("n"), orders.cordoned("none")) == ({"r1"}, {"r2"}, frozenset())
    cordon = orders.cordon_of("r1")
    assert cordon is not None
    assert (cordon.by, cordon.why, cordon.at_unix_s) == ("me", "odd", 1.0)
    history.take(Act(4.0, ActKind.UNCORDON, "m", "me", "", "r1"))
    assert history.forget("r2")
    assert not history.forget("r2")
    assert history.orders(5.0).cordons == ()
    assert history.orders(5.0).cordon_of("r1") is None


def test_a_drain_leaves_nothing_in_force() -> None:
    orders = OperatorOrders([Act(1.0, ActKind.DRAIN, "m", "me", "", "r1", reason="operator")]).orders(2.0)
    assert orders == Orders(acts=(("m", ActKind.DRAIN, 1),))


@pytest.mark.whole
@given(st.lists(acts, max_size=12), st.floats(0, 1e10))
def test_the_store_gives_the_same_orders_back(done: list[Act], now: float) -> None:
    store = CellStore(None)
    for act in done:
        Audit(store).write(act)
    assert Audit(store).read() == done
    assert OperatorOrders(Audit(store).read()).orders(now) == OperatorOrders(done).orders(now)


def test_an_act_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    store = CellStore(None)
    for replicas in (1, 2, 3):
        Audit(store).write(hold(replicas))
    store.write(lambda file: file.execute("update acts set body = x'c1' where number = 2"))
    assert [act.replicas for act in Audit(store).read()] == [1, 3]
    assert "act 2 is left out" in caplog.text
