"""Rules for configuration values that `core.formats.yaml_fields` does not define: addresses, headers, names.

Each rule is an annotation for the keys in `settings`.
"""

import os
import re
from typing import Annotated

from ductile.core.formats.yaml_fields import COMMAND, TextType, ValueRule, pattern
from ductile.core.units import parse_size

_HOST_AND_PORT = "(?:[A-Za-z0-9._-]*|\\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\\]):([0-9]{1,5})"


def _is_listen_address(text: str) -> bool:
    match = re.fullmatch(_HOST_AND_PORT, text, re.ASCII)
    return match is not None and int(match[1]) <= 65535


def _is_network(text: str) -> bool:
    from ipaddress import ip_network  # not needed without trusted proxies

    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


NO_NUL = ValueRule(lambda text: "\0" not in text, "text without NUL")
BYTES = ValueRule(lambda size: size >= 1, "1 byte or more", {"minimum": 1})
URL_PATH = pattern("/[^\\s?#\\x00-\\x1f\\x7f]*", "a path that starts with '/' and contains no spaces, '?' or '#'")
BASE_URL = pattern(
    "https?://[^\\s/?#@\\x00-\\x1f\\x7f]+[^\\s?#@\\x00-\\x1f\\x7f]*",
    "an absolute http:// or https:// URL without a user name",
)
HEADER = pattern("[!#$%&'*+.^_`|~0-9A-Za-z-]+", "an HTTP header name")
ENV_NAME = pattern("[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")
ENV_NAME_OR_ALL = pattern("[A-Za-z_][A-Za-z0-9_]*|\\*", "the name of an environment variable, or '*' for all")
ONE_OR_TWO = ValueRule(
    lambda names: 1 <= len(names) <= 2, "one name, or two names during rotation", {"minItems": 1, "maxItems": 2}
)
CLOCK_TIME = pattern("(?:[01]?[0-9]|2[0-3]):[0-5][0-9]", "a time of day such as 08:30")
LISTEN = ValueRule(
    _is_listen_address,
    "host:port, such as 127.0.0.1:8080 or [::1]:8080, with a port up to 65535",
    {"pattern": f"^{_HOST_AND_PORT}$"},
)
NETWORK = ValueRule(_is_network, "an address or network, such as 10.0.0.0/8 or ::1", {"type": "string"})

Header = Annotated[str, HEADER]
CommandName = Annotated[str, COMMAND]
SIZE_TEXT = TextType(parse_size, {"type": ["string", "integer"]})
Size = Annotated[int, SIZE_TEXT, BYTES]


def default_workers() -> int:
    """Return the number of CPU cores, minus one for the service itself."""
    return max(1, (os.cpu_count() or 2) - 1)
