"""Notifications: one `handle` job of the plugin of `notify.to` per message. Pure.

A notification has its own tree. Its end fires no hooks and no signals, so that no message is about a message.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import evolve, frozen

from ductile.core.model import FollowUps, Note
from ductile.pipeline.run.events import Event, derived_id
from ductile.pipeline.run.ingress import create_handle_job
from ductile.pipeline.run.route import RoutingConfig
from ductile.pipeline.run.run_signals import NOTIFY

SENT, HELD, SKIPPED, TEST = "notification.sent", "notification.held", "notification.skipped", "notify.test"
SOURCE = "ductile"
"""The source of the events that plugins receive as messages."""


@frozen(kw_only=True)
class Notification:
    """A message about `subject`: what a signal reports, or a summary of `count` signals."""

    signal: str
    subject: str
    at: datetime
    payload: Mapping[str, Any]
    count: int = 1

    def journal_data(self) -> dict[str, Any]:
        """Return what the journal records about the message."""
        return {
            "signal": self.signal,
            "subject": self.subject,
            "count": self.count,
            "message": self.payload.get("message", ""),
        }


def notification_run(notification: Notification, to: str, routing: RoutingConfig, *, key: object) -> FollowUps:
    """Return the job that sends the message, and its journal entry. `key` distinguishes messages of one group."""
    event_id = derived_id("notification", notification.signal, notification.subject, key)
    event = Event(event_id, notification.signal, notification.payload, SOURCE, notification.at)
    run = create_handle_job(to, event, routing, submitted_by=NOTIFY)
    # Without `notify`: a hook that reports a failed message would use the plugin that failed.
    children = tuple(evolve(new, notify=False) for new in run.children)
    return evolve(run, children=children, notes=(Note(kind=SENT, data=notification.journal_data(), plugin=to),))


def create_test_notification(service: str, *, now: datetime) -> Notification:
    """Return the message of `ductile system notify test`."""
    message = f"Test message from {service}: notifications work."
    payload = {"title": f"Test message from {service}", "message": message, "text": message}
    return Notification(signal=TEST, subject="test", at=now, payload=payload)
