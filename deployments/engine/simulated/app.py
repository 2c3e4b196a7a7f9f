"""vLLM's HTTP face over a simulated engine: chats and completions, streamed and whole, the tokenizer, models, health
and metrics. Raw ASGI.

The replica's `Guard` stands in front of it, as in front of vLLM's own app.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cluster.spec import Model
from deployments.engine.exchanges import Exchanges, current
from deployments.engine.guard import Message, Receive, Send
from deployments.engine.simulated.answer import DONE, FINGERPRINT, AnswerEvents, error, spoken, token_ids, whole
from deployments.engine.simulated.ask import Ask, AskError, answer_tokens, read_ask, read_tokenizing
from deployments.engine.simulated.driver import Driver, SequenceJob
from deployments.openai.endpoints import BodyKind
from deployments.protocol import SIMULATED_HEADER, Usage

_GENERATING = {"/v1/chat/completions": (BodyKind.CHAT, "chatcmpl-"), "/v1/completions": (BodyKind.COMPLETION, "cmpl-")}
_MARK = (SIMULATED_HEADER.encode(), b"true")
_JSON = b"application/json"


class AnswerOutbox:
    """What a simulated engine has to say to one client: the listener of the jobs of one answer, which turns tokens into
    bytes for the task that sends them. `events` None: it is not streamed."""

    def __init__(self, attempt_id: str, exchanges: Exchanges, speed: float, events: AnswerEvents | None) -> None:
        self.jobs: list[SequenceJob] = []
        self.broken = False
        """The engine has died."""
        self.left = False
        """The client has."""
        self._attempt_id = attempt_id
        self._exchanges = exchanges
        self._speed = speed
        self._events = events
        self._reasons: dict[SequenceJob, tuple[int, str]] = {}
        self._sent: dict[SequenceJob, int] = {}
        self._ended = 0
        self._pieces: list[bytes] = []
        self._wake = asyncio.Event()

    def expect(self, job: SequenceJob, reason: str) -> None:
        """A job of this answer; `reason`: why it will have ended."""
        self._reasons[job] = (len(self.jobs), reason)
        self.jobs.append(job)

    @property
    def done(self) -> bool:
        return self._ended == len(self.jobs)

    @property
    def choices(self) -> list[tuple[int, str]]:
        return [(job.sequence.output, reason) for job, (_, reason) in self._reasons.items()]

    @property
    def cached(self) -> int:
        return sum(job.sequence.cached for job in self.jobs)

    async def take(self) -> bytes:
        """The bytes that wait; waits for some, for the end, or for whatever breaks the answer off."""
        await self._wake.wait()
        self._wake.clear()
        taken, self._pieces = b"".join(self._pieces), []
        return taken

    def leave(self) -> None:
        self.left = True
        self._wake.set()

    def reached(self, job: SequenceJob, tokens: int) -> None:
        self._say(job, tokens, None)

    def ended(self, job: SequenceJob) -> None:
        """A job's end: its statistics are recorded, as vLLM's are, before the answer is complete."""
        self._exchanges.record(self._attempt_id, self._stats(job))
        self._ended += 1
        if self._events is not None:
            self._say(job, job.sequence.output, self._reasons[job][1])
        self._wake.set()

    def failed(self) -> None:
        self.broken = True
        self._wake.set()

    def _say(self, job: SequenceJob, tokens: int, finish: str | None) -> None:
        assert self._events is not None
        self._pieces.append(self._events.tokens(self._reasons[job][0], self._sent.get(job, 0), tokens, finish))
        self._sent[job] = tokens
        self._wake.set()

    def _stats(self, job: SequenceJob) -> Usage:
        sequence, speed = job.sequence, self._speed
        return Usage(
            prompt_tokens=sequence.prompt,
            cached_tokens=sequence.cached,
            output_tokens=sequence.output,
            preemptions=int(sequence.order != job.order),
            queued_s=max(0.0, job.began_s - job.added_s)
            / speed,  # it may begin with a step that was due before it came
            prefill_s=(job.first_s - job.began_s) / speed,
            decode_s=(job.ended_s - job.first_s) / speed,
        )


class SimulatedApp:
    """The ASGI app. `around_s`: what a request takes around the engine's steps, beside so many others, by the cost
    file.

    All of it is taken before the engine sees the request: the replica's own HTTP already takes some time after.
    """

    def __init__(self, model: Model, driver: Driver, exchanges: Exchanges, around_s: Callable[[int], float]) -> None:
        assert model.simulated is not None
        self._model = model
        self._simulated = model.simulated
        self._driver = driver
        self._exchanges = exchanges
        self._around_s = around_s
        self._ids = itertools.count(1)
        self._started = int(time.time())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        route = f"{scope['method']} {scope['path']}"
        try:
            match route:
                case "POST /v1/chat/completions" | "POST /v1/completions":
                    await self._generate(*_GENERATING[scope["path"]], await _body(receive), receive, send)
                case "POST /tokenize":
                    await _respond(send, 200, await asyncio.to_thread(self._tokenized, await _body(receive)))
                case "POST /detokenize":
                    await _respond(send, 200, await asyncio.to_thread(_detokenized, await _body(receive)))
                case "GET /v1/models":
                    await _respond(send, 200, _dumped(self._models()))
                case "GET /metrics":
                    await _respond(send, 200, generate_latest(), CONTENT_TYPE_LATEST.encode())
                case "GET /health":
                    await _respond(send, 200, b"")
                case _:
                    raise AskError(f"{route}: not served by a simulated engine", status=404)
        except AskError as problem:
            await _respond(send, problem.status, error(str(problem), problem.param, problem.status))

    async def _generate(self, kind: BodyKind, prefix: str, body: bytes, receive: Receive, send: Send) -> None:
        exchange = current.get()
        number = next(self._ids)
        ask = read_ask(kind, body, self._model.name, str(number) if exchange is None else exchange.request_id)
        self._check_context(ask)
        answer_id, created = f"{prefix}{number:x}-{self._started:x}", int(time.time())
        events = AnswerEvents(kind, answer_id, created, self._model.name) if ask.stream else None
        outbox = AnswerOutbox(answer_id, self._exchanges, self._driver.speed, events)
        gone = asyncio.create_task(_until_gone(receive))
        gone.add_done_callback(lambda _: outbox.leave())
        try:
            around_s = self._around_s(len(self._exchanges) - 1) / self._driver.speed
            if around_s > 0:
                await asyncio.sleep(around_s)
            self._submit(ask, answer_id, outbox)
            if events is not None:
                await _stream(send, outbox, events, ask)
            else:
                while not (outbox.done or outbox.left or outbox.broken):
                    await outbox.take()
                if outbox.broken:
                    raise AskError("the simulated engine has died", status=500)
                if outbox.done:
                    await _respond(
                        send,
                        200,
                        whole(
                            kind, answer_id, created, self._model.name, outbox.choices, sum(ask.prompts), outbox.cached
                        ),
                    )
        finally:
            gone.cancel()
            for job in outbox.jobs:
                self._driver.drop(job)

    def _submit(self, ask: Ask, attempt_id: str, outbox: AnswerOutbox) -> None:
        asked = zip(ask.prompts, ask.prefixes, strict=True)
        for number, (prompt, prefix) in enumerate(one for one in asked for _ in range(ask.n)):
            tokens, by_itself = answer_tokens(ask, number, self._model.settings.max_model_len - prompt, self._simulated)
            job = SequenceJob(outbox, prompt, tokens, ask.stream, prefix, open_ended=by_itself)
            outbox.expect(job, "stop" if by_itself else "length")
        self._exchanges.accept(attempt_id, len(outbox.jobs))
        try:
            for job in outbox.jobs:
                self._driver.add(job)
        except ValueError as problem:
            self._exchanges.retract(attempt_id, len(outbox.jobs))
            raise AskError(str(problem)) from problem
        self._exchanges.expect(len(outbox.jobs), outbox.jobs)

    def _check_context(self, ask: Ask) -> None:
        context, longest = self._model.settings.max_model_len, max(ask.prompts)
        if longest + 1 > context:
            message = f"This model's maximum context length is {context} tokens, but the prompt has {longest}."
            raise AskError(message, "input_tokens")

    def _tokenized(self, body: bytes) -> bytes:
        """Runs in a thread, as vLLM's tokenizer does: a long text takes its time, and streams go on."""
        given = read_tokenizing(body)
        ids = token_ids(given.text, given.count)
        strings = [given.text[at * 3 : at * 3 + 3] for at in range(given.count)] if given.with_strings else None
        return _dumped(
            {
                "count": given.count,
                "max_model_len": self._model.settings.max_model_len,
                "tokens": ids,
                "token_strs": strings,
            }
        )

    def _models(self) -> dict[str, Any]:
        card = {
            "id": self._model.name,
            "object": "model",
            "created": self._started,
            "owned_by": FINGERPRINT,
            "root": self._model.source,
        }
        return {
            "object": "list",
            "data": [{**card, "parent": None, "max_model_len": self._model.settings.max_model_len, "simulated": True}],
        }


def _detokenized(body: bytes) -> bytes:
    return _dumped({"prompt": spoken(read_tokenizing(body).ids)})


async def _stream(send: Send, outbox: AnswerOutbox, events: AnswerEvents, ask: Ask) -> None:
    """Sends what the outbox has, until all is said or nobody is there to hear it. The head goes out with the first
    token, as vLLM's does."""
    begun = False
    while not outbox.left:
        piece = await outbox.take()
        if outbox.broken and not begun:
            raise AskError("the simulated engine has died", status=500)
        if not piece and not outbox.broken:
            continue
        if not begun:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), _MARK],
                }
            )
            begun = True
        if outbox.broken:
            piece += b"data: " + error("the simulated engine has died", None, 500) + b"\n\n" + DONE
        elif outbox.done:
            output = sum(tokens for tokens, _ in outbox.choices)
            piece += (events.usage(sum(ask.prompts), output, outbox.cached) if ask.include_usage else b"") + DONE
        ends = outbox.done or outbox.broken
        await send({"type": "http.response.body", "body": piece, "more_body": not ends})
        if ends:
            return


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes:
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise AskError("the client left before its request was whole")
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def _dumped(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


async def _respond(send: Send, status: int, body: bytes, kind: bytes = _JSON) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), _MARK]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
