"""`raylane deploy` on three test hosts, by SSH, from nothing to a cell that answers: the same spec again changes
nothing, a new key of a tenant restarts nothing, a head that has lost its state gets the cell back by itself, and
`--down` leaves nothing.

The head is started by Ray's launcher itself (`head_service: none`), which tells it to run Ray's second autoscaler;
`test_live_hosts.py` has a stand-in for systemd.
"""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
import yaml

from deployments.gateway.entrance import digest_of
from tests.live.cluster import eventually
from tests.live.host_cluster import HEAD, KEY, MODEL, REPLICAS, WORKERS, HostCluster, Operator, bare_hosts, host_spec
from tests.live.hosts import on_test_hosts
from tests.live.test_live_hosts import Traffic

pytestmark = on_test_hosts()
A, B = WORKERS
ZONES = ("east", "west")
OTHER_KEY = "another key of the tenant"


def zoned_spec(folder: Path) -> dict[str, Any]:
    """Each worker in a zone of its own, and a head that nothing starts again."""
    content = host_spec(folder, {"kind": "rocksdb"})
    region = content["regions"][0]
    region["deploy"]["head_service"] = "none"
    region["pools"][0]["zones"] = list(ZONES)
    for worker, zone in zip(region["deploy"]["workers"], ZONES, strict=True):
        worker["zone"] = zone
    return content


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("d")
    with bare_hosts(folder, zoned_spec(folder)) as cell:
        yield Operator(cell)


def pids(cell: HostCluster) -> set[tuple[str, int]]:
    report = cell.report(A)
    replicas = {(one["replica_id"], one["pid"]) for one in report["models"][0]["replicas"]}
    return replicas | {(one["id"], one["pid"]) for one in report["gateways"]}


def status_of(worker: str, key: str) -> int:
    body = {"model": MODEL, "prompt": "1, 2, 3,", "max_tokens": 4}
    headers = {"authorization": f"Bearer {key}"}
    return requests.post(f"http://{worker}:8000/v1/completions", json=body, headers=headers, timeout=30).status_code


def test_deploy_brings_all_workers_up(operator: Operator) -> None:
    cell, began = operator.cell, time.monotonic()
    assert "region here: ready" in operator.deploy()
    cell.until_whole(A, B)
    cell.note(f"raylane deploy, from nothing: {time.monotonic() - began:.0f} s until all is ready")
    assert [status_of(worker, KEY) for worker in WORKERS] == [200, 200]
    replicas = cell.replicas(A)
    assert sorted(replicas.values()) == sorted([A, B] * (REPLICAS // 2)), "spread, and none on the head"
    assert cell.alive_nodes() == [HEAD, *WORKERS]
    assert (cell.head.home / ".raylane/drill-here/run/cell.sqlite").exists(), "the directory is on the head"
    secret = (cell.folder / "secrets" / "secret").read_text()
    for host in cell.hosts:
        assert secret not in host.ssh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout


def zones(cell: HostCluster) -> dict[str, int]:
    """The ready replicas of each zone, as the gateway on A knows them."""
    return Counter(one["zone"] for one in cell.report(A)["models"][0]["replicas"] if one["state"] == "ready")


def test_replicas_are_spread_over_the_zones_of_the_spec(operator: Operator) -> None:
    assert zones(operator.cell) == dict.fromkeys(ZONES, REPLICAS // 2)


def test_the_first_replicas_were_asked_for_when_the_cell_was_deployed(operator: Operator) -> None:
    """All at once, whenever their processes began; the first ones may be older, since Ray keeps some ready."""
    starts = [replica["start"] for replica in operator.cell.report(A)["models"][0]["replicas"]]
    assert len({start["asked_unix_s"] for start in starts}) == 1, starts
    assert max(start["seconds"].get("node", 0.0) for start in starts) > 0.1
    for start in starts:
        assert sum(start["seconds"].values()) == pytest.approx(start["ended_unix_s"] - start["asked_unix_s"], rel=0.05)


def test_the_same_spec_again_changes_nothing(operator: Operator) -> None:
    before, began = pids(operator.cell), time.monotonic()
    assert "nothing to do; the cell has this spec" in operator.deploy()
    operator.cell.note(f"raylane deploy again: {time.monotonic() - began:.0f} s")
    assert pids(operator.cell) == before


def test_a_new_key_of_a_tenant_is_taken_over_and_restarts_nothing(operator: Operator) -> None:
    before, began = pids(operator.cell), time.monotonic()
    tenants = {"tenants": [{"name": "drill", "keys": [digest_of(OTHER_KEY)]}]}
    (operator.cell.folder / "spec.yaml").write_text(yaml.safe_dump(zoned_spec(operator.cell.folder) | tenants))
    operator.deploy()
    operator.cell.note(f"a new key: {time.monotonic() - began:.0f} s")
    assert [status_of(worker, OTHER_KEY) for worker in WORKERS] == [200, 200]
    assert [status_of(worker, KEY) for worker in WORKERS] == [401, 401]
    assert pids(operator.cell) == before


async def test_a_lost_zone_loses_what_ran_there_and_comes_back_in_the_other(operator: Operator) -> None:
    cell, traffic = operator.cell, Traffic(A)
    gone = {replica for replica, address in cell.replicas(A).items() if address == B}
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {OTHER_KEY}"}) as session:
        load = asyncio.create_task(traffic.run(session))
        await asyncio.sleep(4)
        began = time.monotonic()
        cell.hosts[2].kill()
        there = {ZONES[0]: REPLICAS}
        await asyncio.to_thread(eventually, lambda: zones(cell) == there and not set(cell.replicas(A)) & gone, 180)
        cell.note(f"a zone lost: all replicas in the other one after {time.monotonic() - began:.0f} s")
        traffic.stop.set()
        await load
    broken = [one for one in traffic.answers if one.end != "done"]
    cell.note(f"{len(traffic.answers)} requests at the other gateway, {len(broken)} of them broken, all in the zone")
    assert traffic.not_done(gone) == []
    assert {one.end for one in broken} <= {"error"}, "no stream breaks without an error event"
    await asyncio.to_thread(cell.until_whole, A, B)
    assert zones(cell) == there, "nothing is moved for the sake of a zone that comes back"


def test_a_head_that_lost_its_state_gets_the_cell_back_by_itself(operator: Operator) -> None:
    """A stand-in for what restarts the head where `head_service` is `none`: one call of its start script."""
    cell, began = operator.cell, time.monotonic()
    before = pids(cell)
    assert cell.head.kill() > 3
    shutil.rmtree(cell.head.home / ".raylane/drill-here/gcs")
    started = cell.head.ssh("sh ~/.raylane/drill-here/node/start-head </dev/null >/tmp/ray/start-head.log 2>&1")
    assert started.returncode == 0, cell.head.ssh("cat /tmp/ray/start-head.log").stdout
    # Until the new head starts them again, the workers answer as if nothing had happened.
    log = cell.head.home / ".raylane/drill-here/run/logs/restore.log"
    eventually(lambda: "Serve got its applications again; workers: 2 of 2" in log.read_text(), limit_s=300)
    cell.until_whole(A, B)
    cell.note(f"the head killed, its store lost, started again: whole after {time.monotonic() - began:.0f} s")
    assert "nothing to do; the cell has this spec" in operator.deploy()
    assert not pids(cell) & before
    assert sorted(cell.replicas(A).values()) == sorted([A, B] * (REPLICAS // 2))
    assert [status_of(worker, OTHER_KEY) for worker in WORKERS] == [200, 200]


def test_down_leaves_nothing_and_a_cell_that_is_deployed_again_is_new(operator: Operator) -> None:
    cell, began = operator.cell, time.monotonic()
    assert "region here: down" in operator.deploy("--down")
    cell.note(f"raylane deploy --down: {time.monotonic() - began:.0f} s")
    for host in cell.hosts:
        left = [line for line in host.ssh("ps axo args").stdout.splitlines() if "ray" in line and "sshd" not in line]
        assert left == [], left
        assert host.ssh("ls ~/.raylane/drill-here").stdout.split() == ["run"]
    began = time.monotonic()
    operator.deploy()
    cell.until_whole(A, B)
    cell.note(f"raylane deploy once more: {time.monotonic() - began:.0f} s")
    assert [status_of(worker, OTHER_KEY) for worker in WORKERS] == [200, 200]
    operator.deploy("--down")
