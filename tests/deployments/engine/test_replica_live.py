"""One real replica under a real Ray Serve: its door, its feed, its drain, and what is left of it when parts of it die."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cluster.spec import EngineSettings, Health, Model
from deployments.protocol import DRAINING_CODE, FEED_PATH, REQUEST_ID_HEADER, Finished, FirstTokens, Hello, Load, Message, ReplicaState, decode

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

SOURCE = os.environ.get("RAYLANE_TEST_MODEL", "demo")
PATIENCE_S = 90.0
"""For waits on conditions: longer than anything takes on a busy machine."""


class Host:
    """The process of `live_host.py`."""

    def __init__(self, folder: Path, model: Model) -> None:
        self.secret = secrets.token_urlsafe(16)
        script = Path(__file__).with_name("live_host.py")
        command = [sys.executable, str(script), str(folder), self.secret, model.model_dump_json()]
        self._log = (folder / "host.log").open("w")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=folder)
        self._answer()

    def ask(self, word: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise RuntimeError(f"the host ended: {Path(self._log.name).read_text()[-4000:]}")

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
        self._log.close()


class Replica:
    """A replica as its gateway sees it: an address and a secret."""

    def __init__(self, facts: dict[str, Any], secret: str) -> None:
        self.facts = facts
        self.pid: int = facts["pid"]
        self.headers = {"Authorization": f"Bearer {secret}"}
        self.family = family(self.pid)
        self.core = next(pid for pid in self.family if "EngineCor" in name(pid))

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(self.facts["url"], headers=self.headers, timeout=timeout) as session:
            yield session


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    # Ray's sockets must have short paths, so the folder is not pytest's.
    folder = Path(tempfile.mkdtemp(prefix="rl"))
    settings = EngineSettings(dtype="bfloat16", max_model_len=8192, max_num_seqs=64, enforce_eager=True, kv_cache_memory_bytes=1 << 28)
    health = Health(stall_s=4, period_s=1, timeout_s=5)
    host = Host(folder, Model(name="demo", source=SOURCE, settings=settings, health=health))
    yield host
    host.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def replica(host: Host) -> Replica:
    return await new_replica(host, other_than=0)


async def test_every_path_asks_for_the_secret(replica: Replica) -> None:
    wrong = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": replica.headers["Authorization"] + "x"})
    paths = ("/", "/docs", "/openapi.json", "/metrics", "/health", "/ping", "/v1/models", "/tokenize", "/raylane/feed", "/raylane/drain", "/nowhere")
    async with aiohttp.ClientSession(replica.facts["url"]) as session:
        for headers in wrong:
            for path in paths:
                for method in ("GET", "POST"):
                    async with session.request(method, path, headers=headers) as response:
                        assert response.status == 401, (method, path)
                        assert (await response.json())["error"]["code"] == "invalid_secret"
    async with replica.session() as session, session.get("/v1/models") as response:
        assert (await response.json())["data"][0]["id"] == "demo"


def test_nothing_of_the_engine_listens_beyond_loopback(replica: Replica) -> None:
    # The replica's own process also has Ray's ports, which are open to all by Ray's design (and ask for Ray's token).
    children = {address for pid in replica.family - {replica.pid} for address in listening(pid)}
    assert children
    assert all(address.startswith("127.0.0.1:") for address in children), children
    assert replica.facts["url"].removeprefix("http://") in listening(replica.pid)


async def test_the_feed_tells_load_and_tokens(replica: Replica) -> None:
    async with replica.session() as session, feed(session) as messages:
        hello = await messages.get()
        assert isinstance(hello, Hello)
        assert hello.state is ReplicaState.READY
        assert hello.facts.kv_tokens >= 8192
        answer = await chat(session, "feed-1", max_tokens=12, n=2)
        finished = await until(messages, lambda message: isinstance(message, Finished) and message.request_id == "feed-1")
        assert (finished.status, finished.sequences) == (200, 2)
        assert finished.output_tokens == answer["usage"]["completion_tokens"] == 24
        assert finished.prompt_tokens == 2 * answer["usage"]["prompt_tokens"]
        assert 0 < finished.first_byte_s <= finished.wall_s
        # `/v1/responses` takes its engine id from the body, not from our header.
        body = {"model": "demo", "input": "hi", "max_output_tokens": 5}
        async with session.post("/v1/responses", json=body, headers=request_id("feed-2")) as response:
            assert response.status == 200
        finished = await until(messages, lambda message: isinstance(message, Finished) and message.request_id == "feed-2")
        assert (finished.sequences, finished.output_tokens) == (1, 5)
        await until(messages, lambda message: isinstance(message, Load) and message.running == message.exchanges == 0)


async def test_the_feed_tells_of_first_tokens_once_before_the_end(replica: Replica) -> None:
    ask = {"model": "demo", "max_tokens": 40, "min_tokens": 40, "prompt": [[7, 8, 9], list(range(300)), [5] * 700], "n": 2}
    whole = {**ask, "prompt": list(range(900)), "n": 1}
    bodies = {
        "first-many": ask,
        "first-one": whole,
        "first-stream": {**whole, "stream": True},
        "first-last": {**whole, "max_tokens": 1, "min_tokens": 1},
    }
    async with replica.session() as session, feed(session) as messages:

        async def post(name: str) -> None:
            async with session.post("/v1/completions", json=bodies[name], headers=request_id(name)) as response:
                assert response.status == 200
                await response.read()

        async with asyncio.TaskGroup() as group:
            for name in bodies:
                group.create_task(post(name))
            told: list[str] = []
            finished: dict[str, Finished] = {}
            while len(finished) < len(bodies):
                message = await until(messages, lambda message: isinstance(message, FirstTokens | Finished))
                if isinstance(message, FirstTokens):
                    assert not set(message.request_ids) & set(finished)
                    told += message.request_ids
                else:
                    finished[message.request_id] = message
        assert sorted(told) == sorted(bodies)
        assert finished["first-many"].sequences == 6


async def test_metrics_show_the_engines_counters_and_ours(replica: Replica) -> None:
    async with replica.session() as session:
        await chat(session, "metrics-1", max_tokens=3)
        async with session.get("/metrics") as response:
            text = await response.text()
    assert "vllm:generation_tokens_total" in text
    assert 'raylane_engine_state{state="ready"} 1.0' in text
    assert "raylane_engine_tokens_total" in text
    assert "raylane_engine_loop_lag_seconds" in text


async def test_a_client_that_leaves_frees_the_engine(replica: Replica) -> None:
    async with replica.session() as session, feed(session) as messages:
        for round_ in range(5):
            async with stream(session, f"leave-{round_}") as response:
                await response.content.readline()
                await until(messages, lambda message: isinstance(message, Load) and message.running == 1)
                response.close()
            left = time.monotonic()
            await until(messages, lambda message: isinstance(message, Load) and message.running == 0 and message.kv_usage == 0)
            assert time.monotonic() - left < 2
        finished = await until(messages, lambda message: isinstance(message, Finished) and message.request_id == "leave-4")
        assert finished.sequences == 0


@pytest.mark.long
async def test_a_killed_core_is_replaced(host: Host, replica: Replica) -> None:
    async with replica.session() as session, feed(session) as messages, stream(session, "killed") as response:
        await response.content.readline()
        os.kill(replica.core, signal.SIGKILL)
        rest = await asyncio.wait_for(response.content.read(), 5)
        assert b'"error"' in rest
        await until(messages, lambda message: isinstance(message, Load) and message.state is ReplicaState.UNHEALTHY)
    successor = await new_replica(host, other_than=replica.pid)
    await until_gone(replica.family)
    async with successor.session() as session:
        await chat(session, "after-kill", max_tokens=3)


@pytest.mark.long
async def test_a_stopped_core_is_replaced(host: Host, replica: Replica) -> None:
    async with replica.session() as session, feed(session) as messages, stream(session, "stopped") as response:
        await response.content.readline()
        os.kill(replica.core, signal.SIGSTOP)
        await until(messages, lambda message: isinstance(message, Load) and message.state is ReplicaState.UNHEALTHY)
        rest = await asyncio.wait_for(response.content.read(), 5)
        assert b'"error"' in rest
    await new_replica(host, other_than=replica.pid)
    await until_gone(replica.family)


@pytest.mark.long
async def test_a_killed_replica_leaves_no_child(host: Host, replica: Replica) -> None:
    # Stopped, so that the core cannot see by itself that its parent is gone.
    os.kill(replica.core, signal.SIGSTOP)
    os.kill(replica.pid, signal.SIGKILL)
    killed = time.monotonic()
    await until_gone(replica.family)
    assert time.monotonic() - killed < 10
    await new_replica(host, other_than=replica.pid)


async def test_a_draining_replica_finishes_what_runs(host: Host, replica: Replica) -> None:
    async with replica.session() as session, feed(session) as messages, stream(session, "drained", max_tokens=2000) as response:
        await response.content.readline()
        host.ask("delete")
        await until(messages, lambda message: isinstance(message, Load) and message.state is ReplicaState.DRAINING)
        async with session.post("/v1/completions", json={"model": "demo", "prompt": "hi"}) as refused:
            assert refused.status == 503
            assert (await refused.json())["error"]["code"] == DRAINING_CODE
        assert host.ask("replicas") == []
        rest = await response.content.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        finished = await until(messages, lambda message: isinstance(message, Finished) and message.request_id == "drained")
        assert finished.output_tokens == 2000
    await until_gone(replica.family)


def request_id(value: str) -> dict[str, str]:
    return {REQUEST_ID_HEADER: value}


async def chat(session: aiohttp.ClientSession, ident: str, **options: Any) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Count from 1 to 5."}], "ignore_eos": True, **options}
    async with session.post("/v1/chat/completions", json=body, headers=request_id(ident)) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


@asynccontextmanager
async def stream(session: aiohttp.ClientSession, ident: str, max_tokens: int = 7000) -> AsyncIterator[aiohttp.ClientResponse]:
    body = {"model": "demo", "prompt": "1 2 3", "stream": True, "ignore_eos": True, "max_tokens": max_tokens}
    async with session.post("/v1/completions", json=body, headers=request_id(ident), read_bufsize=1 << 22) as response:
        assert response.status == 200
        yield response


@asynccontextmanager
async def feed(session: aiohttp.ClientSession) -> AsyncIterator[asyncio.Queue[Message]]:
    """The replica's feed, read into a queue by a task of its own."""
    messages: asyncio.Queue[Message] = asyncio.Queue()

    async def read() -> None:
        async with session.get(FEED_PATH, timeout=aiohttp.ClientTimeout(total=None)) as response:
            assert response.status == 200
            async for line in response.content:
                messages.put_nowait(decode(line))

    task = asyncio.create_task(read())
    try:
        yield messages
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(messages: asyncio.Queue[Message], wanted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await messages.get()
            if wanted(message):
                return message


async def new_replica(host: Host, other_than: int) -> Replica:
    """The registered replica whose process is not `other_than`."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            for facts in await asyncio.to_thread(host.ask, "replicas"):
                if facts["pid"] != other_than and is_alive(facts["pid"]):
                    return Replica(facts, host.secret)


async def until_gone(pids: set[int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while any(is_alive(pid) for pid in pids):  # noqa: ASYNC110 - the kernel sets no asyncio event
            await asyncio.sleep(0.05)


def family(pid: int) -> set[int]:
    """A process and all its descendants."""
    parents = {int(stat.parent.name): status(int(stat.parent.name))[1] for stat in Path("/proc").glob("[0-9]*/stat")}
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def status(pid: int) -> tuple[str, int]:
    """A process's state letter and its parent; a process that has gone is `X`."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return fields[0], int(fields[1])


def is_alive(pid: int) -> bool:
    """Whether a process holds anything still: a zombie does not."""
    return status(pid)[0] not in "XZ"


def listening(pid: int) -> set[str]:
    """The TCP addresses on which a process listens."""
    sockets = {os.readlink(fd).removeprefix("socket:[").rstrip("]") for fd in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table, family_ in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[column] for column in (1, 3, 9))
            if state == "0A" and inode in sockets:
                host, port = local.split(":")
                words = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
                found.add(f"{socket.inet_ntop(family_, words)}:{int(port, 16)}")
    return found


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
