"""A cell in a process of its own, without Ray, to be killed: a gateway at the given address with two engines.

`python -m tests.examples.small_cell PORT FOLDER HOST` prints a line when it is ready, and serves until it is killed.
"""

import asyncio
import sys
from pathlib import Path

import uvloop

from deployments.cell.directory import Directory
from deployments.gateway.entrance import digest_of
from deployments.gateway.gateway import Gateway
from tests.deployments.gateway.fake_engine import FakeEngine
from tests.deployments.gateway.rig import SECRET, Handle, Rig, make_spec

KEY = "the key of all clients"


async def serve(port: int, folder: Path, host: str) -> None:
    tenants = [{"name": "clients", "keys": [digest_of(KEY)]}]
    spec = make_spec(port, {}, {}, tenants=tenants, host=host, allow_public=True)
    gateway, directory = Gateway(spec, spec.regions[0], SECRET, folder), Directory(SECRET)
    await gateway.start(Handle(directory))
    rig = Rig(gateway, directory, port, folder)
    for _ in range(2):
        await rig.add(FakeEngine())
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
