"""The gateway speaks TLS where the spec names a certificate: the same answers, ends and refusals as without it."""

import asyncio
import json
import socket
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
from starlette.responses import PlainTextResponse

from cluster.spec import GatewayTls
from deployments.http.server import HttpServer
from tests.deployments.gateway.rig import CHAT, CREDENTIALS, MakeRig, Rig


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GatewayTls:
    """A certificate for 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=gateway", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return GatewayTls(cert=str(cert), key=str(key))


@pytest.fixture
async def rig(make_rig: MakeRig, files: GatewayTls) -> Rig:
    limits, timeouts = {"max_body_bytes": 4_096}, {"client_stall_s": 1.0}
    rig = await make_rig(timeouts=timeouts, limits=limits, tls=files.model_dump())
    rig.url = f"https://127.0.0.1:{rig.port}"
    return rig


def trusting(files: GatewayTls) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files.cert)


async def test_requests_are_answered_over_tls(rig: Rig, files: GatewayTls) -> None:
    status, body = await rig.ask(ssl=trusting(files))
    assert (status, "choices" in json.loads(body)) == (200, True)
    status, body = await rig.ask({**CHAT, "stream": True}, "/v1/chat/completions", ssl=trusting(files))
    assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
    assert rig.gateway.url == rig.url


async def test_who_does_not_trust_the_certificate_sends_nothing(rig: Rig) -> None:
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await rig.ask()
    assert rig.closed == []


async def test_a_client_without_tls_gets_no_answer_and_harms_no_other(rig: Rig, files: GatewayTls) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"HTTP" not in await reader.read()
    writer.close()
    assert (await rig.ask(ssl=trusting(files)))[0] == 200


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_client_that_only_connects_does_not_hold_up_a_server_that_leaves(
    files: GatewayTls, leaves: bool
) -> None:
    server = HttpServer(PlainTextResponse("hello"), "127.0.0.1", 0, 5, tls=(files.cert, files.key))
    await server.start()
    idle, good = (socket.create_connection(("127.0.0.1", server.port)) for _ in range(2))
    if leaves:
        idle.close()

    def talk() -> bytes:
        good.settimeout(5)
        with trusting(files).wrap_socket(good, server_hostname="127.0.0.1") as secure:
            secure.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return b"".join(iter(lambda: secure.recv(4_096), b""))

    talking = asyncio.get_running_loop().run_in_executor(None, talk)
    await server.stop_accepting()  # at once: the loop has had no turn to accept them
    assert (await talking).endswith(b"hello")
    idle.close()
    await server.stop(1)


async def test_a_refusal_before_the_body_is_read_arrives(rig: Rig, files: GatewayTls) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port, ssl=trusting(files))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{")
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_the_cells_own_port_stays_plain_and_asks_for_the_secret(rig: Rig) -> None:
    url = rig.gateway.others.own_url + "/raylane/status"
    async with aiohttp.ClientSession() as session:
        assert (await session.get(url)).status == 401
        async with session.get(url, headers=CREDENTIALS) as answer:
            assert (await answer.json())["gateway"]["url"] == rig.url


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path, files: GatewayTls) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for cert, key in ((str(wrong), files.key), (files.cert, str(tmp_path / "missing.pem"))):
        with pytest.raises(OSError, match=r"gateway\.tls = .*\.pem"):
            HttpServer(None, "127.0.0.1", 0, 5, tls=(cert, key))
