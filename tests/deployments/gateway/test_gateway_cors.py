"""Web pages of other origins: none may read anything where the spec says nothing; where it names some, they may, but
never operators' pages."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from cluster.spec import CorsSpec as Settings
from deployments.gateway.entrance import ACCESS, Access, CorsRules, digest_of
from tests.deployments.gateway.fake_engine import DONE, event, pieces
from tests.deployments.gateway.rig import ASK, CREDENTIALS, MakeRig, RawClient, Rig, make_spec

PAGE, OTHER = "https://chat.example.org", "https://evil.example.org"
KEY = "the-tenant's-key"
TENANTS = [{"name": "search", "keys": [digest_of(KEY)]}]
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


async def asked(
    rig: Rig, path: str, method: str, port: int = 0, body: Any = b"", **headers: str
) -> tuple[int, dict[str, str]]:
    client = await RawClient.connect(port or rig.port)
    await client.request(re.sub(r"{\w+:path}", "demo", path), body, method, **headers)
    status, answer = await client.answer_head()
    client.leave()
    return status, answer


def reported(headers: dict[str, str]) -> dict[str, str]:
    """What of an answer a browser goes by."""
    return {name: value for name, value in headers.items() if name.startswith("access-control-")}


async def test_nothing_is_allowed_where_the_spec_says_nothing(rig: Rig) -> None:
    for path in ACCESS:
        status, headers = await asked(rig, path, "OPTIONS", origin=PAGE, **PREFLIGHT)
        assert (status in (401, 404, 405), reported(headers), "vary" in headers) == (True, {}, False), path
    status, headers = await asked(rig, "/v1/completions", "POST", body=ASK, origin=PAGE)
    assert (status, reported(headers)) == (200, {})


@pytest.mark.parametrize("origins", [[PAGE], ["*"]])
async def test_a_preflight_opens_no_operators_page(make_rig: MakeRig, origins: list[str]) -> None:
    rig = await make_rig(cors={"origins": origins}, tenants=TENANTS)
    for port in (rig.port, rig.gateway._cell_server.port):
        for path, access in ACCESS.items():
            if access is Access.SECRET:
                for headers in ({}, CREDENTIALS):
                    status, answer = await asked(rig, path, "OPTIONS", port, origin=PAGE, **PREFLIGHT, **headers)
                    assert status in ((401, 404) if not headers else (404, 405, 409)), path
                    assert reported(answer) == {}
                status, answer = await asked(rig, path, "GET", port, origin=PAGE, **CREDENTIALS)
                assert reported(answer) == {}, "not even to a page that has the secret"


async def test_a_page_of_the_spec_may_ask(make_rig: MakeRig) -> None:
    rig = await make_rig(cors={"origins": [PAGE], "max_age_s": 60}, tenants=TENANTS)
    for path, access in ACCESS.items():
        if access in (Access.OPEN, Access.KEY):
            status, headers = await asked(rig, path, "OPTIONS", origin=PAGE, **PREFLIGHT)
            assert (status, headers["vary"]) == (204, "Origin")
            allowed = reported(headers)
            exposed = set(allowed.pop("access-control-expose-headers").split(", "))
            assert {"x-request-id", "x-raylane-placement", "x-raylane-simulated"} <= exposed
            assert allowed == {
                "access-control-allow-origin": PAGE,
                "access-control-allow-methods": "GET, POST",
                "access-control-allow-headers": PREFLIGHT["access-control-request-headers"],
                "access-control-max-age": "60",
            }
            status, headers = await asked(rig, path, "OPTIONS", origin=OTHER, **PREFLIGHT)
            assert (status, reported(headers)) in ((405, {}), (401, {})), path
    assert not rig.engines[0].seen, "a preflight asks for nothing"


async def test_answers_say_who_may_read_them(make_rig: MakeRig) -> None:
    rig = await make_rig(cors={"origins": [PAGE]}, tenants=TENANTS)
    rig.engines[0].behave = pieces(event("a"), DONE)
    given = {"authorization": f"Bearer {KEY}"}
    for method, path, body, headers in (
        ("POST", "/v1/completions", {**ASK, "stream": True}, given),
        ("POST", "/v1/completions", {**ASK, "model": "other"}, given),
        ("POST", "/v1/completions", ASK, {}),
        ("POST", "/v1/messages", ASK, given),
        ("GET", "/v1/models", b"", given),
        ("GET", "/v1/models", b"", {}),
        ("GET", "/ready", b"", {}),
    ):
        _, answer = await asked(rig, path, method, body=body, origin=PAGE, **headers)
        assert (answer["access-control-allow-origin"], answer["vary"]) == (PAGE, "Origin")
        for other in ({"origin": OTHER}, {"origin": PAGE + "."}, {"origin": "null"}, {}):
            _, answer = await asked(rig, path, method, body=body, **headers, **other)
            assert (reported(answer), answer["vary"]) == ({}, "Origin")


async def test_any_page_may_ask_where_keys_are_asked_for(make_rig: MakeRig) -> None:
    rig = await make_rig(cors={"origins": ["*"]}, tenants=TENANTS)
    status, headers = await asked(rig, "/v1/completions", "POST", body=ASK, origin=OTHER)
    assert (status, headers["access-control-allow-origin"], "vary" in headers) == (401, "*", False)
    assert (await asked(rig, "/v1/completions", "OPTIONS", origin=OTHER, **PREFLIGHT))[0] == 204
    assert "access-control-allow-credentials" not in headers
    with pytest.raises(ValidationError, match=r"gateway.cors.origins = '\*': allowed only with tenants"):
        make_spec(8_000, {}, {}, cors={"origins": ["*"]})


@pytest.mark.parametrize(
    "origin",
    ["chat.example.org", "https://chat.example.org/", "https://Chat.example.org", "null", "", "https://*.example.org"],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError):
        Settings(origins=(origin,))


@pytest.mark.parametrize("names", ["a\r\nset-cookie: x", "a" * 3_000, "a;b", "a,,b"])
def test_names_that_are_none_are_not_repeated(names: str) -> None:
    rules = CorsRules(Settings(origins=(PAGE,)))
    asking = {
        b"origin": PAGE.encode(),
        b"access-control-request-method": b"GET",
        b"access-control-request-headers": names.encode(),
    }
    answer = rules.preflight(asking)
    assert answer is not None
    assert b"access-control-allow-headers" not in dict(answer)
