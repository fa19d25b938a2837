"""Counters of the exchange since the start of the service. The number of topics that are labels is bounded."""

from collections import Counter

from attrs import define, field

from ductile.core.metrics import Histogram

MAX_TOPIC_LABELS = 200
OTHER_TOPICS = "other"
"""The label of all further topics."""


@define(eq=False)
class ExchangeMetrics:
    """What the exchange has done since the start of the service."""

    messages: Counter[str] = field(factory=Counter)
    """Published messages by topic."""
    claims: Counter[tuple[str, str]] = field(factory=Counter)
    """Ended claims by topic and end."""
    late: int = 0
    """Ends that came after their claim had ended."""
    claim_waits: Histogram = field(factory=Histogram)
    """Time from ready to claimed."""
    _topics: set[str] = field(factory=set)

    def count_message(self, topic: str) -> None:
        self.messages[self._label(topic)] += 1

    def count_end(self, topic: str, end: str) -> None:
        self.claims[self._label(topic), end] += 1

    def _label(self, topic: str) -> str:
        if topic not in self._topics and len(self._topics) >= MAX_TOPIC_LABELS:
            return OTHER_TOPICS
        self._topics.add(topic)
        return topic
