"""A pytest plugin for vLLM's own tests: the class that starts `vllm serve` for them starts the side under test instead.
All else is vLLM's.

One model (`model.py`) stands for every model, under the name that the test asks for; so that its tokenizer is found by
that name, the tests run in a folder where the name leads to the model. Adapters that would be downloaded are one that
changes nothing. `__main__.py` runs pytest with this.
"""

import asyncio
import inspect
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from benchmarks.conformance.served import command_of, environment_of, spec_of
from benchmarks.harness import ROOT
from benchmarks.server_process import ServerProcess, become_subreaper, heed_interrupts
from cli.private_cell import free_port
from cluster.spec import ClusterSpec, parse_spec
from tests import utils  # type: ignore[attr-defined]  # vLLM's, which comes first in the path

SIDE = os.environ["CONFORMANCE_SIDE"]
FOLDER = Path(os.environ["CONFORMANCE_FOLDER"])
MODEL = Path(os.environ["CONFORMANCE_MODEL"])
ADAPTER = Path(os.environ["CONFORMANCE_ADAPTER"])
SEED = int(os.environ.get("CONFORMANCE_SEED", "0"))
_READY = {"raylane": "/ready?model=*", "bare": "/health"}


class Sides:
    """The server that is up. The next test of the same needs gets the same one."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)  # whoever asks may have an event loop of its own
        self._needs: str | None = None
        self._server: ServerProcess | None = None
        self._started = 0
        self.port = 0

    def need(self, model: str, flags: Sequence[str], environment: dict[str, str]) -> int:
        """The port of a server with these flags; one that was started from another spec is ended before."""
        spec = spec_of(model, MODEL, flags, environment.get("VLLM_API_KEY"), SEED)
        needs = json.dumps([spec, environment])
        if needs != self._needs:
            self.end()
            self._start(spec, environment)
            self._needs = needs
        return self.port

    def end(self) -> None:
        """Ends the server that is up, if one is."""
        if self._server is not None:
            self._thread.submit(asyncio.run, self._server.stop()).result()
        self._server = self._needs = None

    def _start(self, served: dict[str, Any], environment: dict[str, str]) -> None:
        self._started += 1
        folder = FOLDER / f"{SIDE}-{self._started}"
        folder.mkdir()
        self.port = free_port()
        served["gateway"]["port"] = self.port
        text = yaml.safe_dump(served, sort_keys=False)
        (folder / "spec.yaml").write_text(text, encoding="utf-8")
        spec: ClusterSpec = parse_spec(text)
        command = command_of(SIDE, spec, folder / "spec.yaml")
        server = ServerProcess(
            command, environment_of(SIDE, spec, folder, ROOT, environment), self._is_ready, folder / "log"
        )
        self._server = server
        self._thread.submit(asyncio.run, server.start()).result()

    async def _is_ready(self) -> bool:
        return await asyncio.to_thread(self._answers)

    def _answers(self) -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"http://127.0.0.1:{self.port}{_READY[SIDE]}", timeout=5).status_code == 200
        return False


heed_interrupts()  # here in the main thread: servers are started by another one
sides = Sides()


class StandIn(utils.RemoteOpenAIServer):  # type: ignore[misc]
    """The server that a fixture makes: its address is that of the side under test."""

    def __init__(
        self, model: str, vllm_serve_args: list[str], *, env_dict: dict[str, str] | None = None, **_: Any
    ) -> None:
        flags = list(vllm_serve_args)
        if "--port" in flags:  # the test chose one
            at = flags.index("--port")
            del flags[at : at + 2]
        (FOLDER / "names" / model).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (FOLDER / "names" / model).symlink_to(MODEL)
        self.host, self.uds, self.port = "127.0.0.1", None, sides.need(model, flags, env_dict or {})

    def __exit__(self, *_: object) -> None:
        """The server stays for the next test that needs the same."""


utils.RemoteOpenAIServer = StandIn


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that ask for no server: they are of vLLM's parts."""
    kept = [item for item in items if _needs_a_server(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def _no_hub() -> Iterator[None]:
    """Adapters are made here instead of downloaded; and at the end no server is left."""
    from vllm.transformers_utils import repo_utils

    become_subreaper()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(repo_utils.hf_api()), "snapshot_download", lambda *_, **__: str(ADAPTER))
        yield
    sides.end()


def _needs_a_server(item: pytest.Item) -> bool:
    fixtures = getattr(item, "_fixtureinfo", None)
    functions = [one.func for found in fixtures.name2fixturedefs.values() for one in found] if fixtures else []
    return any(
        "RemoteOpenAIServer(" in inspect.getsource(function)
        for function in [*functions, getattr(item, "function", _needs_a_server)]
    )
