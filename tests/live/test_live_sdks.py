"""Other people's clients, unchanged, against a real engine: each in an environment of its own, as its users install it
from the package index."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deployments.gateway.entrance import digest_of
from tests.live.cluster import LiveCluster, held, local_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KEY = "the-tenant's-key"
COUNTED = "3, 4, 5, 6, 7, 8."
PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Client:
    """What is installed, the program that uses it, and the errors that it raises: for a wrong key, an unknown model,
    and a prompt too long."""

    packages: tuple[str, ...]
    program: str
    errors: list[list[Any]]
    more: dict[str, Any]


OPENAI_ERRORS = [
    ["AuthenticationError", 401, "invalid_api_key"],
    ["NotFoundError", 404, "model_not_found"],
    ["BadRequestError", 400, "context_length_exceeded"],
]
ANTHROPIC_ERRORS = [
    ["AuthenticationError", 401, "authentication_error", True],
    ["NotFoundError", 404, "not_found_error", True],
    ["BadRequestError", 400, "invalid_request_error", True],
]
CLIENTS = {
    "openai": Client(("openai==3.54.0",), "openai_client.py", OPENAI_ERRORS, {"response": COUNTED}),
    "litellm": Client(
        ("litellm==1.106.2", "mcp==2.3.0"),  # the second is imported where there are tools, and pip is not told
        "litellm_client.py",
        [["AuthenticationError", 401], ["NotFoundError", 404], ["ContextWindowExceededError", 400]],
        {},
    ),
    "langchain-openai": Client(
        ("langchain-openai==1.7.3",),
        "langchain_client.py",
        [
            ["OpenAIAuthenticationError", 401, "invalid_api_key"],
            ["OpenAIModelNotFoundError", 404, "model_not_found"],
            ["OpenAIInvalidRequestError", 400, "context_length_exceeded"],
        ],
        {},
    ),
    "vercel-ai": Client(
        ("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92"),
        "vercel_client.mjs",
        [["APICallError", 401], ["APICallError", 404], ["APICallError", 400]],
        {},
    ),
    "anthropic": Client(
        ("anthropic==2.12.0",),
        "anthropic_client.py",
        ANTHROPIC_ERRORS,
        {"counted": True, "stopped": ["end_turn", "end_turn", "tool_use"], "after a tool": "message"},
    ),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """One replica and a tenant, so that a key is asked for."""
    spec = local_spec(1, max_num_seqs=8, kv_cache_memory_bytes=128 << 20)
    spec["tenants"] = [{"name": "team", "keys": [digest_of(KEY)]}]
    with held(tmp_path_factory.mktemp("sdks"), "sdks", spec) as live:
        yield live


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_needs_no_change(cluster: LiveCluster, tmp_path: Path, name: str) -> None:
    client = CLIENTS[name]
    command = installed(client, tmp_path)
    said = run([*command, cluster.url, KEY], tmp_path, f"{name}'s program failed")
    got = json.loads(said.splitlines()[-1])
    assert (got["chat"], "".join(got["pieces"])) == (COUNTED, COUNTED)
    assert len([piece for piece in got["pieces"] if piece]) > 5, "streamed, and not sent at the end"
    called, given = got["tool"]
    assert (called, given["n"] in (1, 2)) == ("pick", True)
    assert (got["errors"], got["more"]) == (client.errors, client.more)
    cluster.settle()


def installed(client: Client, folder: Path) -> list[str]:
    """Installs a client into a folder, from the package index. Returns the command of its program."""
    source = (PROGRAMS / client.program).read_text()
    program = folder / client.program
    program.write_text(source)
    asked = f"{' '.join(client.packages)} could not be installed; this test needs the package index"
    if program.suffix == ".mjs":
        options = ("--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder))
        run(["npm", "install", *options, *client.packages], folder, asked)
        return ["node", str(program)]
    run([sys.executable, "-m", "venv", str(folder / "venv")], folder, "no virtual environment could be made")
    python = str(folder / "venv/bin/python")
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *client.packages], folder, asked)
    return [python, str(program)]


def run(command: list[str], folder: Path, reported: str) -> str:
    """The output of a command, which must succeed. Nothing of our own environment is imported by it, and no key of
    another service is known to it."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.endswith("_API_KEY")
    }
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its prices would be fetched from elsewhere
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    except FileNotFoundError:
        pytest.fail(f"{reported}: there is no {command[0]}")
    assert done.returncode == 0, f"{reported}:\n{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}"
    return done.stdout
