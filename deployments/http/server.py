"""Runs an ASGI app on a socket of its own, inside a Serve replica's event loop.

Both the gateway and the engine replicas serve HTTP by themselves: a request that goes through Serve's proxy and a
handle costs a quarter of the throughput (docs/decisions/0002).
"""

import asyncio
import functools
import math
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn

from deployments.http.limits import ClientLimits
from deployments.http.protocol import GuardedProtocol

_LOOK_S = 0.01
_HANDSHAKE_S = 2.0


class _Server(uvicorn.Server):
    """uvicorn's server without its ten ticks a second: it sleeps until it has to end, and ends as soon as the last
    exchange has ended."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._reported = asyncio.Event()

    def end(self) -> None:
        """Refuses new connections, and ends when those that are open have."""
        self.should_exit = True
        self._reported.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._reported.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for one in sockets or []:
            one.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110  # neither tells of its end
            await asyncio.sleep(_LOOK_S)
        for server in self.servers:
            await server.wait_closed()


class HttpServer:
    """One uvicorn server. `start` returns once it listens; `stop` closes the socket at once and waits for open
    exchanges up to `drain_s`.

    `limits` may change while it runs. `tls`: the files of the certificate and of its key; without them it is plain
    HTTP. `ca`: a client may show a certificate, which must then be of this authority.
    """

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        keep_alive_s: float,
        reuse_port: bool = False,
        limits: Callable[[], ClientLimits] = ClientLimits,
        tls: tuple[str, str] | None = None,
        ca: str | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self._protocol = functools.partial(GuardedProtocol, limits)
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=self._protocol,  # type: ignore[arg-type]  # it is called, not subclassed
            proxy_headers=False,  # a client is who it is, whatever it says of itself
            loop="none",
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_keep_alive=math.ceil(keep_alive_s),
            backlog=4_096,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
            ssl_ca_certs=ca,
            ssl_cert_reqs=ssl.CERT_NONE if ca is None else ssl.CERT_OPTIONAL,
        )
        try:
            config.load()
        except OSError as error:  # of the files of TLS
            self._socket.close()
            raise OSError(f"gateway.tls = {tls}{'' if ca is None else f', peering.tls.ca = {ca}'}: {error}") from error
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it listens on (useful where 0 was asked for)."""
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Listens. Raises RuntimeError when the server ends before it does."""
        # `_serve`, because `serve` would take over the process's signal handlers, which are Ray's.
        self._task = asyncio.create_task(self._server._serve(sockets=[self._socket]), name="http-server")
        while not self._server.started:
            if self._task.done():
                raise RuntimeError(
                    f"the HTTP server on port {self.port} ended at its start"
                ) from self._task.exception()
            await asyncio.sleep(0.01)

    async def stop_accepting(self) -> None:
        """Closes the port; the connections that were made are served on.

        The kernel resets what it has accepted for a port that closes, so its queue is emptied by hand in the very turn
        of the loop that closes it. (A handshake that is half done is still lost, unless the machine has
        `net.ipv4.tcp_migrate_req` set; on one machine there is none.)
        """
        loop, config = asyncio.get_running_loop(), self._server.config
        accepted = []
        try:
            while True:
                accepted.append(self._socket.accept()[0])
        except BlockingIOError:
            pass
        for server in self._server.servers:
            server.close()
        handshake_s = None if config.ssl is None else _HANDSHAKE_S
        connecting = (
            loop.connect_accepted_socket(
                lambda: self._protocol(config=config, server_state=self._server.server_state, app_state={}),
                connection,
                ssl=config.ssl,
                ssl_handshake_timeout=handshake_s,
            )
            for connection in accepted
        )
        await asyncio.gather(*connecting, return_exceptions=True)  # a client that fails concerns no other

    async def stop(self, drain_s: float) -> None:
        """Refuses new connections, lets open exchanges end for `drain_s` seconds, then closes them."""
        self._server.end()
        if self._task is not None:
            _, pending = await asyncio.wait([self._task], timeout=drain_s)
            if pending:
                self._server.force_exit = True
                await asyncio.wait([self._task], timeout=2)
