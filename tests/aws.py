"""AWS as moto's server serves it on loopback, reached as the real one is."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
"""Moto takes any."""


@contextmanager
def moto_server() -> Iterator[str]:
    """Its URL, for AWS_ENDPOINT_URL. Skips the test where moto is not installed."""
    pytest.importorskip("moto", reason="moto is not installed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    try:
        while True:
            try:
                requests.get(f"{url}/moto-api/", timeout=2)
                break
            except requests.RequestException:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)
