"""A gateway and a simulated engine, each in a process of its own, without Ray: as the whole product has them, and quick
to start.

The gateway notes what each request cost its loop's thread. The engine's steps take 5 ms whatever they hold, and it has
room for all, so that a long prompt slows no stream down and what gaps a stream has come from the work around the
engine.
"""

import asyncio
import ctypes
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import uvloop

from cluster.spec import ClusterSpec
from deployments.cell.directory import REGISTER_EVERY_S, Directory
from deployments.engine.replica import Identity, ReplicaServer
from deployments.engine.simulated.backend import start_simulated
from deployments.engine_model.cost_file import cost_file, write_cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from deployments.garbage import calm_garbage_collector
from deployments.gateway.entrance import digest_of
from deployments.gateway.gateway import Gateway
from deployments.telemetry.ledger import Ledger

MODEL = "hostile-simulated"
KEY = "the-key"
STEP_S = 0.005
CONTEXT = 262_144
_SECRET = "the-secret"
_LIMITS = EngineModelLimits(sequences=512, step_tokens=CONTEXT, kv_tokens=2 * CONTEXT)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of one request: of all that the gateway's loop thread did from its head to its end; and of reading
    the body, in any thread."""

    loop_s: float
    read_s: float
    status: int


class Stack:
    """Both processes. `url` is the gateway's."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        costs = folder / "costs.json"
        cost = CostModel(line(STEP_S, 0.0), line(0.0, 0.0), plain_attention(0.0, 0.0))
        write_cost_file(costs, cost_file(MODEL, "nothing", "roofline", _LIMITS, cost))
        spec = _spec(costs, port).model_dump_json()
        context = multiprocessing.get_context("spawn")
        self._engine_pipe, engine_end = context.Pipe()
        self._engine = context.Process(target=_run, args=(_engine, spec, engine_end, str(folder)), daemon=True)
        self._engine.start()
        facts = self._engine_pipe.recv()
        self._gateway_pipe, gateway_end = context.Pipe()
        self._gateway = context.Process(
            target=_run, args=(_gateway, spec, gateway_end, str(folder), facts), daemon=True
        )
        self._gateway.start()
        assert self._gateway_pipe.recv() == "ready"

    def costs(self) -> dict[str, Cost]:
        """What the requests since the last call cost, by their ids; garbage is collected then, and free memory given
        back."""
        self._gateway_pipe.send("costs")
        costs: dict[str, Cost] = self._gateway_pipe.recv()
        return costs

    def memory_mib(self) -> float:
        """The gateway's own memory (USS)."""
        return float(psutil.Process(self._gateway.pid).memory_full_info().uss) / 2**20

    def peak_mib(self) -> float:
        """The most resident memory that the gateway ever had."""
        lines = Path(f"/proc/{self._gateway.pid}/status").read_text().splitlines()
        return next(int(text.split()[1]) for text in lines if text.startswith("VmHWM")) / 2**10

    def stop(self) -> None:
        """Ends both."""
        for process in (self._gateway, self._engine):
            process.terminate()
            process.join(10)


def _spec(costs: Path, port: int) -> ClusterSpec:
    settings = {
        "max_model_len": CONTEXT,
        "max_num_seqs": _LIMITS.sequences,
        "max_num_batched_tokens": _LIMITS.step_tokens,
    }
    simulated = {"costs": str(costs)}
    return ClusterSpec.model_validate(
        {
            "name": "hostile",
            "regions": [{"name": "here", "pools": [{"name": "cpu"}]}],
            "models": [
                {"name": MODEL, "source": "org/m", "engine": "simulated", "simulated": simulated, "settings": settings}
            ],
            "tenants": [{"name": "one", "keys": [digest_of(KEY)]}],
            "gateway": {"port": port, "access_log": False},
        }
    )


def _run(serve: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(*arguments))


async def _engine(spec_json: str, pipe: Connection, folder: str) -> None:
    model = ClusterSpec.model_validate_json(spec_json).models[0]
    replica = ReplicaServer(model, Identity("engine", "node", "127.0.0.1"), _SECRET, start_simulated)
    await replica.start()
    pipe.send(replica.facts)
    await asyncio.Event().wait()


async def _gateway(spec_json: str, pipe: Connection, folder: str, facts: Any) -> None:
    spec = ClusterSpec.model_validate_json(spec_json)
    gateway = Gateway(spec, spec.regions[0], _SECRET, Path(folder))
    costs: dict[str, Cost] = {}
    _note_costs(gateway, costs)
    directory = Directory(_SECRET)
    await gateway.start(_Handle(directory))
    await directory.register(facts)
    dispatchers = gateway.service.dispatchers
    while not any(True for one in dispatchers.values() for _ in one.replicas.ready_in_turn()):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    calm_garbage_collector()
    pipe.send("ready")
    asyncio.get_running_loop().add_reader(pipe.fileno(), _tell, pipe, costs)
    while True:  # as a replica does, which the directory would give up else
        await directory.register(facts)
        await asyncio.sleep(REGISTER_EVERY_S)


def _tell(pipe: Connection, costs: dict[str, Cost]) -> None:
    try:
        pipe.recv()
    except EOFError:
        os._exit(0)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps for later is no leak
    os.set_blocking(pipe.fileno(), True)  # uvloop made it so that a long message is not written whole
    pipe.send(costs)
    costs.clear()


def _note_costs(gateway: Gateway, costs: dict[str, Cost]) -> None:
    """Measures around the service's `handle`."""
    service = gateway.service
    handle, closed = service.handle, service._on_closed
    loop_s: dict[str, float] = {}

    async def measured(endpoint: Any, scope: Any, receive: Any, send: Any) -> None:
        began = time.thread_time()
        name = dict(scope["headers"]).get(b"x-request-id", b"").decode()
        await handle(endpoint, scope, receive, send)
        took_s = time.thread_time() - began
        if name in costs:  # a request that reached no engine has closed already
            costs[name] = replace(costs[name], loop_s=took_s)
        else:
            loop_s[name] = took_s

    def note(ledger: Ledger) -> None:
        costs[ledger.request_id] = Cost(loop_s.pop(ledger.request_id, 0.0), ledger.read_s, ledger.status)
        closed(ledger)

    service.handle = measured  # type: ignore[method-assign]
    service._on_closed = note


class _Handle:
    """A directory without Ray: its methods are called as an actor's are."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> Any:
        return _Remote(getattr(self._directory, name))


@dataclass(frozen=True, slots=True)
class _Remote:
    remote: Any
