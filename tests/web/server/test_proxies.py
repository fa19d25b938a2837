"""The client address of forwarded requests."""

from ductile.web.server.proxies import parse_proxies

PROXIES = parse_proxies(("127.0.0.1", "10.0.0.0/8", "2001:db8::/32"))


CASES: list[tuple[str, list[str], str]] = [
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
]


def test_the_client_is_the_right_most_address_that_is_not_a_trusted_proxy() -> None:
    """The client controls the addresses to the left of it. A value that is not an address names no client."""
    wrong = [
        (peer, forwarded, PROXIES.client_of(peer, forwarded))
        for peer, forwarded, client in CASES
        if PROXIES.client_of(peer, forwarded) != client
    ]
    assert wrong == []
