"""Owners: an epoch is issued once, a stale gateway deposes nobody, and every model gets a living owner whom the others
follow."""

from deployments.cell.owners import SETTLE_S, UNRESPONSIVE_AFTER_S, Owners, Ownership

MODELS = ("m1", "m2")
GATEWAYS = ("g1", "g2", "g3")


def test_models_are_spread_and_move_when_their_owner_leaves() -> None:
    owners = Owners(0.0)
    models = (*MODELS, "m3")
    for gateway in GATEWAYS:
        owners.register(gateway, gateway, models, {}, SETTLE_S)
    owners.assign(SETTLE_S)
    first = dict(owners.owned)
    assert first["m1"].epoch == 1
    owners.leave(first["m1"].gateway_id, 2.0)
    assert owners.owned["m1"].epoch == 2
    assert owners.owned["m1"].gateway_id != first["m1"].gateway_id
    kept = [model for model in models if first[model].gateway_id != first["m1"].gateway_id]
    assert all(owners.owned[model] == first[model] for model in kept)


def test_a_stale_gateways_report_deposes_nobody() -> None:
    owners = Owners(0.0)
    owners.register("g1", "u1", ["m1"], {}, 1.0)
    owners.register("g2", "u2", ["m1"], {}, 1.0)
    owners.give_up("g1", 2.0)
    rightful = owners.owned["m1"]
    assert (rightful.gateway_id, rightful.epoch) == ("g2", 2)
    owners.register("g1", "u1", ["m1"], {"m1": 1}, 3.0)
    owners.overtaken("m1", 2, 3.0)  # an engine told g1, which had not heard
    owners.overtaken("m1", 1, 3.0)
    assert owners.owned["m1"] == rightful
    owners.overtaken("m1", 7, 3.0)
    assert owners.owned["m1"].epoch == 8


def test_a_restarted_directory_believes_the_owners() -> None:
    owners = Owners(100.0, expected=3)
    owners.register("g2", "u2", MODELS, {}, 100.1)
    assert owners.owned == {}, "nothing is given out before the owners had time to say so"
    owners.register("g1", "u1", MODELS, {"m1": 7}, 100.2)
    assert (owners.owned["m1"].gateway_id, owners.owned["m1"].epoch) == ("g1", 7)
    owners.assign(100.0 + SETTLE_S)
    assert owners.owned["m2"].epoch == 1
    owners.overtaken("m2", 9, 102.0)
    assert owners.owned["m2"].epoch == 10


def test_a_restarted_directory_gives_the_owner_time_to_register_and_issues_no_epoch_again() -> None:
    owners = Owners(100.0, expected=3, epochs={"m1": 7})
    owners.register("g2", "u2", ["m1"], {}, 100.1)
    assert owners.owned == {}
    owners.register("g1", "u1", ["m1"], {"m1": 7}, 100.2)
    assert (owners.owned["m1"].gateway_id, owners.owned["m1"].epoch) == ("g1", 7)
    owners = Owners(100.0, expected=3, epochs={"m1": 7})
    owners.register("g2", "u2", ["m1"], {}, 100.0 + SETTLE_S)
    assert owners.owned["m1"].epoch == 8


def test_what_the_others_have_heard_of_is_not_issued_again_though_nothing_was_kept() -> None:
    """They would not follow it: an epoch that is no higher than the last they heard of is no news to them."""
    owners = Owners(100.0, expected=2)
    owners.register("g2", "u2", ["m1"], {}, 100.1, {"m1": 5})
    owners.register("g3", "u3", ["m1"], {}, 100.2, {"m1": 4})
    assert owners.owned["m1"].epoch == 6
    owners = Owners(100.0)
    owners.saw({"m1": 3})  # a replica
    owners.register("g2", "u2", ["m1"], {}, 100.1)
    assert owners.owned["m1"].epoch == 4


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
    owners.assign(1.0 + UNRESPONSIVE_AFTER_S)
    assert (owners.gateways, owners.lost) == ({"g1": "http://g1"}, ())
    owners.assign(1.0 + UNRESPONSIVE_AFTER_S + 0.1)
    assert (owners.gateways, owners.lost, owners.owned) == ({}, ("g1",), {})


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


def test_what_was_seen_is_never_issued_again_and_a_lower_one_changes_nothing() -> None:
    owners = Owners(0.0, epochs={"m1": 6})
    owners.saw({"m1": 9, "m2": 2})
    owners.saw({"m1": 3})
    owners.register("g1", "u1", ("m1", "m2", "m3"), {}, 1.0, {"m3": 5})
    assert {model: owner.epoch for model, owner in owners.owned.items()} == {"m1": 10, "m2": 3, "m3": 6}


def test_two_that_claim_one_epoch_get_a_new_one() -> None:
    """What was kept was lost, and the epoch was issued again before its owner had registered."""
    owners = Owners(0.0)
    owners.register("g1", "u1", ["m1"], {}, SETTLE_S)
    owners.register("g2", "u2", ["m1"], {"m1": 1}, SETTLE_S)
    assert owners.owned["m1"].epoch == 2
    assert owners.owned["m1"].gateway_id in {"g1", "g2"}


def test_an_owner_behind_an_epoch_that_was_seen_is_replaced_once_that_ones_owner_had_time_to_register() -> None:
    """Whoever has heard of the later epoch would not follow the earlier one."""
    owners = Owners(0.0, expected=3)
    owners.register("g1", "u1", ["m1"], {"m1": 5}, 1.0)
    owners.register("g2", "u2", ["m1"], {}, 1.0, {"m1": 6})
    assert (owners.owned["m1"].gateway_id, owners.owned["m1"].epoch) == ("g1", 5)
    owners.assign(SETTLE_S)
    assert owners.owned["m1"].epoch == 7
