"""Sends one request to an OpenAI-compatible endpoint and measures its answer.

One aiohttp session, kept-alive connections, no retries: what fails is counted as failed. `load.py` calls `send`;
`prompts.py` asks the endpoint's `/tokenize` through `ask`.
"""

import asyncio
import json
import time
from typing import Any, Literal, Self

import aiohttp
import numpy as np

from cli.bench.answer import (
    MESSAGE_LENGTH,
    Failure,
    FailureKind,
    Sample,
    StreamedAnswer,
    TokenUsage,
    error_of,
    object_in,
    read_whole,
)
from planning.workload.arrivals import FloatArray

Endpoint = Literal["chat", "completions"]
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
KEEP_ALIVE_S = 3.0
"""Below the shortest keep-alive of common servers (vLLM: 5 s), so that no request is sent into a connection that the
server is closing."""
ASK_TIMEOUT_S = 30.0
_NO_GAPS: FloatArray = np.empty(0)


class EndpointError(RuntimeError):
    """The endpoint cannot be used at all; the message names its URL and what it answered."""


class BenchClient:
    """An endpoint at `url` (without the `/v1`), answered to `endpoint`. Use it as an async context manager."""

    def __init__(
        self, url: str, endpoint: Endpoint, *, stream: bool = True, api_key: str | None = None, timeout_s: float = 600.0
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.endpoint = endpoint
        self.stream = stream
        self._target = self.url + PATHS[endpoint]
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {}),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The JSON object at `path` (POST when there is a body), or None when the endpoint answers anything but 200.
        Raises EndpointError."""
        method = "GET" if body is None else "POST"
        try:
            data = None if body is None else json.dumps(body)
            async with self._session.request(
                method, self.url + path, data=data, timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EndpointError(f"{self.url}: cannot be reached: {error or type(error).__name__}") from error
        return (object_in(answer) or None) if response.status == 200 else None

    async def first_model(self) -> str:
        """The first model that the endpoint lists. Raises EndpointError."""
        listed = await self.ask("/v1/models")
        models = (listed or {}).get("data") or []
        if not models:
            raise EndpointError(
                f"{self.url}/v1/models lists no model; name one with --model, or check --url and --api-key-env"
            )
        return str(models[0]["id"])

    async def send(self, body: bytes, request_id: str | None = None) -> Sample:
        """Sends one request and reads its answer to the end. Never raises, except when it is cancelled.

        `request_id`: sent as `X-Request-Id`, under which a gateway's ledger has it.
        """
        answer = StreamedAnswer()
        usage: TokenUsage | None = None
        sent_at = time.monotonic()
        try:
            async with self._session.post(
                self._target, data=body, headers={"X-Request-Id": request_id} if request_id else None
            ) as response:
                if response.status != 200:
                    failure: Failure | None = _refusal(response.status, await response.read())
                elif self.stream:
                    await _read_stream(response, answer)
                    failure, usage = answer.end(), answer.usage
                else:
                    usage, failure = read_whole(await response.read())
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, TimeoutError) as error:
            failure = _network_failure(error, answer)
        return _sample(sent_at, time.monotonic(), answer, usage, failure)


async def _read_stream(response: aiohttp.ClientResponse, answer: StreamedAnswer) -> None:
    feed, clock = answer.feed, time.monotonic
    async for chunk in response.content.iter_any():
        feed(chunk, clock())


def _sample(
    sent_at: float, ended_at: float, answer: StreamedAnswer, usage: TokenUsage | None, failure: Failure | None
) -> Sample:
    times = answer.token_times
    return Sample(
        sent_at=sent_at,
        ended_at=ended_at,
        ttft_s=times[0] - sent_at if times else None,
        decode_s=times[-1] - times[0] if times else None,
        gaps_s=answer.gaps() if times else _NO_GAPS,
        events=len(times),
        usage=usage,
        failure=failure,
    )


def _refusal(status: int, data: bytes) -> Failure:
    code, message = error_of(object_in(data), data)
    detail = str(status) if code in ("", str(status)) else f"{status} {code}"
    return Failure(FailureKind.HTTP, detail, message)


def _network_failure(error: Exception, answer: StreamedAnswer) -> Failure:
    """A broken connection. Once the answer had begun it is a stream without its end, however the transport words it."""
    message = f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH]
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure(FailureKind.CONNECT, message=message)
    if isinstance(error, TimeoutError):
        return Failure(FailureKind.TIMEOUT, message=message)
    if isinstance(error, aiohttp.ClientPayloadError) or answer.token_times:
        return Failure(FailureKind.ENDED_EARLY, message=message)
    return Failure(FailureKind.LOST, message=message)
