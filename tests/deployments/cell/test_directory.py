"""The directory's list: who registers is on it, who is unresponsive leaves it, and who watches hears of it."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from cluster.versions import ENGINE, differences, versions_here
from deployments.cell import directory as module
from deployments.cell.act import Act, ActKind
from deployments.cell.departure import DepartureCause, Ended, MemberKind
from deployments.cell.directory import Directory
from deployments.cell.listing import Listing
from deployments.cell.node_check import NodesDiffer, check_own_node
from deployments.cell.scaling_state import ScalingState
from deployments.protocol import ReplicaFacts
from deployments.starts.phases import Phase
from deployments.starts.start import StartReport
from deployments.store import FILE_NAME, GATEWAYS, KeptValue, kept_in
from tests.deployments.cell.successors import next_directory
from tests.deployments.gateway.rig import Handle
from tests.small_disk import small_disk


def facts(name: str = "r1", pid: int = 1) -> ReplicaFacts:
    return ReplicaFacts(name, "demo", f"http://{name}", pid, "n", "generate", 1_024, 4, 2_048, 65_536)


async def test_the_secret_is_kept_beside_the_directory_and_not_in_rays_store(tmp_path: Path) -> None:
    one = next_directory(tmp_path / "run", secret="")
    with pytest.raises(LookupError):
        await one.secret()
    assert await one.use_secret("first") == "first"
    assert await one.use_secret("second") == "first"
    again = next_directory(tmp_path / "run", secret="")
    assert await again.secret() == "first"
    assert await again.use_secret("first") == "first"
    assert (tmp_path / "run" / "secret").stat().st_mode & 0o777 == 0o600


async def spec_in(directory: Directory) -> str | None:
    return (await directory.watch(-1, 0.0)).spec_json


async def test_a_spec_is_put_in_force_when_it_is_deployed_for_the_first_time(tmp_path: Path) -> None:
    one = next_directory(tmp_path)
    await one.deployed("deployed")
    assert await spec_in(one) == "deployed"
    await one.apply("changed by an operator")
    await one.deployed("deployed")
    again = next_directory(tmp_path)
    await again.deployed("deployed")
    assert await spec_in(again) == "changed by an operator"
    anew = next_directory(tmp_path, began_unix_s=1.0)
    assert await spec_in(anew) is None
    async with asyncio.timeout(module.RESTORE_S / 2):
        await anew.deployed("deployed")
    assert await spec_in(anew) == "deployed", "another cell, and nobody lives who has the other spec"
    await anew.deployed("deployed anew")
    assert await spec_in(anew) == "deployed anew"


async def told(directory: Directory) -> tuple[str, int]:
    """What a gateway knows of the spec in force."""
    listing = await directory.watch(-1, 0.0)
    assert listing.spec_json is not None
    return listing.spec_json, listing.spec_number


async def test_after_a_restart_an_older_spec_stays_out(tmp_path: Path) -> None:
    """Whoever speaks first: one that was cut off from the last directory knows of no newer one."""
    one = next_directory(tmp_path)
    await one.apply("old")
    cut_off = await told(one)
    await one.apply("new")
    others = await told(one)
    again = next_directory(tmp_path)
    await again.restore(*cut_off)
    assert await spec_in(again) == "new"
    await again.restore(*others)
    assert await told(again) == others


@pytest.mark.parametrize("all_is_lost", [False, True])
async def test_where_the_spec_could_not_be_kept_the_newest_that_a_gateway_has_wins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, all_is_lost: bool
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        one = next_directory(disk.path)
        await one.apply("old")
        cut_off = await told(one)
        disk.fill()
        await one.apply("new" * 5_000)  # it is in force all the same
        others = await told(one)
        assert "cannot be written" in caplog.text
        disk.free()
        again = next_directory(disk.path / "lost" if all_is_lost else disk.path)
        for known in (cut_off, others, cut_off):
            await again.restore(*known)
        assert await told(again) == others


async def test_a_spec_that_could_not_be_kept_is_kept_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        one = next_directory(disk.path)
        disk.fill()
        await one.apply("new")
        disk.free()
        known = await told(one)
        assert await told(next_directory(disk.path)) == known


async def test_no_spec_of_an_earlier_cell_comes_back(tmp_path: Path) -> None:
    """Gateways of a cell whose head was lost may still live when it is deployed again."""
    one = next_directory(tmp_path, began_unix_s=1.0)
    await one.apply("old")
    before = await told(one)
    await one.apply("new")
    anew = next_directory(tmp_path, began_unix_s=2.0)
    await anew.restore(*before)
    assert await spec_in(anew) is None
    await anew.deployed("deployed")
    await anew.restore(*before)
    assert await spec_in(anew) == "deployed"


async def test_the_first_replicas_wait_for_their_node_since_the_cell_began(tmp_path: Path) -> None:
    began = time.time() - 30
    one = next_directory(tmp_path, began_unix_s=began)
    await one.starting(StartReport("r1", "demo", "n", Phase.LOAD, 1.0, {Phase.LOAD: 1.0}))
    assert (await one.starts()).running[0].asked_unix_s == began
    await one.deployed("deployed", ["demo"])
    again = next_directory(tmp_path, began_unix_s=began)
    await again.starting(StartReport("r2", "other", "n", Phase.LOAD, 1.0, {Phase.LOAD: 1.0}))
    assert (await again.starts()).running[0].asked_unix_s > began + 20, "it has come in another one's place"


async def test_a_node_with_other_versions_than_the_head_is_named() -> None:
    one, here = Directory("secret"), versions_here()
    assert await one.version_differences(here) == []
    assert await one.version_differences({name: of for name, of in here.items() if name != ENGINE}) == []
    raylane = here["raylane"]
    assert await one.version_differences({**here, "raylane": "0.0.9"}) == [f"raylane 0.0.9 instead of {raylane}"]
    assert await one.version_differences({**here, ENGINE: "0.31.0"}) == [f"vLLM 0.31.0 instead of {here[ENGINE]}"]
    with pytest.raises(
        NodesDiffer, match=r"node 10\.0\.0\.7: raylane .* instead of 0\.2\.0; needed: what the head has"
    ):
        await check_own_node(Handle(cast(Directory, Newer())), "10.0.0.7")
    await check_own_node(Handle(cast(Directory, object())), "10.0.0.7")  # a directory that knows no such question


class Newer:
    """The directory of a head that has been upgraded."""

    async def version_differences(self, found: dict[str, str]) -> list[str]:
        return differences({**versions_here(), "raylane": "0.2.0"}, found)


async def test_where_the_gateways_are_is_in_the_store(tmp_path: Path) -> None:
    def told() -> dict[str, str]:
        return kept_in(tmp_path / FILE_NAME, GATEWAYS, dict[str, str])

    assert told() == {}
    one = next_directory(tmp_path)
    assert told() == {}
    await one.join("a", "http://10.0.0.2:1", ["m"], {}, {})
    await one.join("b", "http://10.0.0.3:1", ["m"], {}, {})
    assert told() == {"a": "http://10.0.0.2:1", "b": "http://10.0.0.3:1"}
    await one.leave("a")
    assert told() == {"b": "http://10.0.0.3:1"}


async def test_who_is_unresponsive_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FORGET_AFTER_S", 0.1)
    one = Directory("secret")
    await one.register(facts("r1"))
    await asyncio.sleep(0.2)
    await one.register(facts("r2"))
    assert (await one.watch(-1, 1.0)).replicas == (facts("r2"),)


async def test_what_comes_in_a_replicas_place_is_of_its_group() -> None:
    one = Directory("secret")
    for name, group in (("r1", "dear"), ("r2", "cheap"), ("r3", "dear")):
        await one.register(replace(facts(name), group=group))
        if name == "r1":
            await one.ended(Ended(MemberKind.REPLICA, name, time.time(), DepartureCause.ENGINE_DIED, "demo@dear"))
    (departure,) = (await one.watch(-1, 1.0)).departures.last
    assert departure.replaced_by == "r3"


async def test_a_new_directory_is_noticed() -> None:
    """Who watches with an old one's version hears from the new one at once: a restarted actor begins anew."""
    assert (await asyncio.wait_for(Directory("secret").watch(41, 30.0), 5)).replicas == ()


async def test_what_was_in_force_is_restored_and_what_has_been_put_in_force_since_stands() -> None:
    one = Directory("secret")
    await one.restore('{"old": 1}')
    assert (await one.watch(-1, 1.0)).spec_json == '{"old": 1}'
    await one.apply('{"new": 1}')
    await one.restore('{"old": 1}')
    assert (await one.watch(-1, 1.0)).spec_json == '{"new": 1}'


def cordon(name: str = "r1") -> Act:
    return Act(time.time(), ActKind.CORDON, "demo", "me", "odd", name)


async def test_orders_are_heard_and_outlive_the_actor(tmp_path: Path) -> None:
    one = next_directory(tmp_path)
    version = (await one.watch(-1, 1.0)).version
    await one.register(facts())
    await one.order(cordon())
    reported = await one.order(
        Act(time.time(), ActKind.PIN, "demo", "me", "because", replicas=4, until_unix_s=time.time() + 60)
    )
    listing = await one.watch(version, 1.0)
    assert listing.orders == reported
    assert listing.orders.cordoned("demo") == {"r1"}
    assert [control.replicas for control in listing.orders.of("demo", time.time())] == [4]
    again = next_directory(tmp_path)
    assert (await again.watch(-1, 1.0)).orders == reported
    assert await again.orders() == reported
    await again.order(Act(time.time(), ActKind.RELEASE, "demo", "me"))
    assert (await next_directory(tmp_path).orders()).controls == ()


async def test_the_cordon_of_a_replica_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Directory("secret")
    for name in ("r1", "r2", "r3"):
        await one.register(facts(name))
        await one.order(cordon(name))
    await one.deregister("r1")
    assert (await one.orders()).cordoned("demo") == {"r2", "r3"}
    monkeypatch.setattr(module, "FORGET_AFTER_S", 0.0)
    listing = await one.watch(-1, 1.0)
    assert listing.replicas == ()
    assert listing.orders.cordoned("demo") == {"r2", "r3"}, "they may only be cut off"
    await one.register(facts("r2"))
    monkeypatch.setattr(module, "FORGET_CORDON_AFTER_S", 0.2)
    await asyncio.sleep(0.3)
    await one.register(facts("r2"))
    assert (await one.watch(-1, 1.0)).orders.cordoned("demo") == {"r2"}


async def test_what_an_autoscaler_decides_is_heard() -> None:
    one = Directory("secret")
    state = ScalingState("demo", 2, 1, 1, 0, "backlog", time.time(), 30.0)
    version = (await one.watch(-1, 1.0)).version
    await one.scaling(state)
    listing = await one.watch(version, 1.0)
    assert listing.scaling.of("demo") == state
    await one.scaling(state)
    assert (await one.watch(listing.version, 0.05)).version == listing.version, "the same again is no news"
    assert (await one.watch(-1, 1.0)).scaling.decisions == (("demo", "backlog", 2),)


def epoch_of(listing: Listing) -> tuple[str, int]:
    (owner,) = listing.owners
    return owner.gateway_id, owner.epoch


async def test_an_epoch_is_on_the_disk_before_anyone_hears_of_it(tmp_path: Path) -> None:
    one = next_directory(tmp_path)
    version = (await one.watch(-1, 1.0)).version
    heard = asyncio.create_task(one.watch(version, 30.0))
    await asyncio.sleep(0)
    await one.join("g1", "u1", ["demo"], {}, {})
    assert KeptValue(one.store, "epochs", dict[str, int]).read() == {"demo": 1}
    assert epoch_of(await heard) == ("g1", 1)


async def test_where_the_epochs_are_lost_replicas_and_gateways_know_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_text("no store")
    one = next_directory(tmp_path)
    assert "is set aside" in caplog.text
    await one.register(facts(), 4)
    await one.join("g1", "u1", ["demo"], {}, {"demo": 3})
    assert epoch_of(await one.watch(-1, 1.0)) == ("g1", 5)


async def test_a_full_disk_does_not_keep_a_model_from_moving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small_disk(tmp_path / "disk") as disk:
        one = next_directory(disk.path)
        await one.join("g1", "u1", ["demo"], {}, {})
        disk.fill()
        await one.give_up("g1")
        await one.join("g2", "u2", ["demo"], {}, {})
        assert epoch_of(await one.watch(-1, 1.0)) == ("g2", 2)
        assert "cannot be written" in caplog.text
        disk.free()
        await one.watch(-1, 0.0)
        assert KeptValue(one.store, "epochs", dict[str, int]).read() == {"demo": 2}


async def test_starts_are_listed_and_a_failed_one_leaves_its_story(tmp_path: Path) -> None:
    """What it told before outlives it: the next directory of the cell learns from the life log."""
    one = next_directory(tmp_path)
    report = StartReport("r1", "org/m", "n", Phase.LOAD, 1.0, {Phase.ENVIRONMENT: 2.0, Phase.LOAD: 1.0})
    await one.asked({"org/m": 1})
    await one.starting(report)
    (running,) = (await one.watch(-1, 0.0)).starts.running
    assert (running.phase, running.replica_id) == (Phase.LOAD, "r1")
    await one.start_failed(report, "OSError: no disk", "Traceback ...")
    (failing,) = (await one.starts()).failing
    assert failing.last.log == str(tmp_path / "logs" / "failed-start-org+m.log")
    assert await asyncio.to_thread((tmp_path / "logs" / "failed-start-org+m.log").read_text) == "Traceback ..."
    assert 0 < await one.start_wait_s("org/m") <= 1.0
    await one.started(report)
    assert await one.start_wait_s("org/m") == 0.0
    successor = next_directory(tmp_path)
    assert [start.replica_id for start in (await successor.starts()).done] == ["r1"]
