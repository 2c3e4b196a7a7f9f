"""URLs of hosts and ports."""


def http_url(host: str, port: int, scheme: str = "http") -> str:
    """The URL of a server; an IPv6 address stands in brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
