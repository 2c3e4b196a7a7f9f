"""How long a client follows a record that has become stale: measured with a stub resolver against a name server that
checks health as `terraform/modules/dns` has Route 53 do, thirty times as fast."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import ThreadingHTTPServer

import pytest

from tests.http_server import Handler
from tests.infra.stub_dns import StubDns, asks_until_served
from tests.source import ROOT

FASTER = 30
NEAR, FAR = "127.0.0.2", "127.0.0.3"
NAME = "llm.example.org."


def stated(key: str) -> int:
    """A number of seconds, or of checks, in the module."""
    text = (ROOT / "terraform" / "modules" / "dns" / "main.tf").read_text(encoding="utf-8")
    found = re.search(rf"^  {key}\s+= (\d+)$", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


INTERVAL_S, FAILURES, TTL_S = stated("check_interval_s"), stated("failures"), stated("ttl_s")


class Ready(Handler):
    def do_GET(self) -> None:
        self.answer(200, b"{}")


@contextmanager
def region(address: str, port: int) -> Iterator[ThreadingHTTPServer]:
    """A region's endpoint, of which only `/ready` matters here."""
    with ThreadingHTTPServer((address, port), Ready) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def stale_s(late_s: float, cached: bool) -> tuple[float, int]:
    """Seconds for which a client follows the record of a region that is gone, and its requests that failed meanwhile.
    The record was fetched `late_s` before the region went."""
    with ExitStack() as ends:
        near = ends.enter_context(ExitStack())
        server = near.enter_context(region(NEAR, 0))
        port = server.server_port
        ends.enter_context(region(FAR, port))
        names = ends.enter_context(StubDns(NAME, (NEAR, FAR), port, TTL_S // FASTER, INTERVAL_S / FASTER, FAILURES))
        resolver = names.resolver(cached)
        assert resolver.resolve(NAME, "A")[0].to_text() == NEAR
        time.sleep(late_s)
        near.close()
        found = asks_until_served(resolver, NAME, port, within_s=10.0)
        assert resolver.resolve(NAME, "A")[0].to_text() == FAR
        return found


@pytest.mark.long  # a quarter of a second is the machine's: too little beside other tests
def test_a_client_follows_a_stale_record_no_longer_than_the_checks_and_the_ttl(
    record_property: Callable[[str, object], None],
) -> None:
    """The record may be fetched last just before the checks have failed: the sum of both is the bound."""
    found = [stale_s(late_s, cached=True) for late_s in (0.05, 0.4, 0.75, 1.1, 1.45, 1.8)]
    spans_s = [FASTER * span_s for span_s, _ in found]
    record_property("stale for, s", [round(one) for one in spans_s])
    print(
        f"followed a stale record for {min(spans_s):.0f} to {max(spans_s):.0f} s, {found} at {FASTER} times the speed"
    )
    bound_s = INTERVAL_S * FAILURES + TTL_S
    assert max(spans_s) <= bound_s + FASTER * 0.25, "a quarter of a second for the machine"
    assert max(spans_s) >= INTERVAL_S * FAILURES, "longer than the checks alone take: a record was stale"
    assert all(failed > 0 for _, failed in found)


@pytest.mark.long
def test_without_a_cache_only_the_checks_take_time() -> None:
    span_s, _ = stale_s(0.1, cached=False)
    assert INTERVAL_S * (FAILURES - 1) - 1 <= FASTER * span_s <= INTERVAL_S * FAILURES + FASTER * 0.25
