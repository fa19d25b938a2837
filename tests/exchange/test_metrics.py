"""The counters of the exchange."""

from ductile.exchange.metrics import MAX_TOPIC_LABELS, OTHER_TOPICS, ExchangeMetrics


def test_the_number_of_topic_labels_is_bounded() -> None:
    """Further topics are counted together. A topic that has a label keeps it."""
    metrics = ExchangeMetrics()
    for number in range(MAX_TOPIC_LABELS + 5):
        metrics.count_message(f"topic-{number}")
        metrics.count_end(f"topic-{number}", "completed")
    metrics.count_message("topic-0")

    assert len(metrics.messages) == MAX_TOPIC_LABELS + 1
    assert (metrics.messages[OTHER_TOPICS], metrics.claims[OTHER_TOPICS, "completed"]) == (5, 5)
    assert metrics.messages["topic-0"] == 2
