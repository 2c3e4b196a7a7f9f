"""A source of events that stands in for engines: `python -m benchmarks.serving.source PORT` answers each chat with
`max_tokens` events of one token, `EVENTS_PER_S` a second, in vLLM's form.

As in engines, the sequences of a batch get their tokens in one step: a new stream joins a batch of at most `BATCH`, and
the steps of the batches are spread over the interval. It writes to its sockets itself, since a server's own work for
each event would exceed a gateway's. It also says what raylane asks of a replica: a feed, with the end of each answer,
and an answer to a new owner.
"""

import asyncio
import itertools
import json
import os
import sys

import httptools
import uvloop

from deployments.protocol import (
    CLAIM_PATH,
    FEED_PATH,
    HEARTBEAT_S,
    REQUEST_ID_HEADER,
    Finished,
    Hello,
    Load,
    ReplicaFacts,
    ReplicaState,
    Usage,
    encode,
)

MODEL = "demo"
EVENTS_PER_S = 50
BATCH = 32
_CONTEXT = 32_768
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"
_LOAD = encode(Load(ReplicaState.READY, running=0, waiting=0, exchanges=0, kv_usage=0.0))


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _event(number: int) -> bytes:
    delta = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None, "token_ids": None}
    frame = {"id": f"chatcmpl-{number:032x}", "object": "chat.completion.chunk", "created": 1_764_000_000}
    text = json.dumps({**frame, "model": MODEL, "choices": [delta]}, separators=(",", ":"))
    return _chunk(f"data: {text}\n\n".encode())


class Source:
    """The streams, by batch: how many events each has left."""

    def __init__(self, facts: ReplicaFacts) -> None:
        self.facts = facts
        self.feeds: set[asyncio.Transport] = set()
        self._batches: list[dict[Exchange, int]] = []

    def join(self, stream: "Exchange", events: int) -> None:
        """A stream begins: in the first batch that has room."""
        batch = next((batch for batch in self._batches if len(batch) < BATCH), None)
        if batch is None:
            self._batches.append(batch := {})
            loop = asyncio.get_running_loop()
            self._step(batch, loop.time() + 0.618 * len(self._batches) % 1 / EVENTS_PER_S)
        batch[stream] = events

    def leave(self, stream: "Exchange") -> None:
        """The client has gone."""
        for batch in self._batches:
            batch.pop(stream, None)

    def tell(self, line: bytes) -> None:
        """Writes a line to every feed."""
        for feed in self.feeds:
            feed.write(_chunk(line))

    def _step(self, batch: "dict[Exchange, int]", due_s: float) -> None:
        for stream, left in list(batch.items()):
            if left:
                stream.transport.write(stream.event)
                batch[stream] = left - 1
            else:
                del batch[stream]
                stream.end()
        due_s += 1 / EVENTS_PER_S
        asyncio.get_running_loop().call_at(due_s, self._step, batch, due_s)


class Exchange(asyncio.Protocol):
    """One connection, with one request at a time."""

    transport: asyncio.Transport
    event = b""

    def __init__(self, source: Source, numbers: "itertools.count[int]") -> None:
        self._source = source
        self._numbers = numbers
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._request_id, self._body, self._asked = "", "", b"", 0
        self._feeding: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._source.leave(self)
        self._source.feeds.discard(self.transport)
        if self._feeding is not None:
            self._feeding.cancel()

    def on_message_begin(self) -> None:
        self._url, self._request_id, self._body = "", "", b""

    def on_url(self, url: bytes) -> None:
        self._url += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == REQUEST_ID_HEADER.encode():
            self._request_id = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url == "/v1/chat/completions":
            self._asked, self.event = json.loads(self._body)["max_tokens"], _event(next(self._numbers))
            self.transport.write(_STREAM % b"text/event-stream; charset=utf-8")
            self._source.join(self, self._asked)
        elif self._url == FEED_PATH:
            hello = encode(Hello(self._source.facts, ReplicaState.READY))
            self.transport.write(_STREAM % b"application/octet-stream" + _chunk(hello))
            self._source.feeds.add(self.transport)
            self._beat()
        elif self._url == CLAIM_PATH:
            self._answer({"epoch": json.loads(self._body)["epoch"], "running": []})
        else:
            self._answer({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": _CONTEXT}]})

    def end(self) -> None:
        """The answer is complete."""
        self.transport.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        wall_s = self._asked / EVENTS_PER_S
        usage = Usage(8, 0, self._asked, 0, decode_s=wall_s)
        self._source.tell(encode(Finished(self._request_id, 200, usage, 0.0, wall_s)))

    def _beat(self) -> None:
        self.transport.write(_chunk(_LOAD))
        self._feeding = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    def _answer(self, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(body) + body)


def facts_of(port: int) -> ReplicaFacts:
    """The source as a replica that has room for all."""
    url = f"http://127.0.0.1:{port}"
    return ReplicaFacts("source", MODEL, url, os.getpid(), "node", "generate", _CONTEXT, 8_192, 1 << 20, 1 << 30)


async def serve(port: int) -> asyncio.Server:
    """Listens."""
    source, numbers = Source(facts_of(port)), itertools.count(1)
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Exchange(source, numbers), "127.0.0.1", port, backlog=4_096)


async def _forever() -> None:
    await (await serve(int(sys.argv[1]))).serve_forever()


if __name__ == "__main__":
    uvloop.run(_forever())
