"""The sections that report problems to a person or to another system: `notify`."""

from datetime import timedelta
from typing import Literal, TypeAlias

from attrs import frozen

from ductile.core.formats.yaml_fields import Name, Span, option

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
