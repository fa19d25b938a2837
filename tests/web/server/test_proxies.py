"""Which peers may name the client of a request, and whom they can name."""

import pytest

from ductile.web.server.proxies import trusted_proxies

PROXIES = trusted_proxies(("127.0.0.1", "10.0.0.0/8", "2001:db8::/32"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["6.6.6.6, 203.0.113.9, 10.1.2.3"], "203.0.113.9"),
        ("127.0.0.1", ["6.6.6.6", "203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["::ffff:203.0.113.9"], "203.0.113.9"),
        ("2001:db8::1", ["2001:4860::8"], "2001:4860::8"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["10.1.2.3"], "127.0.0.1"),
        ("127.0.0.1", ["6.6.6.6, unix"], "127.0.0.1"),
        ("127.0.0.1", ["6.6.6.6, unknown, 10.1.2.3"], "127.0.0.1"),
        ("203.0.113.1", ["6.6.6.6"], "203.0.113.1"),
        ("unix", ["6.6.6.6"], "unix"),
    ],
)
def test_the_client_is_the_last_address_that_no_trusted_proxy_has(peer: str, forwarded: list[str], client: str) -> None:
    """What stands left of it may be invented by the client; what is not an address names nobody."""
    assert PROXIES.client_of(peer, forwarded) == client
