"""What happens, followed from the command line while a real service runs, stops and starts again."""

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

from tests.e2e.furnished import Door
from tests.e2e.service import PATIENCE, TOKEN, Home, Service
from tests.e2e.terminal import Terminal

Start = Callable[..., Service]
OK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'
SAYS_NO = r"""#!/bin/sh
cat >/dev/null
printf 'one\ntwo\nthree\n' >&2
echo '{"status": "error", "error": "says no", "retry": false}'
"""
OTHER = "another-token-0123456789abcdef"
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


@define(eq=False)
class Follow:
    """`ductile ARGS` as a process whose lines are heard as they come."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(factory=list)
    notes: list[str] = field(factory=list)
    _heard: threading.Condition = field(factory=threading.Condition)
    _ended: int = 0

    def __attrs_post_init__(self) -> None:
        for stream, kept in ((self.process.stdout, self.lines), (self.process.stderr, self.notes)):
            threading.Thread(target=self._listen, args=(stream, kept), daemon=True).start()

    def _listen(self, stream: Any, kept: list[str]) -> None:
        with stream:
            for line in stream:
                with self._heard:
                    kept.append(line.rstrip("\n"))
                    self._heard.notify_all()
        with self._heard:
            self._ended += 1
            self._heard.notify_all()

    def until(self, fact: Callable[["Follow"], Any], what: str) -> None:
        with self._heard:
            done = self._heard.wait_for(lambda: fact(self) or self._ended == 2, PATIENCE)
        assert done, f"{what}: not within {PATIENCE} s: {self.notes} {self.lines[-5:]}"
        assert fact(self), f"{what}: it ended before: {self.notes} {self.lines[-5:]}"

    def hears(self, *words: str) -> None:
        """Until one line has all the words."""
        self.until(lambda heard: any(all(word in line for word in words) for line in heard.lines), f"a line {words}")

    def is_told(self, words: str, times: int = 1) -> None:
        self.until(lambda heard: sum(words in note for note in heard.notes) >= times, f"the note {words!r}")

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.until(lambda heard: heard._ended == 2, "the end of both streams")
        return code


@pytest.fixture
def follow() -> Iterator[Callable[..., Follow]]:
    """Starts `ductile ARGS`, as often as wanted."""
    started: list[Follow] = []

    def one_more(*args: str | Path) -> Follow:
        command = [sys.executable, "-m", "ductile", *map(str, args)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(Follow(process))
        return started[-1]

    yield one_more
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts `ductile ARGS` in a terminal, as often as wanted."""
    started: list[Terminal] = []

    def one_more(*args: str | Path, **options: Any) -> Terminal:
        started.append(Terminal.run(*args, **options))
        return started[-1]

    yield one_more
    for each in started:
        each.close()


# ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["drained", "killed"])
def test_logs_follow_over_restarts_and_tell_every_event_once(
    home: Home, start: Start, follow: Callable[..., Follow], end: str
) -> None:
    """What happened before, while nobody followed, and after: the whole journal, in order, without repetition."""
    home.plugin("ok", OK)
    service = start()
    service.run("ok")
    logs = follow("logs", "--follow", "--json", "--level", "debug", "--config", home.path)
    for _ in range(3):
        job = service.run("ok")
        logs.hears("job.completed", job["job_id"])
        if end == "killed":
            service.kill()
        else:
            service.stop()
        logs.until(lambda heard: any("waiting for the service" in note for note in heard.notes), "the loss")
        service = start()
        while_away = service.run("ok")
        logs.hears("job.completed", while_away["job_id"])
    code = logs.stop()

    told = [(event["data"]["seq"], event["event"]) for event in logs.events]
    assert len(told) == len(set(told))
    rows = list(dict.fromkeys(seq for seq, _ in told))
    assert rows == [row["seq"] for row in home.rows("SELECT seq FROM journal ORDER BY seq")]
    assert code == 130
    assert sum("reconnected" in note for note in logs.notes) == 3
    assert not any("Traceback" in note for note in logs.notes)


def test_logs_can_be_followed_before_there_is_a_service(
    home: Home, start: Start, follow: Callable[..., Follow]
) -> None:
    """Who waits for the first start misses nothing of it."""
    home.plugin("ok", OK)
    logs = follow("logs", "--follow", "--json", "--config", home.path)
    logs.is_told("waiting for the service")
    job = start().run("ok")
    logs.hears("job.completed", job["job_id"])

    assert [event["event"] for event in logs.events] == ["job.enqueued", "job.started", "job.completed"]
    assert logs.stop(signal.SIGTERM) == 143


def test_logs_of_one_plugin_and_level_leave_out_the_rest(
    home: Home, start: Start, follow: Callable[..., Follow]
) -> None:
    """The past and what happens are filtered alike; over TCP as over the socket."""
    home.plugin("ok", OK)
    home.plugin("bad", SAYS_NO)
    service = start()
    service.run("bad")
    here = follow("logs", "bad", "--level", "error", "--follow", "--config", home.path)
    here.hears("job.failed", "says no")
    there = follow("logs", "bad", "-f", "--api-url", service.url, "--api-key", TOKEN, "--json", "--level", "error")
    there.hears("job.failed", "says no")
    service.run("ok")
    last = service.run("bad")["job_id"]
    there.hears("job.failed", last)
    here.hears("job.failed", last)
    here.stop()
    there.stop()
    once = follow("logs", "bad", "--level", "error", "--limit", "1", "--api-url", service.url, "--api-key", TOKEN)
    once.hears("job.failed", last)
    assert once.process.wait(PATIENCE) == 0
    assert len(once.lines) == 1

    assert len(there.lines) == 2
    assert {event["event"] for event in there.events} == {"job.failed"}
    assert all("  error  job.failed  bad.poll  " in line for line in here.lines)


def test_logs_can_have_the_last_words_of_failed_attempts(
    home: Home, start: Start, follow: Callable[..., Follow]
) -> None:
    """From the ledger, as it happens, and from another machine alike."""
    home.plugin("bad", SAYS_NO)
    service = start()
    service.run("bad")
    here = follow("logs", "--follow", "--stderr", "2", "--config", home.path)
    here.hears("| three")
    service.run("bad")
    here.until(lambda heard: sum("| three" in line for line in heard.lines) == 2, "the second")
    here.stop()
    there = follow("logs", "--stderr", "2", "--level", "error", "--json", "--api-url", service.url, "--api-key", TOKEN)
    there.until(lambda heard: heard._ended == 2, "the end")

    after = here.lines.index(next(line for line in here.lines if "job.failed" in line))
    assert here.lines[after + 1 : after + 3] == ["    | two", "    | three"]
    assert not any("| one" in line for line in here.lines)
    assert [event["stderr"] for event in there.events] == ["two\nthree"] * 2


def test_logs_with_a_token_that_may_not_listen_end_with_the_reason(
    home: Home, start: Start, follow: Callable[..., Follow]
) -> None:
    """No waiting helps against it."""
    service = start()
    logs = follow("logs", "--follow", "--api-url", service.url, "--api-key", "wrong")

    assert logs.process.wait(PATIENCE) == 77
    logs.is_told("error:")
    assert not any("Traceback" in note for note in logs.notes)


def test_a_reader_that_leaves_ends_the_following_quietly(home: Home, start: Start) -> None:
    """As with `| head`, and without waiting for the next event: no traceback, exit 0."""
    home.plugin("ok", OK)
    service = start()
    command = [sys.executable, "-m", "ductile", "logs", "--follow", "--config", str(home.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    service.run("ok")
    assert process.stdout.readline()
    process.stdout.close()

    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


# ── job list --follow ───────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_followed_from_state_to_state_over_a_restart(
    home: Home, start: Start, follow: Callable[..., Follow]
) -> None:
    """Each change once; what was asked for by whom is known also of a job that is older than the following."""
    home.plugin("ok", OK)
    door = Door.make(home)
    service = start()
    old = service.post("door")
    door.reached()
    jobs = follow("job", "list", "--follow", "--json", "--submitted-by", "api", "--config", home.path)
    failed = follow("job", "list", "-f", "--status", "error", "--config", home.path)
    for _ in range(100):  # until it surely listens
        first = service.run("ok")["job_id"]
        if any(first in line for line in jobs.lines):
            break
    jobs.hears(first, '"succeeded"')
    door.let_through()
    jobs.hears(old, '"succeeded"')
    service.stop()
    jobs.is_told("waiting for the service")
    service = start()
    last = service.run("ok")["job_id"]
    jobs.hears(last, '"succeeded"')
    jobs.stop()
    failed.stop()
    door.close()

    changes = [(change["job_id"], change.get("from"), change["to"]) for change in jobs.events]
    assert len(changes) == len(set(changes))
    assert [change[1:] for change in changes if change[0] == last] == [
        (None, "queued"),
        ("queued", "running"),
        ("running", "succeeded"),
    ]
    (ended,) = [change for change in jobs.events if change["job_id"] == old]
    assert (ended["submitted_by"], ended["command"]) == ("api", "poll")
    assert failed.lines == []


# ── system watch ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_watch_shows_the_service_and_survives_its_restart(
    home: Home, start: Start, terminal: Callable[..., Terminal]
) -> None:
    """A running job with its time, a schedule, a breaker; then the service goes, comes back, and so do its events."""
    home.plugin("ok", OK)
    home.plugin("bad", SAYS_NO)
    door = Door.make(home)
    home.add(
        "plugins:\n"
        "  ok: {schedules: [{id: rarely, every: 6h}]}\n"
        "  bad: {circuit_breaker: {threshold: 1}, retry: {max_attempts: 1}, schedules: [{id: once, every: 7h}]}\n"
        "  door: {timeouts: {poll: 10m}}\n"
    )
    service = start()
    watch = terminal("system", "watch", "--config", home.path)
    watch.sees("ok  ductile", "queue  waiting 0  running 0", "ok/rarely  every 6h  in 5h59m", "no running jobs")
    watch.sees("bad.poll  open  failures 1  next probe in")
    service.post("door")
    door.reached()
    watch.sees("running 1", "door.poll", " of 10m00s", "░", "job.started")
    service.ask("POST", "/plugins/ok/pause", {"reason": "for a test"})
    watch.sees("paused  ok (for a test)")
    service.signal(signal.SIGTERM)
    watch.sees("not running, waiting…", "door.poll")
    door.let_through()
    assert service.wait() == 0
    door.close()
    service = start()
    watch.sees("ok  ductile", "running 0", "job.completed")
    watch.wait_for(lambda text: "not running" not in text, "the new service")
    service.run("bad")
    watch.sees("job.failed  bad.poll")
    watch.press("q")

    assert watch.wait() == 0
    watch.wait_for(lambda _: watch.written.endswith(LEAVE), "the ordinary screen")
    assert watch.written.count(ENTER) == watch.written.count(LEAVE) == 1
    assert watch.settings() == watch.before


def test_watch_fits_whatever_size_the_terminal_gets(
    home: Home, start: Start, terminal: Callable[..., Terminal]
) -> None:
    """Small, tiny, large again; each time the whole picture is drawn anew."""
    home.plugin("ok", OK)
    start().run("ok")
    watch = terminal("system", "watch", "--config", home.path, width=100, height=30)
    watch.sees("queue  waiting 0", "RUNNING 0", "EVENTS", "job.completed")
    watch.resize(40, 10)
    watch.sees("ok  ductile", "queue  waiting 0", "…", "EVENTS")
    watch.resize(12, 2)
    watch.sees("ok  ductile", "queue")
    watch.resize(120, 40)
    watch.sees("queue  waiting 0  running 0  delayed 0  dead 0", "RUNNING 0", "job.completed  ok.poll")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_watch_gives_the_terminal_back_when_it_is_ended(
    home: Home, start: Start, terminal: Callable[..., Terminal], number: int, code: int
) -> None:
    """By Ctrl-C as by SIGTERM: the ordinary screen, the cursor, the settings of the line."""
    start()
    watch = terminal("system", "watch", "--config", home.path, environ={"NO_COLOR": "1"})
    watch.sees("ok  ductile")
    if number == signal.SIGINT:
        watch.press("\x03")
    else:
        watch.process.send_signal(number)

    assert watch.wait() == code
    watch.wait_for(lambda _: watch.written.endswith(LEAVE), "the ordinary screen")
    assert b"\x1b[?25h" in watch.written
    assert watch.settings() == watch.before
    assert b"\x1b[3" not in watch.written, "a colour, although NO_COLOR is set"
    assert b"Traceback" not in watch.written


def test_watch_gives_the_terminal_back_before_it_tells_an_error(
    home: Home, start: Start, terminal: Callable[..., Terminal]
) -> None:
    """That a token may not look any more is read on the ordinary screen."""
    text = (home.path / "config.yaml").read_text()
    home.add(f'      - {{name: other, token: {OTHER}, scopes: ["*"]}}\n')
    service = start()
    watch = terminal("system", "watch", "--api-url", service.url, "--api-key", OTHER)
    watch.sees("ok  ductile")
    home.write("config.yaml", text)
    service.signal(signal.SIGHUP)

    assert watch.wait() == 77
    watch.sees("error:")
    assert watch.written.rindex(LEAVE) < watch.written.rindex(b"error:")
    assert watch.settings() == watch.before


def test_watch_once_prints_one_picture(home: Home, start: Start, follow: Callable[..., Follow]) -> None:
    """As text into a pipe, or as JSON."""
    start()
    text = follow("system", "watch", "--once", "--config", home.path)
    data = follow("system", "watch", "--once", "--json", "--config", home.path)

    assert text.process.wait(PATIENCE) == 0
    text.hears("ok  ductile")
    assert data.process.wait(PATIENCE) == 0
    data.until(lambda heard: heard._ended == 2, "the end")
    assert json.loads("\n".join(data.lines))["health"]["status"] == "ok"
    assert not any("\x1b" in line for line in text.lines)
