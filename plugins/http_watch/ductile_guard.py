"""Protection against server-side request forgery (SSRF). Standard library only. Requires ductile_plugin.py.

A URL has only one interpretation. A host name is resolved once, and each of its addresses must be public or allowed.
"""

from __future__ import annotations

import re
import socket

from ductile_plugin import Failed, Final, Misconfigured, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
    from typing import Any
    from urllib.parse import SplitResult

GUARD_KEYS = ("allowed_hosts", "denied_hosts", "allowed_networks")
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)")
_NOT_PUBLIC = (
    "0.0.0.0/8",  # this host
    "10.0.0.0/8",  # private
    "100.64.0.0/10",  # carrier-grade NAT
    "127.0.0.0/8",  # loopback
    "169.254.0.0/16",  # link-local, metadata services among them
    "168.63.129.16/32",  # metadata service of Azure
    "172.16.0.0/12",  # private
    "192.0.0.0/24",  # special purposes
    "192.0.2.0/24",  # examples
    "192.88.99.0/24",  # 6to4 relays
    "192.168.0.0/16",  # private
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # examples
    "203.0.113.0/24",  # examples
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, broadcast
    "::/3",  # loopback, mapped, NAT64 and reserved: public is 2000::/3 alone
    "4000::/2",  # reserved
    "8000::/1",  # private, link-local, multicast and reserved
    "2001::/23",  # Teredo and other special purposes
    "2001:db8::/32",  # examples
    "2002::/16",  # 6to4
    "3fff::/20",  # examples
)


class Refused(Final):
    """The guard does not allow this URL or address."""


class Guard:
    """Allows connections to public addresses and to those that the operator allows."""

    def __init__(
        self,
        *,
        allowed_hosts: Iterable[str] = (),
        denied_hosts: Iterable[str] = (),
        allowed_networks: Iterable[str] = (),
        trusted_urls: Iterable[str] = (),
    ) -> None:
        self.allowed_hosts = tuple(_pattern(host) for host in allowed_hosts)
        self.denied_hosts = tuple(_pattern(host) for host in denied_hosts)
        self.allowed_networks = tuple(_network(text) for text in allowed_networks)
        # URLs from the configuration are trusted, even if they are private. Redirects and URLs from events are not.
        self.trusted = {(host_of(parts), port_of(parts)) for parts in map(split_url, trusted_urls)}

    @classmethod
    def of(cls, config: Mapping[str, Any], *, trusted_urls: Iterable[str] = ()) -> Guard:
        """Create a guard from `allowed_hosts`, `denied_hosts` and `allowed_networks`. Raises Misconfigured."""
        lists = {key: setting(config, key, list, []) for key in GUARD_KEYS}
        for key, entries in lists.items():
            if not all(isinstance(entry, str) and entry.strip() for entry in entries):
                raise Misconfigured(f"{key} must be a list of strings")
        try:
            return cls(**lists, trusted_urls=trusted_urls)
        except Refused as refusal:
            raise Misconfigured(str(refusal)) from refusal

    def addresses(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """Resolve `host` once and return the result of getaddrinfo. Raises Refused unless every address is allowed."""
        if self.allowed_hosts and not any(_matches(host, pattern) for pattern in self.allowed_hosts):
            raise Refused(f"{host} is not in allowed_hosts")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            raise Failed(f"cannot resolve {host}: {getattr(error, 'strerror', None) or error}") from error
        addresses = [str(address[0]) for *_, address in found]
        if any(_matches(name, pattern) for name in (host, *addresses) for pattern in self.denied_hosts):
            raise Refused(f"{host} is in denied_hosts")
        for address in addresses:
            if (host, port) not in self.trusted and not self.allows(address):
                raise Refused(f"{host} resolves to {address}, which is not public; allowed_networks can allow it")
        return found

    def allows(self, text: str) -> bool:
        """Return True if the address is public or in an allowed network. IPv4-mapped IPv6 counts as IPv4."""
        from ipaddress import ip_address, ip_network

        address = ip_address(text.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if any(_is_in(address, network) for network in self.allowed_networks):
            return True
        return not any(_is_in(address, ip_network(network)) for network in _NOT_PUBLIC)


def split_url(url: str) -> SplitResult:
    """Split a URL, with path and query quoted. Raises Refused if its host could be interpreted in several ways."""
    from urllib.parse import quote, urlsplit

    if _UNSAFE.search(url):
        raise Refused("a URL must not contain spaces, control characters or backslashes")
    try:
        parts = urlsplit(url.encode().decode())  # raises for a lone surrogate
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise Refused(f"invalid URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise Refused("a URL must begin with http:// or https:// and a host")
    if "@" in parts.netloc:
        raise Refused("a URL must not contain a user name or password; send a header instead")
    if "%" in host:
        raise Refused("a host must not contain %")
    safe = "/:;=@&$,+!*'()~%[]?-._"
    return parts._replace(path=quote(parts.path or "/", safe), query=quote(parts.query, safe), fragment="")


def host_of(parts: SplitResult) -> str:
    """Return the host to resolve and to verify with TLS. Raises Refused for a number that is not plain IPv4."""
    return _canonical(parts.hostname or "")


def port_of(parts: SplitResult) -> int:
    return parts.port if parts.port is not None else {"http": 80, "https": 443}[parts.scheme]


def _canonical(name: str) -> str:
    host = name.lower().rstrip(".")
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError as error:
            raise Refused(f"{name[:80]!r} is not a valid host name") from error
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        from ipaddress import ip_address

        try:
            return str(ip_address(host))
        except ValueError as error:
            # Resolvers accept 0177.1, 0x7f000001 and 2130706433 as addresses, so they would bypass deny lists.
            raise Refused(f"{host[:80]} is not a valid address; write four decimal numbers") from error
    if not _HOST.fullmatch(host):
        raise Refused(f"{name[:80]!r} is not a valid host name")
    return host


def _pattern(text: str) -> str:
    return f"*.{_canonical(text[2:])}" if text.startswith("*.") else _canonical(text.strip("[]"))


def _matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _network(text: str) -> IPv4Network | IPv6Network:
    from ipaddress import ip_network

    try:
        return ip_network(text)
    except ValueError as error:
        raise Misconfigured(f"allowed_networks: {error}; write 10.0.0.0/8 or 127.0.0.1") from error


def _is_in(address: IPv4Address | IPv6Address, network: IPv4Network | IPv6Network) -> bool:
    return address.version == network.version and address in network
