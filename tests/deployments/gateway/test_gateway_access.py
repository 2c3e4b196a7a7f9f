"""Who may ask for what: every path of both ports against the closed table, from loopback, which counts for nothing."""

import asyncio
import json
import re
from typing import Any

import pytest
from starlette.routing import Route

from deployments.gateway.entrance import ACCESS, Access, ClientApp, CorsRules, Operators, behind_doors, digest_of
from deployments.gateway.peers.pages import OWN_USAGE_PATH, OWNER_DIGEST_PATH
from deployments.http.server import HttpServer
from deployments.openai.endpoints import ENDPOINTS
from tests.deployments.gateway.rig import ASK, CREDENTIALS, SECRET, MakeRig, RawClient, Rig, openai_error

KEY = "the-tenant's-key"
OF_OPERATORS = (Access.SECRET, Access.VIEW)
TENANTS = [{"name": "search", "keys": [digest_of(KEY)], "classes": ["interactive"]}]
GIVEN: dict[str, dict[str, str]] = {
    "nothing": {},
    "a proxy's word": {
        "x-forwarded-for": "127.0.0.1",
        "x-forwarded-proto": "http",
        "forwarded": "for=127.0.0.1",
        "x-real-ip": "127.0.0.1",
    },
    "a wrong secret": {"authorization": "Bearer wrong"},
    "an empty secret": {"authorization": "Bearer "},
    "no secret at all": {"authorization": ""},
    "the secret alone": {"authorization": SECRET},
    "the secret as a password": {"authorization": f"Basic {SECRET}"},
    "more than the secret": {"authorization": f"Bearer {SECRET}x"},
    "a part of the secret": {"authorization": f"Bearer {SECRET[:-1]}"},
    "no text": {"authorization": "Bearer \xfc"},
}


def paths(server: HttpServer) -> list[str]:
    app: Any = server._server.config.app
    relayed, pages = (app.relayed, app.pages) if isinstance(app, ClientApp) else ((), app)
    return [*relayed, *(route.path for route in pages.routes if isinstance(route, Route))]


def servers(rig: Rig) -> dict[int, HttpServer]:
    return {rig.port: rig.gateway._server, rig.gateway._cell_server.port: rig.gateway._cell_server}


async def status_of(port: int, path: str, method: str, headers: dict[str, str]) -> tuple[int, bytes]:
    client = await RawClient.connect(port)
    await client.request(
        re.sub(r"{\w+:path}", "demo", path), json.dumps(ASK).encode() if method == "POST" else b"", method, **headers
    )
    status, _, body = await client.answer()
    client.leave()
    return status, body


@pytest.mark.whole
async def test_every_path_asks_for_what_the_table_says(make_rig: MakeRig, subtests: pytest.Subtests) -> None:
    rig = await make_rig(tenants=TENANTS)
    methods = ("GET", "POST", "PUT", "DELETE")
    for port, server in servers(rig).items():
        for path in paths(server):
            access = ACCESS[path]
            for name, headers in GIVEN.items():
                with subtests.test(path=path, cell=port != rig.port, given=name):
                    answers = await asyncio.gather(*(status_of(port, path, method, headers) for method in methods))
                    if access in OF_OPERATORS:
                        assert [status for status, _ in answers] == [401] * len(methods)
                        assert all(openai_error(body)["code"] == "unauthorized" for _, body in answers)
                    elif access is Access.PAGE:
                        assert {status for status, _ in answers} <= {403, 405}, "the host `gateway` is not its own"
                    elif access is Access.OPEN:
                        assert answers[0][0] == 200
                    else:
                        assert all(status in (401, 405) for status, _ in answers)
                        assert 401 in [status for status, _ in answers]
    assert not rig.engines[0].seen


@pytest.mark.whole
async def test_with_what_it_asks_for_each_opens(make_rig: MakeRig, subtests: pytest.Subtests) -> None:
    rig = await make_rig(tenants=TENANTS)
    given: dict[Access, dict[str, str]] = {
        Access.OPEN: {},
        Access.KEY: {"authorization": f"Bearer {KEY}"},
        Access.SECRET: CREDENTIALS,
        Access.VIEW: CREDENTIALS,
        Access.PAGE: {},
    }
    for port, server in servers(rig).items():
        for path in paths(server):
            with subtests.test(path=path, cell=port != rig.port):
                for method in ("GET", "POST", "PUT"):
                    assert (await status_of(port, path, method, given[ACCESS[path]]))[0] != 401


async def test_a_tenant_key_opens_nothing_of_operators(make_rig: MakeRig) -> None:
    rig = await make_rig(tenants=TENANTS)
    for port, server in servers(rig).items():
        for path in paths(server):
            if ACCESS[path] in OF_OPERATORS:
                assert (await status_of(port, path, "GET", {"authorization": f"Bearer {KEY}"}))[0] == 401


async def test_the_table_and_the_routes_are_the_same(rig: Rig) -> None:
    served = {path for server in servers(rig).values() for path in paths(server)}
    between_cells = {path for path, access in ACCESS.items() if access is Access.PEER}
    between_cells |= {OWNER_DIGEST_PATH, OWN_USAGE_PATH}
    assert served == set(ACCESS) - between_cells, "a cell without peers has none of their pages"
    assert {path for path, access in ACCESS.items() if access is Access.OPEN} == {"/health", "/ready", "/ping"}
    assert {endpoint.path for endpoint in ENDPOINTS} < {path for path, access in ACCESS.items() if access is Access.KEY}


def test_a_path_that_is_not_in_the_table_cannot_be_served() -> None:
    async def page(*_: Any) -> None: ...

    operators = Operators(SECRET, None)
    with pytest.raises(KeyError, match="/raylane/new"):
        behind_doors([Route("/raylane/new", page)], operators, page, lambda: CorsRules(None))
    with pytest.raises(TypeError, match="/raylane/peers/hop: needed: a page behind a PeerDoor"):
        behind_doors([Route("/raylane/peers/hop", page)], operators, page, lambda: CorsRules(None))


async def test_a_peer_on_loopback_does_not_choose_its_address(rig: Rig) -> None:
    """uvicorn would take `x-forwarded-for` from it."""
    seen: list[Any] = []
    config = rig.gateway._server._server.config
    app = config.loaded_app

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], scope["scheme"]))
        await app(scope, receive, send)

    config.loaded_app = noting
    await status_of(rig.port, "/health", "GET", {"x-forwarded-for": "10.1.2.3", "x-forwarded-proto": "https"})
    assert seen == [("127.0.0.1", "http")]
