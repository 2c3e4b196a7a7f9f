"""A download from a real S3 server as an attacker or a bad day treats it: killed again and again, its files tampered
with, its store and its disk gone in the middle. Each ends with a clear error or the whole model."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.artifacts.s3_pulls import PART, Puller, s3, upload  # noqa: F401
from tests.s3.proxy import Passed, Proxy, proxy_of
from tests.s3.server import S3Server
from tests.small_disk import small_disk

# ruff: noqa: F811
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
MODEL = {"config.json": 500, "weights.safetensors": 4 * PART + 12_345}
SIZE = sum(MODEL.values())
KILLS = 20


@pytest.fixture
def puller(tmp_path: Path, s3: S3Server) -> Puller:
    return Puller(tmp_path / "cache", s3.environment())


def behind(puller: Puller, proxy: Proxy) -> Puller:
    return Puller(puller.cache, {**puller.environment, "AWS_ENDPOINT_URL": proxy.endpoint})


def killed_after(puller: Puller, source: str, size: int) -> bool:
    """A download that is killed when it has fetched so many bytes more; False: it ended before."""
    process, until = puller.start(source), puller.fetched() + size
    while process.poll() is None and puller.fetched() < until:
        time.sleep(0.02)
    was_running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return was_running


def test_twenty_kills_at_random_places(s3: S3Server, puller: Puller) -> None:
    model = {"config.json": 500, "weights.safetensors": 40 * PART + 12_345}
    contents, size = upload(s3, "twenty", model), sum(model.values())
    draw = random.Random(20)
    with proxy_of(s3.endpoint, bytes_per_s=3e7) as proxy:
        slow = behind(puller, proxy)
        for _ in range(KILLS):
            assert killed_after(slow, "s3://models/twenty", draw.choice([0, 1, draw.randrange(size // KILLS)]))
            assert puller.entries() == []
        proxy.bytes_per_s = None
        code, said = slow.pull("s3://models/twenty")
        assert code == 0, said
        again = proxy.sent() - size
        print(f"{KILLS} kills: {again} bytes sent twice, at most {KILLS * PART} allowed")
        assert again <= KILLS * PART
    assert puller.files() == contents


def truncate(partial: Path) -> None:
    os.truncate(partial / "files" / "weights.safetensors", 100_000)


def flip(partial: Path) -> None:
    path = partial / "files" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), 10_007):
        content[at] ^= 1
    path.write_bytes(content)


def lie(partial: Path) -> None:
    """A journal that says that all is there, with checksums that do not hold."""
    spans = [f"{index} 0 {size} 1234\n" for index, size in enumerate(MODEL.values())]
    (partial / "extents").write_text("".join(spans))


def longer(partial: Path) -> None:
    with (partial / "files" / "weights.safetensors").open("ab") as file:
        file.write(b"more than there is")


@pytest.mark.parametrize(
    "tamper",
    [
        truncate,
        flip,
        lie,
        longer,
        lambda partial: (partial / "extents").unlink(),
        lambda partial: (partial / "plan.json").unlink(),
        lambda partial: (partial / "files" / "weights.safetensors").unlink(),
        lambda partial: (partial / "files" / "stranger.safetensors").write_bytes(b"not of this model"),
    ],
    ids=["truncated", "flipped", "lying", "longer", "no-journal", "no-plan", "no-file", "strange-file"],
)
def test_a_partial_download_that_was_tampered_with(
    s3: S3Server, puller: Puller, tamper: Callable[[Path], object]
) -> None:
    contents = upload(s3, "tampered", MODEL)
    with proxy_of(s3.endpoint, bytes_per_s=6e6) as proxy:
        assert killed_after(behind(puller, proxy), "s3://models/tampered", SIZE // 2)
    (partial,) = puller.cache.glob("partial/*")
    tamper(partial)
    code, said = puller.pull("s3://models/tampered")
    assert code == 0, said
    assert puller.files() == contents


def test_a_flipped_byte_in_the_cache_is_found_by_verify(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "flipped", MODEL)
    assert puller.pull("s3://models/flipped")[0] == 0
    (entry,) = puller.entries()
    path = entry / "files" / "weights.safetensors"
    with path.open("r+b") as file:
        file.seek(2 * PART)
        file.write(bytes([contents["weights.safetensors"][2 * PART] ^ 1]))
    found = puller.run("verify")
    assert (found[0], "weights.safetensors: its content has changed" in found[1]) == (1, True), found
    assert puller.run("evict", entry.name)[0] == 0
    assert puller.pull("s3://models/flipped")[0] == 0
    assert puller.files() == contents
    assert puller.run("verify")[0] == 0


def test_a_truncated_file_in_the_cache_is_fetched_again(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "short", MODEL)
    assert puller.pull("s3://models/short")[0] == 0
    (entry,) = puller.entries()
    os.truncate(entry / "files" / "weights.safetensors", 5)
    (entry / "manifest.json").touch()
    code, said = puller.pull("s3://models/short")
    assert code == 0, said
    assert puller.files() == contents


def test_a_store_that_goes_away_in_the_middle(s3: S3Server, puller: Puller) -> None:
    """An error that says so, within a minute; what has come is kept."""
    contents = upload(s3, "away", MODEL)
    with proxy_of(s3.endpoint, bytes_per_s=6e6) as proxy:
        process = behind(puller, proxy).start("s3://models/away")
        while puller.fetched() < SIZE // 3:
            time.sleep(0.02)
    began = time.monotonic()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "what has been fetched is kept" in said
    assert "Traceback" not in said
    assert time.monotonic() - began < 60
    kept = puller.fetched()
    assert puller.entries() == []
    with proxy_of(s3.endpoint) as proxy:
        assert behind(puller, proxy).pull("s3://models/away")[0] == 0
        assert proxy.sent() == SIZE - kept
    assert puller.files() == contents


def test_credentials_that_expire_in_the_middle(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "expired", MODEL)
    body = b"<Error><Code>ExpiredToken</Code></Error>"
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % len(body)

    def answers(passed: Passed) -> bytes | None:
        return head + body if passed.span is not None and passed.span[0] >= 2 * PART else None

    with proxy_of(s3.endpoint, answers=answers) as proxy:
        code, said = behind(puller, proxy).pull("s3://models/expired")
    assert code == 1
    assert "the credentials have expired (ExpiredToken)" in said
    assert puller.entries() == []
    assert puller.pull("s3://models/expired")[0] == 0
    assert puller.files() == contents


def test_a_disk_that_others_fill_meanwhile(s3: S3Server, tmp_path: Path) -> None:
    contents = upload(s3, "full", {"config.json": 500, "weights": 400 << 10})
    with small_disk(tmp_path / "disk") as disk, proxy_of(s3.endpoint, bytes_per_s=2e5) as proxy:
        puller = Puller(disk.path / "cache", {**s3.environment(), "AWS_ENDPOINT_URL": proxy.endpoint})
        process = puller.start("s3://models/full")
        while proxy.sent() < 100_000 and process.poll() is None:
            time.sleep(0.02)
        disk.fill()
        _, said = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "is full; free some space, and pull again: it goes on from here" in said
        assert puller.entries() == []
        disk.free()
        proxy.bytes_per_s = None
        code, said = puller.pull("s3://models/full")
        assert code == 0, said
        assert puller.files() == contents


def test_a_download_that_is_stopped_for_a_while_and_one_that_waits(s3: S3Server, puller: Puller) -> None:
    """Two processes at once, the first of them frozen: the second waits, and both end with the whole model."""
    contents = upload(s3, "frozen", MODEL)
    with proxy_of(s3.endpoint, bytes_per_s=6e6) as proxy:
        first = behind(puller, proxy).start("s3://models/frozen")
        while puller.fetched() < SIZE // 3:
            time.sleep(0.02)
        first.send_signal(signal.SIGSTOP)
        second = behind(puller, proxy).start("s3://models/frozen")
        with pytest.raises(subprocess.TimeoutExpired):
            second.communicate(timeout=8)
        first.send_signal(signal.SIGCONT)
        said = [process.communicate(timeout=120) for process in (first, second)]
        assert [first.returncode, second.returncode] == [0, 0], said
    assert puller.files() == contents
