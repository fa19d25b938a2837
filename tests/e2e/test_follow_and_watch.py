"""`logs --follow`, `job list --follow` and `system watch` while a service runs, stops and starts again."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tests.e2e.sample_plugins import OK, BlockingPlugin
from tests.e2e.service import TOKEN, WAIT_SECONDS, Home, Start
from tests.e2e.terminal import Terminal

FAILING = r"""#!/bin/sh
cat >/dev/null
printf 'one\ntwo\nthree\n' >&2
echo '{"status": "error", "error": "refused", "retry": false}'
"""
OTHER = "another-token-0123456789abcdef"
ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@define(eq=False)
class FollowProcess:
    """A `ductile ARGS` process that collects its output lines as they arrive."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(factory=list)
    notes: list[str] = field(factory=list)
    _changed: threading.Condition = field(factory=threading.Condition)
    _ended: int = 0

    def __attrs_post_init__(self) -> None:
        for stream, collected in ((self.process.stdout, self.lines), (self.process.stderr, self.notes)):
            threading.Thread(target=self._collect, args=(stream, collected), daemon=True).start()

    def _collect(self, stream: Any, collected: list[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    collected.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended += 1
            self._changed.notify_all()

    def wait_until(self, condition: Callable[["FollowProcess"], Any], what: str) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: condition(self) or self._ended == 2, WAIT_SECONDS)
        assert done, f"{what}: not within {WAIT_SECONDS} s: {self.notes} {self.lines[-5:]}"
        assert condition(self), f"{what}: the process ended first: {self.notes} {self.lines[-5:]}"

    def wait_for_line(self, *words: str) -> None:
        """Wait until one line contains all of `words`."""
        self.wait_until(
            lambda output: any(all(word in line for word in words) for line in output.lines), f"a line {words}"
        )

    def wait_for_note(self, words: str, times: int = 1) -> None:
        self.wait_until(lambda output: sum(words in note for note in output.notes) >= times, f"the note {words!r}")

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(WAIT_SECONDS)
        self.wait_until(lambda output: output._ended == 2, "the end of both streams")
        return code


@pytest.fixture
def follow() -> Iterator[Callable[..., FollowProcess]]:
    """Return a function that starts `ductile ARGS`. Every process is killed at the end."""
    started: list[FollowProcess] = []

    def start_process(*args: str | Path) -> FollowProcess:
        command = [sys.executable, "-m", "ductile", *map(str, args)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(FollowProcess(process))
        return started[-1]

    yield start_process
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts `ductile ARGS` in a terminal. Every terminal is closed at the end."""
    started: list[Terminal] = []

    def start_process(*args: str | Path, **options: Any) -> Terminal:
        started.append(Terminal.run(*args, **options))
        return started[-1]

    yield start_process
    for each in started:
        each.close()


# ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stop_mode", ["drained", "killed"])
def test_followed_logs_report_every_event_once_across_restarts(
    home: Home, start: Start, follow: Callable[..., FollowProcess], stop_mode: str
) -> None:
    """Events before, during and after each restart arrive in the order of the journal."""
    home.plugin("ok", OK)
    service = start()
    service.run("ok")
    logs = follow("logs", "--follow", "--json", "--level", "debug", "--config", home.path)
    for _ in range(3):
        job = service.run("ok")
        logs.wait_for_line("job.completed", job["job_id"])
        if stop_mode == "killed":
            service.kill()
        else:
            service.stop()
        logs.wait_until(
            lambda output: any("waiting for the service" in note for note in output.notes), "the connection loss"
        )
        service = start()
        during_outage = service.run("ok")
        logs.wait_for_line("job.completed", during_outage["job_id"])
    code = logs.stop()

    reported = [(event["data"]["seq"], event["event"]) for event in logs.events]
    assert len(reported) == len(set(reported))
    rows = list(dict.fromkeys(seq for seq, _ in reported))
    assert rows == [row["seq"] for row in home.rows("SELECT seq FROM journal ORDER BY seq")]
    assert code == 130
    assert sum("reconnected" in note for note in logs.notes) == 3
    assert not any("Traceback" in note for note in logs.notes)


def test_logs_can_be_followed_before_the_first_start(
    home: Home, start: Start, follow: Callable[..., FollowProcess]
) -> None:
    """They have all events of the first start."""
    home.plugin("ok", OK)
    logs = follow("logs", "--follow", "--json", "--config", home.path)
    logs.wait_for_note("waiting for the service")
    job = start().run("ok")
    logs.wait_for_line("job.completed", job["job_id"])

    assert [event["event"] for event in logs.events] == [
        "system.started",
        "job.enqueued",
        "job.started",
        "job.completed",
    ]
    assert logs.stop(signal.SIGTERM) == 143


def test_followed_logs_are_filtered_by_plugin_and_level(
    home: Home, start: Start, follow: Callable[..., FollowProcess]
) -> None:
    """History and new events use the same filters, over TCP and over the local socket."""
    home.plugin("ok", OK)
    home.plugin("bad", FAILING)
    service = start()
    service.run("bad")
    local = follow("logs", "bad", "--level", "error", "--follow", "--config", home.path)
    local.wait_for_line("job.failed", "refused")
    remote = follow("logs", "bad", "-f", "--api-url", service.url, "--api-key", TOKEN, "--json", "--level", "error")
    remote.wait_for_line("job.failed", "refused")
    service.run("ok")
    last = service.run("bad")["job_id"]
    remote.wait_for_line("run.failed", last)
    local.wait_for_line("run.failed", last)
    local.stop()
    remote.stop()
    single = follow("logs", "bad", "--level", "error", "--limit", "1", "--api-url", service.url, "--api-key", TOKEN)
    single.wait_for_line("run.failed", last)
    assert single.process.wait(WAIT_SECONDS) == 0
    assert len(single.lines) == 1

    assert [event["event"] for event in remote.events] == ["job.failed", "run.failed"] * 2
    assert all(
        "  error  job.failed  bad.poll  " in line or "  error  run.failed  bad.poll  " in line for line in local.lines
    )


def test_logs_can_include_the_stderr_of_failed_attempts(
    home: Home, start: Start, follow: Callable[..., FollowProcess]
) -> None:
    """This works for history and for new events, over TCP and over the local socket."""
    home.plugin("bad", FAILING)
    service = start()
    service.run("bad")
    local = follow("logs", "--follow", "--stderr", "2", "--config", home.path)
    local.wait_for_line("| three")
    service.run("bad")
    local.wait_until(lambda output: sum("| three" in line for line in output.lines) == 2, "the second attempt")
    local.stop()
    remote = follow("logs", "--stderr", "2", "--level", "error", "--json", "--api-url", service.url, "--api-key", TOKEN)
    remote.wait_until(lambda output: output._ended == 2, "the end of both streams")

    after = local.lines.index(next(line for line in local.lines if "job.failed" in line))
    assert local.lines[after + 1 : after + 3] == ["    | two", "    | three"]
    assert not any("| one" in line for line in local.lines)
    failed = [event for event in remote.events if event["event"] == "job.failed"]
    assert [event["stderr"] for event in failed] == ["two\nthree"] * 2


def test_following_logs_with_an_invalid_token_exits_with_the_reason(
    home: Home, start: Start, follow: Callable[..., FollowProcess]
) -> None:
    """The command does not wait and reconnect."""
    service = start()
    logs = follow("logs", "--follow", "--api-url", service.url, "--api-key", "wrong")

    assert logs.process.wait(WAIT_SECONDS) == 77
    logs.wait_for_note("error:")
    assert not any("Traceback" in note for note in logs.notes)


def test_a_closed_output_pipe_ends_logs_follow(home: Home, start: Start) -> None:
    """As with `| head`: exit code 0, no traceback, and no wait for the next event."""
    home.plugin("ok", OK)
    service = start()
    command = [sys.executable, "-m", "ductile", "logs", "--follow", "--config", str(home.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    service.run("ok")
    assert process.stdout.readline()
    process.stdout.close()

    assert process.wait(WAIT_SECONDS) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


# ── job list --follow ───────────────────────────────────────────────────────────────────────────────────────────────


def test_followed_jobs_report_every_status_change_once_across_a_restart(
    home: Home, start: Start, blocking: BlockingPlugin, follow: Callable[..., FollowProcess]
) -> None:
    """Filters apply also to jobs that were created before the command started."""
    home.plugin("ok", OK)
    service = start()
    older = service.post("blocking")
    blocking.wait_until_started()
    jobs = follow("job", "list", "--follow", "--json", "--submitted-by", "api", "--config", home.path)
    failed = follow("job", "list", "-f", "--status", "error", "--config", home.path)
    for _ in range(100):  # until the subscription is active
        first = service.run("ok")["job_id"]
        if any(first in line for line in jobs.lines):
            break
    jobs.wait_for_line(first, '"succeeded"')
    blocking.release()
    jobs.wait_for_line(older, '"succeeded"')
    service.stop()
    jobs.wait_for_note("waiting for the service")
    service = start()
    last = service.run("ok")["job_id"]
    jobs.wait_for_line(last, '"succeeded"')
    jobs.stop()
    failed.stop()

    changes = [(change["job_id"], change.get("from"), change["to"]) for change in jobs.events]
    assert len(changes) == len(set(changes))
    assert [change[1:] for change in changes if change[0] == last] == [
        (None, "queued"),
        ("queued", "running"),
        ("running", "succeeded"),
    ]
    (ended,) = [change for change in jobs.events if change["job_id"] == older]
    assert (ended["submitted_by"], ended["command"]) == ("api", "poll")
    assert failed.lines == []


# ── system watch ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_watch_shows_the_service_and_reconnects_after_a_restart(
    home: Home, start: Start, blocking: BlockingPlugin, terminal: Callable[..., Terminal]
) -> None:
    """It shows running jobs, schedules, breakers and pauses, and resumes after the restart."""
    home.plugin("ok", OK)
    home.plugin("bad", FAILING)
    home.add(
        "plugins:\n"
        "  ok: {schedules: [{id: rarely, every: 6h}]}\n"
        "  bad: {circuit_breaker: {threshold: 1}, retry: {max_attempts: 1}, schedules: [{id: single, every: 7h}]}\n"
        "  blocking: {timeouts: {poll: 10m}}\n"
    )
    service = start()
    watch = terminal("system", "watch", "--config", home.path)
    watch.wait_for_text(
        "attention (breaker, failing)  ductile",
        "queue  waiting 0  running 0",
        "ok/rarely  every 6h  in 5h59m",
        "no running jobs",
    )
    watch.wait_for_text("bad.poll  open  failures 1  next probe in")
    service.post("blocking")
    blocking.wait_until_started()
    watch.wait_for_text("running 1", "blocking.poll", " of 10m00s", "░", "job.started")
    service.ask("POST", "/plugins/ok/pause", {"reason": "for a test"})
    watch.wait_for_text("paused  ok (for a test)")
    service.signal(signal.SIGTERM)
    watch.wait_for_text("not running, waiting…", "blocking.poll")
    blocking.release()
    assert service.wait() == 0
    service = start()
    watch.wait_for_text("attention (", "running 0", "job.completed")
    watch.wait_for(lambda text: "not running" not in text, "the new service")
    service.run("bad")
    watch.wait_for_text("job.failed  bad.poll")
    watch.press("q")

    assert watch.wait() == 0
    watch.wait_for(lambda _: watch.written.endswith(LEAVE_SCREEN), "the main screen")
    assert watch.written.count(ENTER_SCREEN) == watch.written.count(LEAVE_SCREEN) == 1
    assert watch.settings() == watch.before


def test_watch_adapts_to_the_terminal_size(home: Home, start: Start, terminal: Callable[..., Terminal]) -> None:
    """The whole screen is drawn again after each resize."""
    home.plugin("ok", OK)
    start().run("ok")
    watch = terminal("system", "watch", "--config", home.path, width=100, height=30)
    watch.wait_for_text("queue  waiting 0", "RUNNING 0", "EVENTS", "job.completed")
    watch.resize(40, 10)
    watch.wait_for_text("healthy  ductile", "queue  waiting 0", "…", "EVENTS")
    watch.resize(12, 2)
    watch.wait_for_text("healthy  du", "queue")
    watch.resize(120, 40)
    watch.wait_for_text("queue  waiting 0  running 0  delayed 0  dead 0", "RUNNING 0", "job.completed  ok.poll")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_watch_restores_the_terminal_when_it_is_stopped(
    home: Home, start: Start, terminal: Callable[..., Terminal], number: int, code: int
) -> None:
    """Ctrl-C and SIGTERM restore the main screen, the cursor and the terminal settings."""
    start()
    watch = terminal("system", "watch", "--config", home.path, environ={"NO_COLOR": "1"})
    watch.wait_for_text("healthy  ductile")
    if number == signal.SIGINT:
        watch.press("\x03")
    else:
        watch.process.send_signal(number)

    assert watch.wait() == code
    watch.wait_for(lambda _: watch.written.endswith(LEAVE_SCREEN), "the main screen")
    assert b"\x1b[?25h" in watch.written
    assert watch.settings() == watch.before
    assert b"\x1b[3" not in watch.written, "a color, although NO_COLOR is set"
    assert b"Traceback" not in watch.written


def test_watch_restores_the_terminal_before_it_prints_an_error(
    home: Home, start: Start, terminal: Callable[..., Terminal]
) -> None:
    """A revoked token is reported on the main screen."""
    text = (home.path / "config.yaml").read_text()
    home.add(f'      - {{name: other, token: {OTHER}, scopes: ["*"]}}\n')
    service = start()
    watch = terminal("system", "watch", "--api-url", service.url, "--api-key", OTHER)
    watch.wait_for_text("healthy  ductile")
    home.write("config.yaml", text)
    service.signal(signal.SIGHUP)

    assert watch.wait() == 77
    watch.wait_for_text("error:")
    assert watch.written.rindex(LEAVE_SCREEN) < watch.written.rindex(b"error:")
    assert watch.settings() == watch.before


def test_watch_once_prints_one_snapshot(home: Home, start: Start, follow: Callable[..., FollowProcess]) -> None:
    """The output is text or JSON."""
    start()
    text = follow("system", "watch", "--once", "--config", home.path)
    data = follow("system", "watch", "--once", "--json", "--config", home.path)

    assert text.process.wait(WAIT_SECONDS) == 0
    text.wait_for_line("healthy  ductile")
    assert data.process.wait(WAIT_SECONDS) == 0
    data.wait_until(lambda output: output._ended == 2, "the end of both streams")
    assert json.loads("\n".join(data.lines))["health"]["status"] == "ok"
    assert not any("\x1b" in line for line in text.lines)
