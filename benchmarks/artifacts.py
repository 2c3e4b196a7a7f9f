"""Models from S3: `raylane`'s download against a bare one by boto3's parts and the CRT, from a real S3 server.

    python -m benchmarks.artifacts [--gib 1] [--rounds 5] [--json FILE]

Both sides fetch the same objects in turns, each time in a new process: directly (CPU time), and through a proxy that
holds each request for 20 ms (rate). `bare` checks nothing; `raylane` checks each file against the store's checksum,
keeps a journal, and publishes the whole. See benchmarks/README.md.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness import JsonFile, console, in_turns, plain_table, run_facts, write_json
from tests.s3.proxy import proxy_of
from tests.s3.server import REGION, S3Server, s3_server

SIDES = ("bare", "raylane")
BUCKET, PREFIX = "models", "model"
_FILES = 2
DELAY_S = 0.02

app = typer.Typer(add_completion=False)


@app.command()
def main(
    gib: Annotated[float, typer.Option(min=0.01, help="Size of the model, in two files.")] = 1.0,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    json_file: JsonFile = None,
    folder: Annotated[Path | None, typer.Option(help="Where server and downloads lie. Default: /dev/shm.")] = None,
) -> None:
    """Compare CPU time and rate of downloads from S3."""
    root = Path(tempfile.mkdtemp(prefix="artifacts-", dir=folder or "/dev/shm"))
    try:
        with s3_server(root / "s3") as server, _delaying(server) as delayed:
            _upload(server, int(gib * (1 << 30)))
            runs: list[dict[str, Any]] = []
            for number in range(-1, rounds):  # the first one warms up, and is not counted
                for path, endpoint in (("direct", server.endpoint), ("20 ms", delayed)):
                    for side in in_turns(SIDES, number):
                        run = {"round": number, "path": path, "side": side}
                        runs.append({**run, **_run(side, endpoint, server, root / "out")})
                        print(json.dumps(runs[-1]), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    runs = [run for run in runs if run["round"] >= 0]
    _show(runs)
    write_json({**run_facts(), "gib": gib, "runs": runs}, json_file)


def _upload(server: S3Server, size: int) -> None:
    from boto3.s3.transfer import TransferConfig

    client = server.client()
    client.create_bucket(Bucket=BUCKET)
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        for number in range(_FILES):
            file.seek(0)
            file.write(os.urandom(size // _FILES))
            file.seek(0)
            config = TransferConfig(max_concurrency=2)
            client.upload_fileobj(file, BUCKET, f"{PREFIX}/{number}.safetensors", Config=config)


@contextmanager
def _delaying(server: S3Server) -> Iterator[str]:
    """The endpoint of a proxy in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.artifacts", "proxy", server.endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _proxy(upstream: str) -> None:
    with proxy_of(upstream, delay_s=DELAY_S) as proxy:
        print(proxy.endpoint, flush=True)
        time.sleep(86_400)


def _run(side: str, endpoint: str, server: S3Server, out: Path) -> dict[str, float]:
    out.mkdir()
    command = [sys.executable, "-m", "benchmarks.artifacts", "side", side, str(out)]
    environment = {**os.environ, **server.environment(endpoint)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    shutil.rmtree(out)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _side(side: str, out: Path) -> None:
    """One download in this process; CPU time without that of the imports."""
    fetch = {"bare": _prepare_bare, "raylane": _prepare_raylane}[side]()
    began, cpu = time.monotonic(), _cpu_s()
    fetch(out)
    wall_s, cpu_s = time.monotonic() - began, _cpu_s() - cpu
    size = sum(path.stat().st_size for path in out.rglob("*.safetensors"))
    print(json.dumps({"bytes": size, "wall_s": wall_s, "cpu_s": cpu_s}))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _prepare_bare() -> Any:
    """The CRT as s3transfer sets it up. (`download_file` with `preferred_transfer_client="crt"` is the same, but speaks
    TLS alone.)"""
    import boto3
    import botocore.session
    from s3transfer.crt import (
        BotocoreCRTCredentialsWrapper,
        BotocoreCRTRequestSerializer,
        CRTTransferManager,
        create_s3_crt_client,
    )

    client = boto3.client("s3")

    def fetch(out: Path) -> None:
        session = botocore.session.get_session()
        credentials = BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
        crt = create_s3_crt_client(region=REGION, crt_credentials_provider=credentials, use_ssl=False)
        serializer = BotocoreCRTRequestSerializer(
            session, {"region_name": REGION, "endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        )
        keys = [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET, Prefix=PREFIX)["Contents"]]
        with CRTTransferManager(crt, serializer) as manager:
            futures = [manager.download(BUCKET, key, str(out / Path(key).name)) for key in keys]
            for future in futures:
                future.result()

    return fetch


def _prepare_raylane() -> Any:
    from cluster.artifacts import md5_lanes, s3
    from cluster.artifacts.pull import open_cache, origin_of, pull
    from cluster.spec import Artifacts

    del md5_lanes, s3  # what they import and compile is no part of a download's costs per byte

    def fetch(out: Path) -> None:
        settings = Artifacts(cache=str(out))
        origin = origin_of(f"s3://{BUCKET}/{PREFIX}", settings)
        assert origin is not None
        pull(origin, open_cache(settings)).release()

    return fetch


def _cpu_per_gib(run: dict[str, Any]) -> float:
    return float(run["cpu_s"] / run["bytes"] * (1 << 30))


def _rate(run: dict[str, Any]) -> float:
    return float(run["bytes"] / run["wall_s"] / 1e6)


def _show(runs: list[dict[str, Any]]) -> None:
    table = plain_table("raylane over bare", "figure", "path", "bare", "raylane", "ratio, median", "of rounds")
    for title, path in (("CPU seconds per GiB", "direct"), ("MB/s", "direct"), ("MB/s", "20 ms")):
        figure = _cpu_per_gib if title.startswith("CPU") else _rate
        sides = [[figure(run) for run in runs if (run["side"], run["path"]) == (side, path)] for side in SIDES]
        ratios = [ours / theirs for theirs, ours in zip(*sides, strict=True)]
        medians = [f"{statistics.median(values):.3g}" for values in sides]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        table.add_row(title, path, *medians, f"{statistics.median(ratios):.2f}", spread)
    console.print(table)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["proxy", upstream]:
            _proxy(upstream)
        case ["side", side, out]:
            _side(side, Path(out))
        case _:
            app()
