"""Models from a real S3 server: kills, damage, cuts, wrong keys, and eight processes at once."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cluster.artifacts.checksums import Checksums
from cluster.artifacts.manifest import RemoteFile
from cluster.artifacts.ranged import CHUNK
from tests.cluster.artifacts.s3_pulls import PART, Puller, s3, upload  # noqa: F401
from tests.s3.proxy import Passed, Proxy, proxy_of
from tests.s3.server import S3Server

# ruff: noqa: F811
MODEL = {"config.json": 500, "sub/tokenizer.json": 100_000, "weights.safetensors": 4 * PART + 12_345}
SIZE = sum(MODEL.values())


@pytest.fixture
def puller(tmp_path: Path, s3: S3Server) -> Puller:
    return Puller(tmp_path / "cache", s3.environment())


def behind(puller: Puller, proxy: Proxy) -> Puller:
    return Puller(puller.cache, {**puller.environment, "AWS_ENDPOINT_URL": proxy.endpoint})


@pytest.mark.whole
def test_a_model_comes_whole_though_parts_are_damaged_and_cut(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "smoke", MODEL)
    with proxy_of(s3.endpoint) as proxy:
        bad = iter([True])
        proxy.damages = lambda passed: "weights" in passed.path and next(bad, False)
        cut = iter([None, 1_000_000])
        proxy.cuts = lambda passed: next(cut, None) if "weights" in passed.path else None
        code, said = behind(puller, proxy).pull("s3://models/smoke")
        assert code == 0, said
        assert puller.files() == contents
        assert proxy.sent() > SIZE + MODEL["weights.safetensors"] // 2  # the damaged file came twice
        before = len(proxy.gets())
        code, said = behind(puller, proxy).pull("s3://models/smoke")
        assert (code, len(proxy.gets())) == (0, before)


@pytest.mark.long
def test_eight_processes_download_once(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "eight", MODEL)
    with proxy_of(s3.endpoint) as proxy:
        processes = [behind(puller, proxy).start("s3://models/eight") for _ in range(8)]
        said = [process.communicate(timeout=240) for process in processes]
        assert [process.returncode for process in processes] == [0] * 8, said
        assert proxy.sent() == SIZE
    assert puller.files() == contents


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_killed_download_goes_on_and_reads_at_most_a_part_again(s3: S3Server, puller: Puller, seed: int) -> None:
    """Killed up to three times, at random places."""
    contents = upload(s3, f"kill{seed}", MODEL)
    draw = random.Random(seed)
    with proxy_of(s3.endpoint, bytes_per_s=4e6) as proxy:
        slow = behind(puller, proxy)
        kills = 0
        for _ in range(3):
            process = slow.start(f"s3://models/kill{seed}")
            until = puller.fetched() + draw.uniform(0.05, 0.5) * SIZE
            while process.poll() is None and puller.fetched() < until:
                time.sleep(0.02)
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert puller.entries() == [] or puller.files() == contents
        proxy.bytes_per_s = None
        code, said = slow.pull(f"s3://models/kill{seed}")
        assert code == 0, said
        assert kills >= 1
        again = proxy.sent() - SIZE
        print(f"{kills} kills: {again} bytes sent twice")
        assert again <= kills * PART
    assert puller.files() == contents


@pytest.mark.long
def test_a_download_that_is_killed_while_others_wait_is_taken_over(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "heir", MODEL)
    with proxy_of(s3.endpoint, bytes_per_s=4e6) as proxy:
        slow = behind(puller, proxy)
        first = slow.start("s3://models/heir")
        while puller.fetched() < SIZE // 3:
            time.sleep(0.02)
        others = [slow.start("s3://models/heir") for _ in range(2)]
        time.sleep(1.0)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        said = [other.communicate(timeout=240) for other in others]
        assert [other.returncode for other in others] == [0, 0], said
        assert proxy.sent() - SIZE <= PART
    assert puller.files() == contents


@pytest.mark.long
def test_what_is_always_damaged_is_never_a_model(s3: S3Server, puller: Puller) -> None:
    upload(s3, "damaged", {"weights": 2 * PART})
    with proxy_of(s3.endpoint, damages=lambda passed: True) as proxy:
        code, said = behind(puller, proxy).pull("s3://models/damaged")
    assert code == 1
    assert "damaged/weights: its content does not match its ETag (MD5 of its parts), fetched twice" in said
    assert puller.entries() == []
    code, said = puller.pull("s3://models/damaged")
    assert code == 0, said


@pytest.mark.long
def test_cuts_and_busy_answers_cost_no_byte_twice(s3: S3Server, puller: Puller) -> None:
    contents = upload(s3, "cuts", MODEL)
    draw = random.Random(0)

    def cuts(passed: Passed) -> int | None:
        return draw.choice([None, 300_000, 2_000_000])

    busy = iter([True, False, False, True, True] + [False] * 1_000)

    def answers(passed: Passed) -> bytes | None:
        body = b"<Error><Code>SlowDown</Code></Error>"
        head = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % len(body)
        return head + body if passed.span is not None and next(busy) else None

    with proxy_of(s3.endpoint, cuts=cuts, answers=answers) as proxy:
        code, said = behind(puller, proxy).pull("s3://models/cuts")
        assert code == 0, said
        assert proxy.sent() == SIZE
    assert puller.files() == contents


@pytest.mark.long
def test_an_object_that_is_replaced_meanwhile_is_no_mixture(s3: S3Server, puller: Puller) -> None:
    upload(s3, "replaced", MODEL)
    with proxy_of(s3.endpoint, bytes_per_s=4e6) as proxy:
        process = behind(puller, proxy).start("s3://models/replaced")
        while puller.fetched() < SIZE // 3:
            time.sleep(0.02)
        s3.client().put_object(Bucket="models", Key="replaced/weights.safetensors", Body=b"another")
        _, said = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "it was replaced while it was fetched; try it again" in said
    assert puller.entries() == []
    assert puller.pull("s3://models/replaced")[0] == 0
    assert puller.files()["weights.safetensors"] == b"another"


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "environment", "message"),
    [
        (
            "s3://models/smallest",
            {"AWS_SECRET_ACCESS_KEY": "wrong"},
            "the secret key is wrong, or the access key",
        ),
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
    command = [*_python(), "models", "pull", "s3://models/smallest", "--cache", str(puller.cache)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Unable to locate credentials; looked for by boto3's chain: AWS_ACCESS_KEY_ID" in done.stderr


def _python() -> list[str]:
    import sys

    return [sys.executable, "-m", "cli.main"]


@pytest.mark.long
def test_the_etag_of_any_upload_is_understood(s3: S3Server, tmp_path: Path) -> None:
    """In one piece, in equal parts, in unequal ones, and empty; a changed byte is noticed in each."""
    client = s3.client()
    for name, parts in {"one": [PART], "equal": [PART, PART, 7], "unequal": [PART, PART + 999, PART + 3, 5]}.items():
        pieces = [random.Random(f"{name}{number}").randbytes(size) for number, size in enumerate(parts)]
        key = f"etag/{name}"
        if name == "one":
            client.put_object(Bucket="models", Key=key, Body=pieces[0])
        else:
            upload_id = client.create_multipart_upload(Bucket="models", Key=key)["UploadId"]
            done = []
            for number, piece in enumerate(pieces, 1):
                answer = client.upload_part(Bucket="models", Key=key, UploadId=upload_id, PartNumber=number, Body=piece)
                done.append({"PartNumber": number, "ETag": answer["ETag"]})
            client.complete_multipart_upload(
                Bucket="models", Key=key, UploadId=upload_id, MultipartUpload={"Parts": done}
            )
        path = tmp_path / name
        path.write_bytes(b"".join(pieces))
        head = client.head_object(Bucket="models", Key=key)
        file = RemoteFile(name, head["ContentLength"], head["ETag"].strip('"'), key)
        checked = Checksums(client, "models").check(file, path, 0)
        assert (checked.wrong, checked.by[:4]) == ((), "ETag")
        with path.open("r+b") as opened:
            opened.seek(file.size - 1)
            opened.write(bytes([pieces[-1][-1] ^ 1]))
        assert Checksums(client, "models").check(file, path, 0).wrong == ((0, file.size),)


def test_a_chunk_is_less_than_a_part_of_all_connections() -> None:
    """What a kill may cost: a chunk each of the default's eight connections."""
    from cluster.spec import Artifacts

    settings = Artifacts()
    assert settings.connections * CHUNK < settings.part_mib << 20
