"""Owners: an epoch is issued once, a stale gateway deposes nobody, and every model gets a living owner whom the others
follow."""

from deployments.cell.owners import SETTLE_S, UNRESPONSIVE_AFTER_S, Owners, Ownership

MODELS = ("m1", "m2")


def registered(*gateways: str, expected: int = 1, models: tuple[str, ...] = MODELS) -> Owners:
    """A directory of those gateways, since a moment ago."""
    owners = Owners(0.0, expected)
    for gateway in gateways:
        owners.register(gateway, f"http://{gateway}", models, {}, 1.0)
    return owners


def test_a_new_directory_waits_for_those_it_expects_or_until_it_has_settled() -> None:
    owners = registered("g1", expected=2)
    owners.assign(SETTLE_S - 0.1)
    assert owners.owned == {}
    owners.register("g2", "u2", MODELS, {}, SETTLE_S - 0.1)
    assert len(owners.owned) == len(MODELS)
    alone = registered("g1", expected=2)
    alone.assign(SETTLE_S)
    assert len(alone.owned) == len(MODELS)


def test_a_model_goes_to_the_gateway_that_owns_the_fewest_of_those_that_can() -> None:
    owners = Owners(0.0, 3)
    owners.register("g3", "u3", ("m1", "m2", "m3", "m4"), {}, 1.0)
    owners.register("g2", "u2", ("m1", "m2", "m3"), {}, 1.0)
    owners.register("g1", "u1", ("m4",), {}, 1.0)
    assert {model: owner.gateway_id for model, owner in owners.owned.items()} == {
        "m1": "g2",
        "m2": "g3",
        "m3": "g2",
        "m4": "g1",
    }


def test_one_that_is_unresponsive_for_just_so_long_still_lives() -> None:
    owners = registered("g1")
    for now in (3.0, 5.0, 1.0 + UNRESPONSIVE_AFTER_S):
        owners.assign(now)
    assert (owners.gateways, owners.lost) == ({"g1": "http://g1"}, ())
    owners.assign(1.0 + UNRESPONSIVE_AFTER_S + 0.1)
    assert (owners.gateways, owners.lost, owners.owned) == ({}, ("g1",), {})


def test_a_directory_that_stood_still_gives_up_nobody_who_speaks_soon_after() -> None:
    """Nor while a replica is all that it hears from."""
    owners = registered("g1", "g2")
    owned = dict(owners.owned)
    owners.assign(60.0)
    owners.register("g2", "http://g2", MODELS, {}, 61.0)
    owners.register("g1", "http://g1", MODELS, {}, 62.0)
    assert (owners.owned, owners.lost) == (owned, ())
    for now in (64.0, 66.0, 68.0):
        owners.saw({}, now)
    owners.assign(68.1)
    assert owners.lost == ("g1", "g2")


def test_the_lost_are_told_apart_from_those_that_left_and_are_forgotten_when_they_return() -> None:
    owners = registered("g1", "g2", "g3", "g4")
    owners.leave("g1", 1.0)
    owners.leave("nobody", 1.0)
    owners.give_up("g2", 1.0)
    owners.give_up("g2", 1.0)
    owners.give_up("g3", 1.0)
    assert owners.lost == ("g2", "g3")
    owners.register("g2", "u2", MODELS, {}, 2.0)
    assert owners.lost == ("g3",)
    for number in range(70):
        owners.give_up(f"x{number}", 2.0)
    assert owners.lost == tuple(f"x{number}" for number in range(6, 70)), "the last 64"


def test_a_model_that_had_an_owner_moves_at_once_where_one_that_had_none_waits() -> None:
    owners = Owners(0.0, expected=3)
    owners.register("g1", "u1", ("m1", "m2"), {"m1": 4}, 1.0)
    owners.register("g2", "u2", ("m1", "m2"), {}, 1.0)
    owners.give_up("g1", 1.0)
    assert owners.owned == {"m1": Ownership("m1", 5, "g2", "u2")}
