"""Notifications: the first message of a group is sent at once, the others are counted in one summary."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from ductile.config.snapshot import Snapshot
from ductile.core.hub import CONFIGURATION, Hint, Hub
from ductile.engine.maintenance.notification_sender import NotificationSender, read_signals, send
from ductile.engine.scheduling.simulate import VirtualClock
from ductile.ledger.storage.async_ledger import open_ledger
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.tables import journal, notifications
from tests.e2e.sample_plugins import OK
from tests.e2e.service import Home
from tests.engine.builders import NOW, snapshot_of
from tests.engine.scheduler_service import open_log

CONFIG = "plugins: {tell: {notify_on_complete: true}}\nnotify: {to: tell, every: 5m}\n"


@define(eq=False)
class WatchedHub(Hub):
    """A hub that records what is watched."""

    topics: list[str] = field(factory=list)
    is_watched: trio.Event = field(factory=trio.Event)

    @contextmanager
    def watch(self, topic: str) -> Iterator[trio.MemoryReceiveChannel[Hint]]:
        self.topics.append(topic)
        with Hub.watch(self, topic) as hints:
            self.is_watched.set()
            yield hints


@define
class Outbox:
    """A ledger with the notifications of one configuration."""

    db: Any
    snapshot: Snapshot
    now: Any = field(default=NOW)

    def signal(self, kind: str = "run.failed", plugin: str = "echo", **data: Any) -> None:
        with transaction(self.db):
            journal.append(self.db, kind, now=self.now, plugin=plugin, job_id=data.pop("job_id", None), data=data)

    def round(self, after: timedelta = timedelta()) -> int:
        """Send what is due after this time; return the number of new jobs."""
        self.now += after
        config = self.snapshot.config.settings.notify
        assert config is not None
        with transaction(self.db):
            unread = read_signals(self.db, None)
            return send(self.db, unread=unread, snapshot=self.snapshot, config=config, now=self.now)

    def messages(self) -> list[dict[str, Any]]:
        rows = self.db.execute("SELECT payload FROM job_queue WHERE submitted_by = 'notify' ORDER BY seq")
        return [json.loads(row[0]) for row in rows]

    def kinds(self) -> list[str]:
        rows = self.db.execute("SELECT kind FROM journal WHERE kind LIKE 'notification.%' ORDER BY seq")
        return [row[0] for row in rows]


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    home = Home.make(tmp_path / "ductile")
    home.plugin("tell", OK)
    home.add(CONFIG)
    with closing(open_writer(tmp_path / "state.db")) as db:
        made = Outbox(db, snapshot_of(home))
        made.round()
        yield made


def test_the_first_message_of_a_group_is_sent_at_once(outbox: Outbox) -> None:
    """One group per signal and pipeline or plugin."""
    outbox.signal(pipeline="deploy", message="Pipeline deploy failed: step ship: broken.")
    outbox.signal(pipeline="backup", message="Pipeline backup failed.")
    outbox.signal(plugin="echo", message="echo.poll failed.")

    assert outbox.round() == 3
    first = outbox.messages()[0]
    assert (first["type"], first["source"]) == ("run.failed", "ductile")
    assert first["payload"]["message"] == "Pipeline deploy failed: step ship: broken."
    assert [each["payload"]["subject"] for each in outbox.messages()] == [
        *("pipeline deploy", "pipeline backup", "plugin echo")
    ]


def test_a_summary_of_one_signal_is_in_the_singular(outbox: Outbox) -> None:
    for number in range(2):
        outbox.signal(pipeline="deploy", message=f"failure {number}")
    outbox.round()
    outbox.round(timedelta(minutes=5))
    assert outbox.messages()[-1]["payload"]["title"] == "1 more failed run of pipeline deploy"


def test_the_others_are_counted_in_one_summary(outbox: Outbox) -> None:
    """It is sent when the interval has passed, also if a restart is in between, and begins a new interval."""
    for number in range(4):
        outbox.signal(pipeline="deploy", message=f"failure {number}")
    assert outbox.round() == 1
    assert outbox.round(timedelta(minutes=4)) == 0

    assert outbox.round(timedelta(minutes=1)) == 1
    summary = outbox.messages()[-1]["payload"]
    assert summary["count"] == 3
    assert summary["message"] == "3 more failed runs of pipeline deploy since 2026-02-08 09:30:00Z. The last: failure 3"
    outbox.signal(pipeline="deploy", message="one more")
    assert outbox.round() == 0
    assert outbox.kinds() == [
        *("notification.sent", "notification.held", "notification.held", "notification.held"),
        *("notification.sent", "notification.held"),
    ]


def test_a_group_that_was_quiet_for_an_interval_starts_again(outbox: Outbox) -> None:
    """The next signal is a first one."""
    outbox.signal(pipeline="deploy")
    assert outbox.round() == 1
    outbox.signal(pipeline="deploy")
    assert outbox.round(timedelta(minutes=5)) == 1
    assert "count" not in outbox.messages()[-1]["payload"]


def test_a_clock_that_is_set_back_holds_no_messages(outbox: Outbox) -> None:
    """A message that was sent in the future does not delay the next ones until then."""
    outbox.now += timedelta(days=365)
    outbox.signal(pipeline="deploy")
    outbox.signal(pipeline="backup")
    outbox.signal(pipeline="backup")
    assert outbox.round() == 2

    outbox.now -= timedelta(days=365)
    outbox.signal(pipeline="deploy")
    assert outbox.round() == 2
    assert outbox.kinds().count("notification.held") == 1


def test_nothing_is_sent_twice(outbox: Outbox) -> None:
    """The position in the journal is stored with the jobs."""
    outbox.signal(pipeline="deploy")
    assert [outbox.round(), outbox.round(), outbox.round(timedelta(hours=1))] == [1, 0, 0]


def test_signals_from_before_the_configuration_are_not_sent(outbox: Outbox) -> None:
    """`notify` that is removed and added again starts with new signals."""
    outbox.signal(pipeline="deploy")
    with transaction(outbox.db):
        notifications.forget(outbox.db)
    assert outbox.round() == 0
    assert outbox.messages() == []


def test_each_signal_has_a_readable_message(outbox: Outbox) -> None:
    """The plugin receives the signal as the type of the event."""
    outbox.signal("scheduler.circuit_state_changed", command="poll", state="open", failure_count=3)
    outbox.signal("scheduler.circuit_state_changed", command="poll", state="closed", failure_count=0)
    outbox.signal("schedule.late", schedule_id="daily", message="Schedule echo/daily: …")
    outbox.signal(
        "queue.stuck", job_id="job-1", message="The oldest ready job (echo.poll) has waited for 20m to start."
    )
    outbox.signal("system.recovered", jobs=2, since="2026-02-08T09:00:00.000000Z")

    outbox.round()

    sent = {each["type"]: (each["payload"]["subject"], each["payload"]["message"]) for each in outbox.messages()}
    assert sent == {
        "breaker.opened": (
            "plugin echo.poll",
            "The circuit breaker of echo.poll opened after 3 failures in a row. Its jobs wait.",
        ),
        "schedule.late": ("schedule echo/daily", "Schedule echo/daily: …"),
        "queue.stuck": ("the queue", "The oldest ready job (echo.poll) has waited for 20m to start."),
        "service.recovered": (
            "the service",
            "The service was killed after 2026-02-08 09:00:00Z and started again: 2 running jobs recovered.",
        ),
    }


def test_the_plugin_that_sends_messages_does_not_report_its_own_breaker(outbox: Outbox) -> None:
    """The journal has the reason. Its jobs fire no hooks, although it has `notify_on_complete`."""
    outbox.signal("scheduler.circuit_state_changed", "tell", command="handle", state="open", failure_count=3)
    outbox.signal(pipeline="deploy")
    assert outbox.round() == 1
    assert outbox.kinds() == ["notification.skipped", "notification.sent"]
    assert outbox.db.execute("SELECT SUM(notify) FROM job_queue").fetchone() == (0,)


def test_only_configured_signals_are_sent(outbox: Outbox) -> None:
    """`on` lists them."""
    text = (outbox.snapshot.config.directory / "config.yaml").read_text()
    home = Home(outbox.snapshot.config.directory)
    home.write("config.yaml", text.replace("every: 5m", "every: 5m, on: [schedule.late]"))
    outbox.snapshot = snapshot_of(home)
    outbox.signal(pipeline="deploy")
    outbox.signal("schedule.late", schedule_id="daily", message="late")
    assert outbox.round() == 1
    assert outbox.messages()[0]["type"] == "schedule.late"


@pytest.mark.trio
async def test_without_notify_only_a_reload_is_waited_for(tmp_path: Path) -> None:
    """A busy service without notifications does not read the ledger for each entry of the journal."""
    hub, snapshot = WatchedHub(), snapshot_of(Home.make(tmp_path / "ductile"))
    async with open_ledger(tmp_path / "state.db") as ledger, trio.open_nursery() as nursery:
        with open_log(tmp_path / "log") as log:
            sender = NotificationSender(ledger, hub, VirtualClock(NOW), log, lambda: snapshot)
            nursery.start_soon(sender.run)
            with trio.fail_after(30):
                await hub.is_watched.wait()
            nursery.cancel_scope.cancel()
    assert hub.topics == [CONFIGURATION]
