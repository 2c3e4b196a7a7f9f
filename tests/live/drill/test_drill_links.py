"""Links between cells, over real sockets: bytes in order after half a round trip, held while the link is cut."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from tests.live.drill.links import CellLink, CellLinks

RTT_S = 0.06
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@pytest.fixture
async def target() -> AsyncIterator[asyncio.Server]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server
    server.close()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.fixture
async def link(target: asyncio.Server) -> AsyncIterator[CellLink]:
    made = CellLink("eu", "us", f"http://127.0.0.1:{target.sockets[0].getsockname()[1]}", RTT_S)
    await made.start()
    yield made
    await made.stop()


async def test_a_round_trip_takes_its_time(link: CellLink) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(link.url))
    began_s = time.monotonic()
    writer.write(b"first")
    assert await reader.readexactly(5) == b"first"
    assert 2 * RTT_S <= time.monotonic() - began_s < 2 * RTT_S + 0.2, "a new connection's handshake is one more"
    began_s = time.monotonic()
    for number in range(100):
        writer.write(b"%03d" % number)
        await asyncio.sleep(0)
    assert await reader.readexactly(300) == b"".join(b"%03d" % number for number in range(100))
    assert RTT_S <= time.monotonic() - began_s < RTT_S + 0.2
    writer.write_eof()
    assert await reader.read() == b"", "its end crosses, too"
    await asyncio.sleep(4 * RTT_S)
    assert not link.open, "nothing more in either direction"
    writer.close()


async def test_what_meets_a_cut_link_arrives_when_it_heals(link: CellLink) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(link.url))
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    writer.write(b"b")
    link.cut()
    writer.write(b"c")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(1), 4 * RTT_S)
    link.heal()
    assert await asyncio.wait_for(reader.readexactly(2), 2) == b"bc"
    writer.close()


async def test_a_target_that_is_gone_resets(link: CellLink, target: asyncio.Server) -> None:
    target.close()
    began_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(link.url))
    writer.write(b"x")
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    assert time.monotonic() - began_s >= RTT_S
    writer.close()


async def test_a_connection_that_breaks_there_breaks_here() -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"half")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    server = await asyncio.start_server(broken, "127.0.0.1", 0)
    link = CellLink("eu", "us", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", RTT_S)
    await link.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(link.url))
    writer.write(b"x")
    assert await reader.readexactly(4) == b"half"
    assert await reader.read() == b""
    writer.close()
    await link.stop()
    server.close()


async def test_hand_overs_are_noticed(link: CellLink) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(link.url))
    writer.write(b"POST /raylane/peers/digest HTTP/1.1\r\n")
    await asyncio.sleep(2 * RTT_S)
    writer.write(b"POST /raylane/peers/hop HTTP/1.1\r\n")
    await asyncio.sleep(2 * RTT_S)
    assert len(link.hops_s) == 1
    writer.close()


async def test_links_are_of_pairs_and_heal_together(target: asyncio.Server) -> None:
    url = f"http://127.0.0.1:{target.sockets[0].getsockname()[1]}"
    trips = {frozenset(("eu", "us")): 0.04, frozenset(("eu", "ap")): 0.08, frozenset(("us", "ap")): 0.06}
    async with CellLinks(
        dict.fromkeys(("eu", "us", "ap"), url), lambda one, other: trips[frozenset((one, other))]
    ) as links:
        assert len(links.between) == 6
        assert len({link.url for link in links.between.values()}) == 6
        chosen = links.of("eu", ("us", "ap"))
        assert {(link.source, link.target) for link in chosen} == {
            ("eu", "us"),
            ("us", "eu"),
            ("eu", "ap"),
            ("ap", "eu"),
        }
        for link in chosen:
            link.cut()
            link.rtt_s += 1
        links.heal()
        assert not any(link.is_cut for link in links.between.values())
        assert links.between["eu", "ap"].rtt_s == 0.08


def test_other_event_loops_have_other_transports() -> None:
    async def cross() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        link = CellLink("eu", "us", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", RTT_S)
        await link.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(link.url))
        writer.write(b"there and back")
        answer = await asyncio.wait_for(reader.readexactly(14), 5)
        writer.close()
        await link.stop()
        server.close()
        return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(cross()) == b"there and back"
