"""Trusted proxies: which peers may forward requests, and the client address of a forwarded request.

Pure. The operator lists the proxies in `webhooks.trusted_proxies`; from any other peer `X-Forwarded-For` is ignored.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from attrs import frozen


@frozen
class TrustedProxies:
    """The networks whose `X-Forwarded-For` header is trusted."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def includes(self, peer: str) -> bool:
        if not self.networks:
            return False
        address = parse_address(peer)
        return address is not None and any(address in network for network in self.networks)

    def client_of(self, peer: str, forwarded_for: Sequence[str]) -> str:
        """Return the right-most forwarded address that is not a trusted proxy, or `peer` if it is untrusted."""
        if not self.includes(peer):
            return peer
        for text in reversed([part.strip() for value in forwarded_for for part in value.split(",")]):
            address = parse_address(text)
            if address is None:  # addresses to the left of it cannot be trusted
                return peer
            if not self.includes(str(address)):
                return str(address)
        return peer


@lru_cache(maxsize=8)
def parse_proxies(texts: tuple[str, ...]) -> TrustedProxies:
    """Parse addresses and networks. Raises ValueError for an invalid one."""
    return TrustedProxies(tuple(_networks(texts)))


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _networks(texts: Iterable[str]) -> Iterable[IPv4Network | IPv6Network]:
    for text in texts:
        yield ip_network(text, strict=False)


NO_PROXIES = TrustedProxies()
