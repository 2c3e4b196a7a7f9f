"""The operators' page: what its files say to browsers, how a session begins and ends, and who is sent away."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from starlette.requests import Request

from deployments.gateway.entrance import ACCESS, CODE_S, SESSION_S, Access, Operators
from deployments.gateway.operators import page
from tests.deployments.gateway.rig import CREDENTIALS, SECRET, MakeRig, Rig

FOLDER = Path(page.__file__).parent / "page"
FILES = ("", "page/page.js", "page/page.css", "page/uplot/uPlot.iife.min.js", "page/uplot/uPlot.min.css")


async def asked(
    rig: Rig, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, Mapping[str, str], str]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{rig.url}/raylane/{path}", data=body, headers=given) as answer,
    ):
        return answer.status, answer.headers, await answer.text()


async def new_code(rig: Rig) -> str:
    status, _, text = await asked(rig, "codes", "POST", **CREDENTIALS)
    assert status == 200
    (code,) = re.findall(r'"code":"([\w.-]+)"', text)
    return str(code)


async def entered(rig: Rig) -> tuple[str, str]:
    """A session's cookie, as a browser sends it, and its attributes."""
    status, headers, _ = await asked(rig, "session", "POST", await new_code(rig), origin=rig.url)
    assert status == 204
    cookie, _, attributes = headers["set-cookie"].partition("; ")
    return cookie, attributes


async def test_the_files_are_open_run_no_inline_script_and_show_in_no_frame(rig: Rig) -> None:
    for path in FILES:
        status, headers, _ = await asked(rig, path)
        assert status == 200, path
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("page/../page.py", "page/%2e%2e/page.py", "page/README.md", "page//etc/passwd"):
        assert (await asked(rig, path))[0] == 404, path


def test_the_page_has_no_inline_script_style_or_handler_and_asks_no_other_host() -> None:
    html, script = (FOLDER / "index.html").read_text(), (FOLDER / "page.js").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|//[a-z]", html)
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", script)


def test_uplot_is_the_stated_release() -> None:
    uplot = FOLDER / "uplot"
    stated = dict(reversed(line) for line in re.findall(r"([0-9a-f]{64})  (\S+)", (uplot / "README.md").read_text()))
    found = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in uplot.iterdir()}
    assert stated == {name: digest for name, digest in found.items() if name != "README.md"}
    assert "1.6.32" in (uplot / "uPlot.iife.min.js").read_text()[:80]


async def test_a_code_opens_one_session(rig: Rig) -> None:
    code = await new_code(rig)
    assert (await asked(rig, "session", "POST", code, origin=rig.url))[0] == 204
    for wrong in (code, "", "x" * 43, "%00/../"):
        assert (await asked(rig, "session", "POST", wrong, origin=rig.url))[0] == 401, wrong
    assert (await asked(rig, "session", "POST", "x" * 10_000, origin=rig.url))[0] == 413
    assert (await asked(rig, "codes", "POST"))[0] == 401


async def test_a_session_reads_the_page_s_api_and_nothing_else(rig: Rig, subtests: pytest.Subtests) -> None:
    cookie, attributes = await entered(rig)
    assert set(attributes.split("; ")) == {"HttpOnly", "SameSite=strict", f"Max-Age={SESSION_S}"}
    for path, access in ACCESS.items():
        if access not in (Access.SECRET, Access.VIEW) or not path.startswith("/raylane/"):
            continue
        name = re.sub(r"{\w+:path}", "demo", path.removeprefix("/raylane/"))
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
            with subtests.test(path=path, method=method):
                status = (await asked(rig, name, method, cookie=cookie))[0]
                if access is Access.VIEW and method == "GET":
                    assert status in (200, 404), "404: no such request"
                else:
                    assert status in (401, 404), "404: only at the port for the cell, or in cells with peers"
    assert (await asked(rig, "status", cookie=cookie))[0] == 200


async def test_neither_another_host_nor_another_origin_gets_in(rig: Rig) -> None:
    cookie, _ = await entered(rig)
    elsewhere = {"host": f"evil.example:{rig.port}"}
    foreign = [{"origin": f"http://evil.example:{rig.port}"}, {"origin": "null"}, {"origin": "http://127.0.0.1:1"}]
    for path in FILES:
        assert (await asked(rig, path, **elsewhere))[0] == 403
    for headers in ({**elsewhere, "origin": f"http://evil.example:{rig.port}"}, *foreign):
        code = await new_code(rig)
        assert (await asked(rig, "session", "POST", code, **headers))[0] == 403
        assert (await asked(rig, "session", "POST", code, origin=rig.url))[0] == 204, "and the code is not spent"
    sites = [{"sec_fetch_site": site} for site in ("cross-site", "same-site", "none")]
    for headers in (elsewhere, *foreign, *sites):
        assert (await asked(rig, "status", cookie=cookie, **headers))[0] == 401, headers
    for host in (f"localhost:{rig.port}", f"[::1]:{rig.port}", f"10.1.2.3:{rig.port}"):
        headers = {"origin": f"http://{host}", "sec_fetch_site": "same-origin"}
        assert (await asked(rig, "status", cookie=cookie, host=host, **headers))[0] == 200, host


async def test_pages_of_origins_that_may_call_the_api_read_nothing_of_operators(make_rig: MakeRig) -> None:
    rig = await make_rig(cors={"origins": ["http://evil.example"]})
    cookie, _ = await entered(rig)
    for path in ("status", "", "session"):
        _, headers, _ = await asked(rig, path, cookie=cookie, origin="http://evil.example")
        assert "access-control-allow-origin" not in headers


async def test_behind_a_proxy_with_tls_the_cookie_is_secure(rig: Rig) -> None:
    origin = f"https://127.0.0.1:{rig.port}"
    _, headers, _ = await asked(rig, "session", "POST", await new_code(rig), origin=origin)
    assert "; Secure" in headers["set-cookie"]


def made(operators: Operators, cookie: str, method: str = "GET") -> bool:
    headers = [(b"host", b"cell.example"), (b"cookie", f"{operators.cookie_name}={cookie}".encode())]
    scope = {"type": "http", "method": method, "path": "/raylane/status", "query_string": b"", "headers": headers}
    return operators.view(Request(scope), 1_000.0)


def test_codes_and_cookies_end_and_are_those_of_one_cell() -> None:
    operators, other = (Operators(secret, "https://cell.example") for secret in (SECRET, "another secret"))
    code, late = operators.new_code(10.0), operators.new_code(10.0)
    assert not operators.spend(late, 10.0 + CODE_S)
    assert operators.spend(code, 9.0 + CODE_S)
    assert not operators.spend(code, 9.0 + CODE_S)
    cookie = operators.new_cookie(999.0)
    assert made(operators, cookie)
    assert not made(operators, operators.new_cookie(1_000.0 - SESSION_S))
    assert not made(other, cookie)
    assert not made(Operators(SECRET, None), cookie), "cell.example is not its endpoint"
    until_s, _, signature = cookie.partition(".")
    for forged in ("", ".", until_s, f"{int(until_s) + 1}.{signature}", f"{until_s}.{signature}0", f"{until_s}.é"):
        assert not made(operators, forged), forged
    assert operators.cookie_name != other.cookie_name, "two cells of a host, whose cookies go to both ports"
    assert operators.have_made(late)
    assert not made(operators, late), "a code is no cookie"
    assert not operators.have_made(cookie)
    assert not other.have_made(late)
    assert not operators.have_made(f"{late}0")


async def test_a_code_is_in_no_log_and_what_is_none_asks_no_other_gateway(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig, other = await make_rig(), await make_rig(engines=0)
    monkeypatch.setattr(rig.gateway.others, "reported", lambda _: None)
    monkeypatch.setattr(rig.gateway.others, "urls", {"gone": "http://127.0.0.1:9"})
    code = await new_code(other)
    with caplog.at_level("DEBUG"):
        assert (await asked(rig, "session", "POST", "x" * 43, origin=rig.url))[0] == 401
        assert "did not answer" not in caplog.text
        assert (await asked(rig, "session", "POST", code, origin=rig.url))[0] == 401
    assert "http://127.0.0.1:9/raylane/codes did not answer" in caplog.text
    assert code not in caplog.text


async def test_a_code_counts_once_at_whichever_gateway_a_browser_brings_it_to(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await make_rig()
    other = await make_rig(engines=0)
    for one, others in ((rig, other), (other, rig)):
        monkeypatch.setattr(one.gateway.others, "reported", lambda _: None)
        monkeypatch.setattr(one.gateway.others, "urls", {"other": others.gateway.others.own_url})
    code = await new_code(rig)
    assert (await asked(other, "session", "POST", code, origin=other.url))[0] == 204
    assert (await asked(rig, "session", "POST", code, origin=rig.url))[0] == 401
    cookie, _ = await entered(rig)
    assert (await asked(other, "status", cookie=cookie))[0] == 200
