"""Asks the first endpoint of a list that answers: docs/clients.md.

raylane endpoints SPEC --from eu --json > endpoints.json
"""

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import openai

# A machine that is gone without a word is noticed after 2 s, also while an answer is awaited (Linux).
SOCKET = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2_000)]
SOCKET += [(socket.IPPROTO_TCP, option, 1) for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)]


class Endpoints:
    def __init__(self, urls: Sequence[str], **options: Any) -> None:
        http = [httpx.Client(transport=httpx.HTTPTransport(socket_options=SOCKET)) for _ in urls]
        options = {"max_retries": 0, "timeout": openai.Timeout(600, connect=1), **options}
        self.clients = [openai.OpenAI(base_url=u, http_client=h, **options) for u, h in zip(urls, http, strict=True)]
        self.failed_s = [-30.0] * len(urls)

    def ask(self, call: Callable[[openai.OpenAI], Any]) -> Any:
        for n in sorted(range(len(self.clients)), key=lambda n: time.monotonic() - self.failed_s[n] < 30):
            try:
                return call(self.clients[n])
            except (openai.APIConnectionError, openai.InternalServerError) as error:
                self.failed_s[n], last = time.monotonic(), error
        raise last


if __name__ == "__main__":
    import json
    import sys

    with open("endpoints.json") as file:
        urls = [one["url"] for one in json.load(file)["endpoints"]]
    model, prompt = sys.argv[1:]
    messages = [{"role": "user", "content": prompt}]
    cells = Endpoints(urls)
    for chunk in cells.ask(lambda one: one.chat.completions.create(model=model, messages=messages, stream=True)):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
