"""Models from a real S3 server: damage, cuts, kills, wrong keys, a store and a disk that fail, and eight processes at
once. Each pull ends with a clear error or the whole model."""

import os
import random
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.artifacts.s3_pulls import PART, Puller, part_checksums, s3, upload, whole_checksums  # noqa: F401
from tests.s3.proxy import Passed, proxy_of
from tests.s3.server import S3Server
from tests.small_disk import small_disk

# ruff: noqa: F811
pytestmark = pytest.mark.timeout(600)
MODEL = {"config.json": 500, "sub/tokenizer.json": 100_000, "weights.safetensors": 2 * PART + 12_345}
SHARDS = {"config.json": 500, **{f"{number}.safetensors": PART // 8 + number for number in range(24)}}


@pytest.fixture
def puller(tmp_path: Path, s3: S3Server) -> Puller:
    return Puller(tmp_path / "cache", s3.environment())


@pytest.mark.whole
@pytest.mark.parametrize("checksums", [whole_checksums, part_checksums])
def test_a_model_comes_whole_though_it_is_damaged_and_cut(s3: S3Server, puller: Puller, checksums: object) -> None:
    contents = upload(s3, "smoke", MODEL)
    with proxy_of(s3.endpoint, adds=checksums(contents)) as proxy:  # type: ignore[operator]
        bad = iter([True])
        proxy.damages = lambda passed: "weights" in passed.path and next(bad, False)
        cut = iter([None, 1_000_000])
        proxy.cuts = lambda passed: next(cut, None) if "weights" in passed.path else None
        code, said = puller.behind(proxy).pull("s3://models/smoke")
        assert code == 0, said
        assert puller.files() == contents
        assert proxy.sent("weights") > MODEL["weights.safetensors"] * 1.5  # the damaged file came twice
        before = len(proxy.gets())
        code, said = puller.behind(proxy).pull("s3://models/smoke")
        assert (code, len(proxy.gets())) == (0, before)
    code, said = puller.run("verify")
    assert (code, "sound" in said, "without a checksum" in said) == (0, True, False), said


@pytest.mark.long
def test_what_is_always_damaged_is_never_a_model(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "damaged", {"weights": PART})
    with proxy_of(s3.endpoint, adds=whole_checksums(contents), damages=lambda passed: True) as proxy:
        code, said = puller.behind(proxy).pull("s3://models/damaged")
    assert code == 1
    assert "damaged/weights: its content does not match the checksum that is stored with it, fetched twice" in said
    assert puller.entries() == []


@pytest.mark.long
def test_objects_without_a_checksum_are_named_by_verify(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "plain", {"config.json": 500, "weights": PART})
    stored = whole_checksums(contents)
    adds = lambda passed: {} if passed.name == "weights" else stored(passed)  # noqa: E731
    with proxy_of(s3.endpoint, adds=adds) as proxy:
        assert puller.behind(proxy).pull("s3://models/plain")[0] == 0
    code, said = puller.run("verify")
    assert (code, said.splitlines()[-1]) == (0, "  fetched without a checksum, by size and TLS alone: weights"), said
    (entry,) = puller.entries()
    with (entry / "files" / "weights").open("r+b") as file:
        file.write(bytes([contents["weights"][0] ^ 1]))
    code, said = puller.run("verify")
    assert (code, "weights: its content has changed" in said) == (1, True), said


@pytest.mark.long
def test_a_store_with_a_certificate_of_its_own(s3: S3Server, puller: Puller, tmp_path: Path) -> None:
    contents = upload(s3, "tls", {"config.json": 500})
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with proxy_of(s3.endpoint, tls=tls) as proxy:
        code, said = puller.behind(proxy).pull("s3://models/tls")
        assert (code, "certificate verify failed" in said) == (1, True), said
        code, said = puller.behind(proxy).pull("s3://models/tls", AWS_CA_BUNDLE=str(tmp_path / "cert.pem"))
        assert code == 0, said
    assert puller.files() == contents


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_pull_fetches_again_only_files_that_were_not_whole(s3: S3Server, puller: Puller, seed: int) -> None:
    """Killed five times, at random moments."""
    contents, source = upload(s3, f"kill{seed}", SHARDS), f"s3://models/kill{seed}"
    draw = random.Random(seed)
    kills: list[tuple[int, set[str]]] = []
    with proxy_of(s3.endpoint, bytes_per_s=5e6) as proxy:
        slow = puller.behind(proxy)
        for _ in range(5):
            process, until = slow.start(source), proxy.sent() + draw.randrange(sum(SHARDS.values()) // 3)
            while process.poll() is None and proxy.sent() < until:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kills.append((len(proxy.passed), puller.whole()))
            assert puller.entries() == [] or puller.files() == contents
        proxy.bytes_per_s = None
        code, said = slow.pull(source)
        assert code == 0, said
        assert any(0 < len(whole) < len(SHARDS) for _, whole in kills)
        for since, whole in kills:
            assert not {passed.name for passed in proxy.passed[since:] if passed.span is not None} & whole
    assert puller.files() == contents


@pytest.mark.long
def test_a_download_that_is_killed_while_others_wait_is_taken_over(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "heir", SHARDS)
    with proxy_of(s3.endpoint, bytes_per_s=5e6) as proxy:
        slow = puller.behind(proxy)
        first = slow.start("s3://models/heir")
        while len(puller.whole()) < 4:
            time.sleep(0.02)
        others = [slow.start("s3://models/heir") for _ in range(2)]
        time.sleep(1.0)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        whole = puller.whole()
        said = [other.communicate(timeout=240) for other in others]
        assert [other.returncode for other in others] == [0, 0], said
        assert all(len(proxy.gets(f"/{name}")) == 1 for name in whole)
    assert puller.files() == contents


@pytest.mark.long
def test_a_store_that_is_busy_is_asked_again(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "busy", MODEL)
    busy = iter([True, False, False, True, True] + [False] * 1_000)

    def answers(passed: Passed) -> bytes | None:
        return refusal("503 Slow Down", "SlowDown") if passed.span is not None and next(busy) else None

    with proxy_of(s3.endpoint, answers=answers) as proxy:
        code, said = puller.behind(proxy).pull("s3://models/busy")
        assert code == 0, said
    assert puller.files() == contents


def refusal(status: str, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code></Error>"
    return f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.long
def test_an_object_that_is_replaced_meanwhile_is_no_mixture(s3: S3Server, puller: Puller) -> None:
    upload(s3, "replaced", MODEL)
    with proxy_of(s3.endpoint, delay_s=0.5) as proxy:
        process = puller.behind(proxy).start("s3://models/replaced")
        while not any(passed.method == "HEAD" for passed in proxy.passed):
            time.sleep(0.01)
        s3.client().put_object(Bucket="models", Key="replaced/weights.safetensors", Body=b"another")
        _, said = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "it was replaced while it was fetched; try it again" in said
    assert puller.entries() == []
    assert puller.pull("s3://models/replaced")[0] == 0
    assert puller.files()["weights.safetensors"] == b"another"


@pytest.mark.long
def test_a_store_that_goes_away_in_the_middle(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "away", SHARDS)
    with proxy_of(s3.endpoint, bytes_per_s=5e6) as proxy:
        process = puller.behind(proxy).start("s3://models/away")
        while len(puller.whole()) < 4:
            time.sleep(0.02)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "what is whole is kept" in said
    assert "Traceback" not in said
    whole = puller.whole()
    with proxy_of(s3.endpoint) as proxy:
        assert puller.behind(proxy).pull("s3://models/away")[0] == 0
        assert {passed.name for passed in proxy.gets()} == set(SHARDS) - whole
    assert puller.files() == contents


@pytest.mark.long
def test_credentials_that_expire_in_the_middle(s3: S3Server, puller: Puller) -> None:
    upload(s3, "expired", MODEL)

    def answers(passed: Passed) -> bytes | None:
        is_late = passed.span is not None and passed.span[0] >= PART
        return refusal("400 Bad Request", "ExpiredToken") if is_late else None

    with proxy_of(s3.endpoint, answers=answers) as proxy:
        code, said = puller.behind(proxy).pull("s3://models/expired")
    assert code == 1
    assert "the credentials have expired (ExpiredToken)" in said
    assert puller.entries() == []


@pytest.mark.long
def test_a_disk_that_others_fill_meanwhile(s3: S3Server, tmp_path: Path) -> None:
    contents = upload(s3, "full", {"config.json": 500, "weights": 400 << 10})
    with small_disk(tmp_path / "disk") as disk, proxy_of(s3.endpoint, bytes_per_s=1e5) as proxy:
        puller = Puller(disk.path / "cache", s3.environment())
        process = puller.behind(proxy).start("s3://models/full")
        while "config.json" not in puller.whole():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        disk.fill()
        _, said = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "is full; free some space; what is whole is kept" in said
        assert puller.entries() == []
        disk.free()
        code, said = puller.pull("s3://models/full")
        assert code == 0, said
        assert puller.files() == contents


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "environment", "message"),
    [
        ("s3://models/smallest", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "the secret key is wrong, or the access key"),
        ("s3://models/smallest", {"AWS_ACCESS_KEY_ID": "nobody"}, "the access key unknown"),
        ("s3://models/nothing", {}, "nothing is below this prefix; allowed: one that holds a model"),
        ("s3://nobucket/smallest", {}, "there is no such bucket or object (NoSuchBucket)"),
        ("s3://models/smallest", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "cannot be reached"),
        ("s3://models/smallest", {"AWS_PROFILE": "nobody"}, "The config profile (nobody) could not be found"),
        ("s3://models", {}, "allowed: s3://bucket/prefix"),
    ],
)
def test_what_is_wrong_is_said(
    s3: S3Server, puller: Puller, source: str, environment: dict[str, str], message: str
) -> None:
    upload(s3, "smallest", {"config.json": 10})
    code, said = puller.pull(source, **environment)
    assert code == 1
    assert message in said, said
    assert "Traceback" not in said
    assert puller.entries() == []


@pytest.mark.long
def test_without_credentials(s3: S3Server, puller: Puller, tmp_path: Path) -> None:
    environment = {**os.environ, **puller.environment, "HOME": str(tmp_path)}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environment.pop(name)
    command = [sys.executable, "-m", "cli.main", "models", "pull", "s3://models/smallest", "--cache", str(puller.cache)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Unable to locate credentials; looked for by boto3's chain: AWS_ACCESS_KEY_ID" in done.stderr
