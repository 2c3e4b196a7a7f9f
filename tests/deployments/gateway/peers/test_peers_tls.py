"""Cells that know each other by certificates of their own authority: without a secret, and beside one."""

import ssl
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deployments.gateway.peers.auth import Credentials
from deployments.gateway.peers.digests import DIGEST_PATH
from deployments.gateway.peers.peering import check_proofs
from tests.deployments.gateway.fake_engine import DONE
from tests.deployments.gateway.peers.cells import PEERS_SECRET, Cells, MakeCells, metrics_of
from tests.deployments.gateway.rig import ASK, STREAM, Rig

BODY = b'{"questions": {"demo": [1, 1]}}'
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Authority:
    """An authority, and what it has signed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.ca = folder / f"{name}.ca.pem"
        self._key = folder / f"{name}.ca.key"
        self._openssl("req", "-x509", *EC, "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.ca)

    def sign(self, name: str) -> tuple[str, str]:
        """The files of a certificate for that cell at 127.0.0.1, and of its key, as docs/regions.md says."""
        cert, key, asked = (self._folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        self._openssl("req", *EC, "-subj", f"/CN={name}", "-keyout", key, "-out", asked)
        names = self._folder / f"{name}.ext"
        names.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1\n")
        signing = ("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-days", "2", "-extfile", names)
        self._openssl("x509", "-req", "-in", asked, "-out", cert, *signing)
        return str(cert), str(key)

    def _openssl(self, *arguments: Any) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "cells")


@pytest.fixture(params=[None, {"kind": "file"}], ids=["certificates alone", "beside a secret"])
async def cells(make_cells: MakeCells, authority: Authority, request: pytest.FixtureRequest) -> Cells:
    """`eu` without a replica, and `us` with one."""
    secret = request.param
    cells = make_cells(scheme="https")
    for name, engines in (("eu", 0), ("us", 1)):
        cert, key = authority.sign(name)
        tls = {"cert": cert, "key": key}
        peering = {"digest_period_s": 0.1, "max_age_s": 1.0, "tls": {**tls, "ca": str(authority.ca)}}
        peering |= {"secret": secret} if secret else {}
        await cells.start(name, engines=engines, peering=peering, gateway={"tls": tls})
        cells[name].url = cells[name].url.replace("http:", "https:")
    await cells.met()
    return cells


def trusting(authority: Authority, shown: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if shown is not None:
        context.load_cert_chain(*shown)
    return context


async def ask(rig: Rig, context: ssl.SSLContext, secret: str | None) -> int:
    headers = Credentials("eu", secret, ("eu", "us"), False).shown_to("us")
    return (await rig.ask(BODY, DIGEST_PATH, headers=headers, ssl=context))[0]


@pytest.mark.whole
async def test_a_request_is_handed_over_and_strangers_are_refused(
    cells: Cells, authority: Authority, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    asked = await cells["eu"].ask(STREAM, ssl=trusting(authority))
    assert (asked[0], asked[1].endswith(DONE)) == (200, True)
    assert (await cells["eu"].last()).region == "us"

    has_secret = "beside" in request.node.name
    secret = PEERS_SECRET if has_secret else None
    mine, another = authority.sign("eu"), authority.sign("ap")
    assert await ask(cells["us"], trusting(authority, mine), secret) == 200
    assert await ask(cells["us"], trusting(authority, another), secret) == 401, "the certificate of another cell"
    assert metrics_of(cells["us"])["raylane_peer_calls_refused_total", "eu", "wrong_certificate"] == 1
    assert await ask(cells["us"], trusting(authority), secret) == 401, "no certificate"
    assert metrics_of(cells["us"])["raylane_peer_calls_refused_total", "eu", "no_certificate"] == 1
    if has_secret:
        assert await ask(cells["us"], trusting(authority, mine), None) == 401, "a certificate and no secret"
    foreign = Authority(tmp_path, "others").sign("intruder")
    with pytest.raises(aiohttp.ClientError):  # the handshake fails
        await ask(cells["us"], trusting(authority, foreign), secret)
    status, _ = await cells["us"].ask(ASK, ssl=trusting(authority))
    assert status == 200, "clients need no certificate"


def test_certificates_need_a_gateway_that_checks_them(tmp_path: Path) -> None:
    tls = {"cert": "c.pem", "key": "k.pem"}
    spec = Cells(tmp_path, ("eu", "us"), scheme="https", peering={"tls": {**tls, "ca": "ca.pem"}}).spec_of("eu")
    with pytest.raises(ValueError, match=r"peering\.tls: needs gateway\.tls"):
        check_proofs(spec, None)
    check_proofs(Cells(tmp_path, ("eu", "us")).spec_of("eu"), PEERS_SECRET)
    with pytest.raises(ValueError, match=r"peering\.secret: not given"):
        check_proofs(Cells(tmp_path, ("eu", "us")).spec_of("eu"), None)
