"""A real browser that opens a page of ours."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SETTINGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr")
PATIENCE_S = 120.0
"""Longer than anything takes on a busy machine."""


class Tab:
    """A tab of a running browser, driven by its own protocol (CDP); `errors`: what its console said."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.errors: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=PATIENCE_S)
            if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.errors.append(json.dumps(message["params"]))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript is in the page, awaited."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> None:
        """Waits until that is true in the page."""
        deadline = time.monotonic() + PATIENCE_S
        while not await self.value(expression):
            assert time.monotonic() < deadline, f"{expression} did not come true; {self.errors}"
            await asyncio.sleep(0.05)

    async def open(self, url: str, width: int = 1280, dark: bool = False) -> None:
        """At that width in CSS pixels, as a machine with that colour scheme shows it."""
        mobile = width < 500
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url="about:blank")  # else another fragment would load nothing
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")


@asynccontextmanager
async def tab(home: Path) -> AsyncIterator[Tab]:
    """The tab of a browser of its own, which ends with it."""
    assert CHROMIUM is not None
    options = (*SETTINGS, "--hide-scrollbars", f"--user-data-dir={home}", "--remote-debugging-port=0", "about:blank")
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(CHROMIUM, *options, stdout=quiet, stderr=quiet)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (port := home / "DevToolsActivePort").exists() or not port.read_text().strip():
            assert time.monotonic() < deadline, "the browser did not start"
            await asyncio.sleep(0.05)
        base = f"http://127.0.0.1:{port.read_text().split()[0]}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{base}/json") as answer:
                url = next(one["webSocketDebuggerUrl"] for one in await answer.json() if one["type"] == "page")
            async with session.ws_connect(url, max_msg_size=0) as socket:
                found = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await found.call(f"{domain}.enable")
                yield found
                await found.call("Browser.close")
    finally:
        with suppress(ProcessLookupError):
            if process.returncode is None and await _outlives(process):
                process.kill()
        await process.wait()


async def _outlives(process: asyncio.subprocess.Process) -> bool:
    """Whether it still runs some seconds later."""
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        return True
    return False
