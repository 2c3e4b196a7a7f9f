"""The whole gateway, served by its real HTTP server, in front of fake engines; and clients of all manners."""

import asyncio
import io
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from cluster.spec import ClusterSpec
from deployments.cell.directory import Directory
from deployments.gateway.gateway import Gateway
from deployments.ownership.dispatcher import Dispatcher
from deployments.ownership.lane_owner import LaneOwner
from deployments.telemetry.ledger import Ledger
from tests.deployments.gateway.fake_engine import FakeEngine

SECRET = "the-secret"
EXTERNAL_KEY = "the-external-key"
PATIENCE_S = 20.0
ASK = {"model": "demo", "prompt": "one two three", "max_tokens": 3}
STREAM = {**ASK, "stream": True}
CREDENTIALS = {"authorization": f"Bearer {SECRET}"}
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 3}


class Handle:
    """A directory without Ray: its methods are called as an actor's are."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._directory, name)

        class Remote:
            @staticmethod
            def remote(*arguments: Any) -> Any:
                return method(*arguments)

        return Remote


class Rig:
    """A running gateway with its engines, and the ledgers that it closed."""

    def __init__(self, gateway: Gateway, directory: Directory, port: int, run_dir: Path) -> None:
        self.gateway = gateway
        self.service = gateway.service
        self.directory = directory
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.run_dir = run_dir
        self.engines: list[FakeEngine] = []
        self.closed: list[Ledger] = []
        self.clients: list[RawClient] = []
        gateway._closed._work = (*gateway._closed._work, self.closed.append)

    async def add(self, engine: FakeEngine) -> FakeEngine:
        """Starts an engine, and waits until the gateway has it."""
        await engine.start()
        self.engines.append(engine)
        await self.directory.register(engine.facts)
        await until(lambda: self.uses(engine))
        return engine

    def uses(self, engine: FakeEngine) -> bool:
        """Whether requests may be placed on that engine, by this gateway or by the one that it follows."""
        dispatcher = self.service.dispatchers[engine.facts.model]
        known = dispatcher.own is None or engine.facts.replica_id in dispatcher.own.scheduler.fleet.by_id
        return dispatcher.owner is not None and known and dispatcher.replicas.is_ready(engine.facts.replica_id)

    @asynccontextmanager
    async def post(self, path: str, body: Any, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """Posts JSON (bytes go as they are), on a connection of its own."""
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with aiohttp.ClientSession() as session, session.post(self.url + path, data=data, **options) as response:
            yield response

    async def ask(self, body: Any = None, path: str = "/v1/completions", **options: Any) -> tuple[int, bytes]:
        """Posts, and reads the whole answer."""
        return (await self.answered(body, path, **options))[:2]

    async def answered(self, body: Any = None, path: str = "/v1/completions", **options: Any) -> tuple[int, bytes, Any]:
        """The same, with the answer's headers."""
        async with self.post(path, ASK if body is None else body, **options) as response:
            return response.status, await response.read(), response.headers

    async def error(
        self, body: Any = None, path: str = "/v1/completions", **options: Any
    ) -> tuple[int, dict[str, Any]]:
        """The error that a request gets, which must be in OpenAI's form."""
        status, payload = await self.ask(body, path, **options)
        return status, openai_error(payload)

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """The status of an own page, and what it says to an operator (or to whom the headers name): JSON or text."""
        named = {**CREDENTIALS, **headers}
        async with aiohttp.ClientSession(headers=named) as session, session.get(self.url + path) as response:
            assert response.headers["x-request-id"]
            payload = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(payload) if is_json else payload.decode()

    async def page(self, path: str) -> Any:
        """What an own page says to an operator."""
        return (await self.get(path))[1]

    async def samples(self, name: str) -> dict[str, float]:
        """The samples of one metric, by their labels as they are written."""
        lines = [line for line in (await self.page("/metrics")).splitlines() if line.startswith(name + "{")]
        return {line[len(name) : line.rindex(" ")]: float(line.rsplit(" ", 1)[1]) for line in lines}

    async def connect(self, body: Any = None, path: str = "/v1/completions", small: bool = False) -> "RawClient":
        client = await RawClient.connect(self.port, small)
        self.clients.append(client)
        if body is not None:
            await client.request(path, body)
        return client

    async def stop(self) -> None:
        for client in self.clients:
            client.leave()
        await self.gateway.stop()
        for engine in self.engines:
            await engine.kill()

    @property
    def dispatcher(self) -> Dispatcher:
        return next(iter(self.service.dispatchers.values()))

    @property
    def owner(self) -> LaneOwner:
        own = self.dispatcher.own
        assert own is not None
        return own

    async def last(self, count: int = 1) -> Ledger:
        """The last closed ledger, once `count` are closed."""
        await until(lambda: len(self.closed) >= count)
        return self.closed[-1]

    async def settled(self) -> None:
        """Waits until nothing is left of any request, then checks that the books balance."""
        service = self.service
        await until(lambda: not len(service.flows) and not len(service.closing) and not len(self.gateway._closed))
        for dispatcher in service.dispatchers.values():
            assert not len(dispatcher)
            if (own := dispatcher.own) is None or (snapshot := dispatcher.snapshot()) is None:
                continue
            assert not [*own.records]
            assert sum(lane.waiting for lane in snapshot.lanes) == 0
            assert sum(lane.work_tokens for lane in snapshot.lanes) == 0
            assert all(
                replica.leases == replica.sequences == replica.kv_tokens == replica.prefill_tokens == 0
                for replica in snapshot.replicas
            ), snapshot
            assert snapshot.placed + snapshot.adopted == sum(snapshot.endings.values())
        for ledger in self.closed:
            assert ledger.unaccounted_s > -max(0.002, 0.01 * ledger.wall_s), f"counted twice: {ledger}"
            # A process that waits for a core between two readings of the clock is no stage that was left out.
            assert ledger.unaccounted_s < max(0.1, 0.01 * ledger.wall_s), f"no stage explains it: {ledger}"
            assert all(seconds >= -1e-6 for seconds in ledger.stages().values()), ledger
        assert not service.closing._ended


MakeRig = Callable[..., Awaitable[Rig]]


class RawClient:
    """A client at the level of sockets. `small`: with the smallest receive buffer, so that little is on its way when it
    does not read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, small: bool = False) -> "RawClient":
        sock = socket.socket()
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=sock, limit=2_048))

    async def request(self, path: str, body: Any, method: str = "POST", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.writer.write(head(method, path, len(data), **headers) + data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Reads one answer, by its content-length or chunks."""
        status, headers = await self.answer_head()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        else:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, body

    async def answer_head(self) -> tuple[int, dict[str, str]]:
        lines = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)).decode("latin-1").split("\r\n")
        return int(lines[0].split()[1]), dict(line.split(": ", 1) for line in lines[1:] if line)

    def leave(self) -> None:
        """Breaks the connection."""
        self.writer.transport.abort()

    async def is_cut(self) -> bool:
        """Whether the other side has ended the connection (reads to the end)."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while await self.reader.read(65_536):
                    pass
        except ConnectionError:
            pass
        finally:
            self.leave()
        return True


def head(method: str, path: str, length: int, **headers: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: gateway",
        f"content-length: {length}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def openai_error(payload: bytes) -> dict[str, Any]:
    """The error object in a body, whose form is checked."""
    error = json.loads(payload)["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert all(isinstance(error[key], str) and error[key] for key in ("message", "type", "code")), error
    return dict(error)


async def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


def make_spec(
    port: int,
    timeouts: dict[str, float],
    limits: dict[str, int],
    models: list[dict[str, Any]] | None = None,
    tenants: list[dict[str, Any]] | None = None,
    classes: list[dict[str, Any]] | None = None,
    prefix_sharing: str = "tenant",
    tracing: dict[str, Any] | None = None,
    ladder: list[dict[str, Any]] | None = None,
    external: dict[str, Any] | None = None,
    **gateway: Any,
) -> ClusterSpec:
    settings = {"max_model_len": 1_024}
    return ClusterSpec.model_validate(
        {
            "name": "test",
            "regions": [{"name": "here", "pools": [{"name": "cpu"}]}],
            "models": models or [{"name": "demo", "source": "/nowhere", "settings": settings}],
            "tenants": tenants or [],
            "prefix_sharing": prefix_sharing,
            "tracing": tracing,
            "ladder": ladder or [],
            "external": external,
            **({"classes": classes} if classes else {}),
            "gateway": {"port": port, "timeouts": timeouts, "limits": limits, "drain_s": 1.0, **gateway},
        }
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
