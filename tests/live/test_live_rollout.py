"""Changes of a cell that runs, on three test hosts: a model whose settings change loses no request, one that cannot
start or finds no room leaves the old replicas serving, and one command goes back. Another operator sees the same cell,
and a head whose REST API hangs is left as it is."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
import yaml

from tests.live.clients import Answer, ask, begin
from tests.live.cluster import eventually
from tests.live.host_cluster import KEY, MODEL, WORKERS, HostCluster, Operator, bare_hosts, host_spec
from tests.live.hosts import on_test_hosts

pytestmark = on_test_hosts()
OTHER = "other-simulated"
STREAMS, SEQUENCES = 32, 4
"""Half of the streams wait: each model has two replicas, which hold so many each."""
STARTUP_S, TOTAL_S = 90, 240
A, B = WORKERS


def write(folder: Path, count: int = 2, **simulated: Any) -> None:
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec_in(folder, count, **simulated)))


def spec_in(folder: Path, count: int = 2, **simulated: Any) -> dict[str, Any]:
    """Two models of two replicas (`count`: of the second one). `simulated`: what the first one changes."""
    content = host_spec(folder, {"kind": "rocksdb"})
    content["regions"][0]["deploy"] |= {"head_service": "none", "secrets": {"kind": "file"}}
    first: dict[str, Any] = content["models"][0]
    first |= {"replicas": {"count": 2}}
    first["settings"] |= {"max_num_seqs": SEQUENCES, "cpus": 1.0}  # eight replicas fill both nodes
    costs = json.loads(Path(first["simulated"]["costs"]).read_text())
    costs["engine"]["max_num_seqs"] = SEQUENCES
    (folder / "costs.json").write_text(json.dumps(costs))
    first["simulated"] |= {"costs": str(folder / "costs.json")}
    first["health"] |= {"startup_s": STARTUP_S}
    content["lanes"] = [{**lane, "cap_s": TOTAL_S} for lane in content["lanes"]]  # what waits is a test's, not too much
    content["gateway"]["timeouts"] |= {"total_s": TOTAL_S, "queue_wait_s": TOTAL_S}
    changed = {**first, "simulated": {**first["simulated"], **simulated}}
    content["models"] = [changed, {**first, "name": OTHER, "replicas": {"count": count}}]
    return content


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    folder = tmp_path_factory.mktemp("r")
    with bare_hosts(folder, spec_in(folder)) as cell:
        yield cell


@pytest.fixture(scope="module")
def operator(cell: HostCluster) -> Operator:
    return Operator(cell)


def status_of(cell: HostCluster) -> dict[str, Any]:
    secret = (cell.head.home / ".raylane/drill-here/secrets/secret").read_text()
    answer = requests.get(f"http://{A}:8000/raylane/status", headers={"authorization": f"Bearer {secret}"}, timeout=5)
    found: dict[str, Any] = answer.json()
    return found


def pids(cell: HostCluster) -> dict[str, set[int]]:
    """The processes of each model's ready replicas, and of the gateways."""
    status = status_of(cell)
    found = {
        model["name"]: {one["pid"] for one in model["replicas"] if one["state"] == "ready"}
        for model in status["models"]
        if "replicas" in model
    }
    return found | {"gateways": {one["pid"] for one in status["gateways"]}}


class Clients:
    """Streams that run when a change begins, and clients of both models at both gateways that ask all the time."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.answers: list[Answer] = []
        self._session, self._stop = session, asyncio.Event()
        half = STREAMS // 4
        self._streams = [
            one
            for worker in WORKERS
            for model in (MODEL, OTHER)
            for one in begin(session, f"http://{worker}:8000", half, model=model, max_tokens=2_000)
        ]
        self._tasks = [
            asyncio.create_task(self._client(worker, model)) for worker in WORKERS for model in (MODEL, OTHER)
        ]

    async def _client(self, worker: str, model: str) -> None:
        while not self._stop.is_set():
            self.answers.append(await ask(self._session, f"http://{worker}:8000", model=model, max_tokens=100))

    async def ends(self) -> list[tuple[str, str | None]]:
        """How those ended that did not end well; there were some that did."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        answers = self.answers + [await one.task for one in self._streams]
        assert len(answers) > STREAMS
        return [(one.end, one.code) for one in answers if one.end != "done"]


@asynccontextmanager
async def clients() -> AsyncIterator[Clients]:
    timeout = aiohttp.ClientTimeout(total=600, sock_connect=5)
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {KEY}"}, timeout=timeout) as session:
        made = Clients(session)
        await asyncio.sleep(2)
        yield made


def is_ready(*models: str) -> bool:
    """By the pages that balancers and DNS ask, and by these models'."""
    pages = ["", "?model=*", *(f"?model={model}" for model in models)]
    urls = [f"http://{worker}:8000/ready{page}" for worker in WORKERS for page in pages]
    return all(requests.get(url, timeout=5).status_code == 200 for url in urls)


def waiting(cell: HostCluster) -> int:
    """Requests in the lanes of both models."""
    return sum(lane["waiting"] for model in status_of(cell)["models"] for lane in model["lanes"])


def test_a_cell_of_two_models(cell: HostCluster, operator: Operator) -> None:
    assert "region here: ready" in operator.deploy()
    eventually(lambda: is_ready(MODEL, OTHER) and {len(one) for one in pids(cell).values()} == {2}, 240)


async def test_a_change_with_room_loses_no_request(cell: HostCluster, operator: Operator) -> None:
    before = pids(cell)
    write(cell.folder, answer_tokens=201)
    said = await asyncio.to_thread(operator.deploy, "--diff")
    assert f"model-{MODEL}: 2 replicas are replaced, 1 at a time, each after its new one is ready; a start took" in said
    async with clients() as load:
        await asyncio.to_thread(eventually, lambda: waiting(cell) > 0, 60)
        await asyncio.to_thread(operator.deploy)
        await asyncio.to_thread(eventually, lambda: len(pids(cell)[MODEL] - before[MODEL]) == 2, 240)
        cell.note(f"{len(load.answers)} requests beside a change, and {STREAMS} streams")
        assert await load.ends() == []
    after = pids(cell)
    assert (after[OTHER], after["gateways"]) == (before[OTHER], before["gateways"])


async def test_a_change_that_cannot_start_leaves_the_old_replicas_and_one_command_goes_back(
    cell: HostCluster, operator: Operator
) -> None:
    before = pids(cell)
    (cell.folder / "none.json").write_text("{}")
    write(cell.folder, costs=str(cell.folder / "none.json"))
    async with clients() as load:
        said = await asyncio.to_thread(operator.deploy, status=1)
        assert f"application 'model-{MODEL}' cannot run" in said
        assert "raylane deploy SPEC --rollback" in said
        assert is_ready(MODEL, OTHER)
        assert pids(cell) == before
        assert "region here: ready" in await asyncio.to_thread(operator.deploy, "--rollback")
        assert await load.ends() == []
    assert pids(cell) == before


async def test_without_room_the_old_replicas_serve(cell: HostCluster, operator: Operator) -> None:
    write(cell.folder, count=6, answer_tokens=201)
    await asyncio.to_thread(operator.deploy)
    await asyncio.to_thread(eventually, lambda: len(pids(cell)[OTHER]) == 6, 240)
    before = pids(cell)
    write(cell.folder, count=6, answer_tokens=202)
    said = await asyncio.to_thread(operator.deploy, "--diff")
    assert (
        f"model-{MODEL}: no node of pool 'cpu' has room for a new replica beside the old ones: it needs 1 CPU" in said
    )
    async with clients() as load:
        assert "not ready after" in await asyncio.to_thread(operator.deploy, status=1)
        assert pids(cell) == before
        assert "region here: ready" in await asyncio.to_thread(operator.deploy, "--rollback")
        assert await load.ends() == []
    assert pids(cell) == before


def test_another_operator_sees_the_same_cell(cell: HostCluster, operator: Operator) -> None:
    before, other = pids(cell), Operator(cell, "other")
    write(cell.folder, count=6, answer_tokens=201)
    said = other.deploy("--diff")
    assert "a new cell" not in said
    assert "nothing to do; the cell has this spec" in other.deploy()
    secrets = [one for one in cell.folder.rglob("ray_token") if "files" in one.parts]
    assert len({one.read_text() for one in secrets}) == 1
    assert len(secrets) == 2
    assert pids(cell) == before


def test_a_head_whose_rest_api_hangs_is_left_as_it_is(cell: HostCluster, operator: Operator) -> None:
    before = pids(cell)
    dashboards = [one for one in cell.head.processes() if "dashboard.py" in " ".join(one.cmdline())]
    assert dashboards
    for one in dashboards:
        one.send_signal(signal.SIGSTOP)
    try:
        said = operator.deploy(status=1)
        assert "its REST API does not answer; nothing was changed" in said
    finally:
        for one in dashboards:
            one.send_signal(signal.SIGCONT)
    eventually(lambda: "nothing to do" in operator.deploy(), 60)
    assert pids(cell) == before


def test_down(operator: Operator) -> None:
    assert "region here: down" in operator.deploy("--down")
