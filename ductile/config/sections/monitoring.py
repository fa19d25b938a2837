"""The sections that report problems to a person or to another system: `notify`, `heartbeat`."""

from datetime import timedelta
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from attrs import frozen

from ductile.core.formats.yaml_fields import Name, Span, option
from ductile.core.secret import Secret

NotifySignal: TypeAlias = Literal["run.failed", "breaker.opened", "schedule.late", "queue.stuck", "service.recovered"]
ALL_SIGNALS: tuple[NotifySignal, ...] = (
    "run.failed",
    "breaker.opened",
    "schedule.late",
    "queue.stuck",
    "service.recovered",
)


@frozen(kw_only=True)
class Notify:
    """`notify`: Messages about problems, sent by a plugin such as the bundled `notify`."""

    to: Name = option("plugin or alias whose `handle` command sends each message")
    on: tuple[NotifySignal, ...] = option("signals to send", default=ALL_SIGNALS)
    every: Span = option(
        "one message per signal and pipeline or plugin in this interval; the others are counted in a summary",
        default=timedelta(minutes=5),
    )
    queue_stuck_after: Span = option(
        "how long the oldest job may be ready without starting before `queue.stuck`", default=timedelta(minutes=15)
    )


@frozen(kw_only=True)
class Heartbeat:
    """`heartbeat`: Requests to a monitor while the service is healthy. The monitor reports when they stop."""

    url: Secret = option("http:// or https:// URL to request, preferably as ${NAME}; it is masked in views and logs")
    interval: Span = option("time between two requests", default=timedelta(minutes=1))
    timeout: Span = option("maximum time for one request", default=timedelta(seconds=10))
    method: Literal["GET", "HEAD", "POST"] = option("HTTP method", default="GET")


def is_request_url(text: str) -> bool:
    """True if a request can be sent to this URL: http or https, a host, and neither user name nor fragment."""
    try:
        parts = urlsplit(text)
        is_plain = text.isascii() and text.isprintable() and " " not in text
        is_addressed = bool(parts.hostname) and parts.username is None and not parts.fragment and parts.port != 0
        return is_plain and is_addressed and parts.scheme in ("http", "https")
    except ValueError:
        return False
