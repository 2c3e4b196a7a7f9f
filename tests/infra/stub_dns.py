"""A name server for tests, which does what Route 53 does by `terraform/modules/dns`: one name, an address for each
region, and health checks that decide which of them is answered.

Built on dnspython. The clients here are dnspython's stub resolver, too, with a cache that obeys the TTL, as a
machine's own resolver does.
"""

import socket
import threading
import time
from collections.abc import Sequence

import dns.flags
import dns.message
import dns.resolver
import dns.rrset
import requests


class StubDns:
    """Answers `name` with the first of `addresses` that is healthy (with the first one, where none is). An address is
    unhealthy after `failures` checks of its `/ready?model=*` in a row have failed, one each `interval_s`."""

    def __init__(
        self, name: str, addresses: Sequence[str], port: int, ttl_s: int, interval_s: float, failures: int
    ) -> None:
        self.name, self.addresses, self.ttl_s = name, tuple(addresses), ttl_s
        self.questions = 0
        self._port, self._interval_s, self._failures = port, interval_s, failures
        self._failed = dict.fromkeys(addresses, 0)
        self._over = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self._threads = [threading.Thread(target=self._answer)]
        self._threads += [threading.Thread(target=self._check, args=(one,)) for one in addresses]

    def __enter__(self) -> "StubDns":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()

    @property
    def healthy(self) -> str:
        return next((one for one in self.addresses if self._failed[one] < self._failures), self.addresses[0])

    def resolver(self, cached: bool = True) -> dns.resolver.Resolver:
        """A client's resolver that asks this server alone."""
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], self._socket.getsockname()[1]
        resolver.cache = dns.resolver.LRUCache() if cached else None
        return resolver

    def _answer(self) -> None:
        while not self._over.is_set():
            try:
                payload, asker = self._socket.recvfrom(4_096)
            except TimeoutError:
                continue
            question = dns.message.from_wire(payload)
            answer = dns.message.make_response(question)
            answer.flags |= dns.flags.AA
            answer.answer.append(dns.rrset.from_text(self.name, self.ttl_s, "IN", "A", self.healthy))
            self._socket.sendto(answer.to_wire(), asker)
            self.questions += 1

    def _check(self, address: str) -> None:
        while not self._over.wait(self._interval_s):
            try:
                ok = requests.get(f"http://{address}:{self._port}/ready?model=*", timeout=self._interval_s).ok
            except requests.RequestException:
                ok = False
            self._failed[address] = 0 if ok else self._failed[address] + 1


def asks_until_served(resolver: dns.resolver.Resolver, name: str, port: int, within_s: float) -> tuple[float, int]:
    """A client that resolves the name for each request, as one does whose connections were reset: seconds until one is
    served, and how many were not."""
    begun_s, failed = time.monotonic(), 0
    while time.monotonic() - begun_s < within_s:
        address = resolver.resolve(name, "A")[0].to_text()
        try:
            if requests.get(f"http://{address}:{port}/ready?model=*", timeout=0.5).ok:
                return time.monotonic() - begun_s, failed
        except requests.RequestException:
            failed += 1
        time.sleep(0.02)
    raise AssertionError(f"not served within {within_s} s")
