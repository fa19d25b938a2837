"""A service with hostile plugins, and checks that their jobs leave no resources behind."""

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, frozen

from ductile.core.formats import strict_yaml
from ductile.engine.process.procfs import JOB_MARKER
from tests.e2e.service import WAIT_SECONDS, Home, Service
from tests.zoo.catalogue import MIB, Expected, HostilePlugin

WORKERS = 2
"""The minimum: with one leaked slot, the next plugin and the job next to it cannot run at the same time."""
HANGING_TIMEOUT, USUAL_TIMEOUT = "1s", "60s"
SERVICE_KEYS = "  kill_grace: 300ms\n"
API_KEYS = "  max_body_size: 4MB\n"
GOOD = '#!/bin/sh\necho \'{"status":"ok","result":"good"}\'\n'
# Opening a FIFO waits for the other end: each of the two jobs succeeds only while the other runs.
WRITES = '#!/bin/sh\n: > "$FIFO"\necho \'{"status":"ok","result":"done"}\'\n'
READS = '#!/bin/sh\n: < "$FIFO"\necho \'{"status":"ok","result":"done"}\'\n'
EVENT_TYPES = ("zoo.seen", "zoo.counted", "zoo.large", "zoo.forged")
ROUTES_OF_LARGE = 10
MAX_MEMORY_GROWTH = 12 * MIB
LEDGER_FILE = re.compile(r"\.db(-wal|-shm)?$")
# The interpreter itself: a version manager in front of it would take longer than most of these plugins.
DIRECT = {"PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}"}


@frozen
class JobResult:
    """The result of one job, from the API and from the ledger."""

    job: Mapping[str, Any]
    attempts: list[dict[str, Any]]
    children: list[dict[str, Any]]
    state: str | None

    @property
    def error(self) -> str:
        return str(self.job.get("last_error") or "")


@frozen
class Resources:
    """Resources of an idle core: descriptors (0 where the host hides them), children, memory.

    Descriptors of the ledger do not count: requests at the same time open more readers, up to a fixed number.
    """

    descriptors: int
    children: tuple[str, ...]
    resident: int

    @classmethod
    def of(cls, pid: int) -> "Resources":
        return cls(_descriptors(pid), tuple(_children(pid)), _resident(pid))


@define
class ZooService:
    """A running service with hostile plugins, and its resources before their first job."""

    service: Service
    before: Resources
    workers: int

    @property
    def home(self) -> Home:
        return self.service.home

    @property
    def pid(self) -> int:
        return self.service.process.pid

    def start_job(self, plugin: HostilePlugin) -> str:
        """Trigger a plugin and return the id of its job."""
        padding = {"padding": "x" * plugin.request_bytes} if plugin.request_bytes else None
        return self.service.post(plugin_name(plugin), payload=padding)

    def wait_for_result(self, job_id: str) -> JobResult:
        """Wait for the end of the job and of its tree, and return the result."""
        job = self.service.job(job_id, wait="60s")
        assert poll(lambda: self.home.rows(TREE_IS_DONE, job_id), bool, timeout=2 * WAIT_SECONDS)
        return JobResult(
            job,
            self.home.rows("SELECT * FROM job_log WHERE job_id = ? ORDER BY attempt", job_id),
            self.home.rows("SELECT * FROM job_queue WHERE parent_job_id = ? ORDER BY seq", job_id),
            next((r["state"] for r in self.home.rows(STATE_OF, job["plugin"])), None),
        )

    def run(self, plugin: HostilePlugin) -> JobResult:
        """Trigger a plugin, wait for the end of its tree, and return the result."""
        return self.wait_for_result(self.start_job(plugin))

    def check_nothing_is_left_of(self, *job_ids: str) -> None:
        """Check that the jobs left no process, no zombie, no descriptor and no occupied slot."""
        assert processes_of(job_ids) == []
        assert Resources.of(self.pid).children == ()
        assert self.home.rows("SELECT id FROM job_queue WHERE status = 'running'") == []
        self.check_all_slots_are_free()
        # Connections of the last requests are still closing.
        now = poll(lambda: Resources.of(self.pid), lambda seen: seen.descriptors <= self.before.descriptors)
        assert now.descriptors <= self.before.descriptors

    def is_idle(self) -> bool:
        """Return whether no job is queued or running."""
        return self.home.rows("SELECT 1 FROM job_queue WHERE status IN ('queued', 'running') LIMIT 1") == []

    def check_all_slots_are_free(self) -> None:
        """Check that all workers can be busy at once, with pairs of jobs that wait for each other."""
        pairs = range(self.workers // 2)
        jobs = [self.service.post(f"{name}{pair}") for name in ("writes", "reads") for pair in pairs]
        assert [self.service.job(one, wait="60s")["status"] for one in jobs] == ["succeeded"] * len(jobs)

    def time_good_job(self) -> float:
        """Return the seconds from the request to the end of a job of a good plugin."""
        begun = time.monotonic()
        assert self.service.run("good")["status"] == "succeeded"
        return time.monotonic() - begun


FINAL_STATUSES = {
    Expected.SUCCESS: ("succeeded", ["succeeded"]),
    Expected.FINAL: ("failed", ["failed"]),
    Expected.RETRY: ("dead", ["failed", "failed"]),
    Expected.SPAWN_ERROR: ("dead", ["failed", "failed"]),
    Expected.TIMED_OUT: ("dead", ["timed_out", "timed_out"]),
}
"""The final status of a job with two attempts, and the statuses of its attempts."""
TREE_IS_DONE = "SELECT 1 FROM job_queue WHERE id = ? AND open_jobs = 0"
STATE_OF = "SELECT state FROM plugin_state WHERE plugin_name = ?"


def plugin_name(plugin: HostilePlugin) -> str:
    """Return the plugin name: that of its own folder if it has one, else an alias for each variant."""
    return str(plugin).replace("-", "_") if plugin.on_a_copy else f"zoo-{plugin}"


@contextmanager
def running_zoo(
    path: Path,
    plugins: Iterable[HostilePlugin],
    *,
    workers: int = WORKERS,
    service_keys: str = "",
    more: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[ZooService]:
    """Start a service with these plugins, run the first jobs, and stop it at the end of the block."""
    home = make_zoo_home(path, plugins, workers=workers, service_keys=service_keys, more=more)
    service = home.start(environ={**DIRECT, **(environ or {})})
    try:
        yield ZooService(service, _run_first_jobs(service), workers)
        assert service.stop() == 0
    finally:
        if service.process.poll() is None:
            service.kill()


def make_zoo_home(
    path: Path,
    plugins: Iterable[HostilePlugin],
    *,
    workers: int = WORKERS,
    service_keys: str = "",
    more: Mapping[str, Any] | None = None,
) -> Home:
    """Make the configuration of such a service."""
    home = Home.make(path, workers=workers, drain="1s")
    config = (home.path / "config.yaml").read_text()
    config = config.replace("service:\n", f"service:\n{SERVICE_KEYS}{service_keys}").replace(
        "api:\n", f"api:\n{API_KEYS}"
    )
    home.write("config.yaml", config)
    entries: dict[str, Any] = {"good": {}, "writes": {}, "reads": {}}
    for pair in range(workers // 2):
        # Each pair has a FIFO of its own: in a shared one, a job could be paired with that of another pair.
        fifo = path.parent / f"{path.name}-fifo{pair}"
        os.mkfifo(fifo)
        entries |= {f"{name}{pair}": {"uses": name, "env": {"FIFO": str(fifo)}} for name in ("writes", "reads")}
    for name, script in (("good", GOOD), ("writes", WRITES), ("reads", READS)):
        home.plugin(name, script)
    chosen = tuple(plugins)
    for plugin in chosen:
        entries[plugin_name(plugin)] = _entry(plugin)
        _add_plugin(home, plugin)
    home.add(strict_yaml.dump({"plugins": entries | dict(more or {}), "routes": list(_routes(chosen))}))
    return home


def _add_plugin(home: Home, plugin: HostilePlugin) -> None:
    """Copy the plugin. Plugins that change their folder, or are changed, have one each; others share one per plugin."""
    name = plugin_name(plugin) if plugin.on_a_copy else plugin.folder
    if (home.path / "plugins" / name).exists():
        return
    home.copy_plugin(plugin.path)
    if name != plugin.folder:
        folder = (home.path / "plugins" / plugin.folder).rename(home.path / "plugins" / name)
        manifest = folder / "manifest.yaml"
        manifest.write_text(manifest.read_text().replace(f"name: {plugin.folder}", f"name: {name}"))


def _entry(plugin: HostilePlugin) -> dict[str, Any]:
    hangs = plugin.expected in (Expected.TIMED_OUT, Expected.SUCCESS_OR_TIMED_OUT)
    timeout = HANGING_TIMEOUT if hangs else USUAL_TIMEOUT
    entry: dict[str, Any] = {
        "config": dict(plugin.config),
        "timeouts": {"poll": timeout, "handle": timeout},
        "retry": {"max_attempts": 2, "backoff_base": "10ms"},
    }
    if not plugin.on_a_copy:
        entry["uses"] = plugin.folder
    if plugin.limits is not None:
        names = {
            "memory": "address_space",
            "open_files": "open_files",
            "processes": "processes",
            "file_size": "file_size",
        }
        limits = {ours: getattr(plugin.limits, theirs) for ours, theirs in names.items()}
        entry["limits"] = {name: value for name, value in limits.items() if value is not None}
    return entry


def _routes(plugins: Iterable[HostilePlugin]) -> Iterator[dict[str, str]]:
    for plugin in plugins:
        for kind in EVENT_TYPES:
            for _ in range(ROUTES_OF_LARGE if kind == "zoo.large" else 1):
                yield {"from": plugin_name(plugin), "event_type": kind, "to": "good"}
        if plugin.id == "Z64":
            yield {"from": plugin_name(plugin), "event_type": "zoo.again", "to": plugin_name(plugin)}


def _run_first_jobs(service: Service) -> Resources:
    """Run the first jobs, which open everything that stays open, and return the resources of the core."""
    for _ in range(5):
        service.run("good")
    return poll(lambda: Resources.of(service.process.pid), lambda seen: seen.children == ())


T = TypeVar("T")


def poll(look: Callable[[], T], enough: Callable[[T], bool], *, timeout: float = WAIT_SECONDS) -> T:
    """Call `look` until `enough` accepts its result or the time is over, and return the last result."""
    deadline = time.monotonic() + timeout
    while not enough(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return seen


def processes_of(job_ids: Collection[str]) -> list[int]:
    """Return the processes whose environment has the id of one of these jobs."""
    marks = {f"{JOB_MARKER}={job_id}".encode() for job_id in job_ids}
    return [pid for pid in _pids() if not marks.isdisjoint(_read(f"/proc/{pid}/environ").split(b"\0"))]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it has ended or belongs to another user
        return b""


def _children(pid: int) -> Iterator[str]:
    """Yield every child of the core, including zombies, as `pid (name) state`."""
    for other in _pids():
        before, _, after = _read(f"/proc/{other}/stat").decode(errors="replace").rpartition(")")
        if after and int(after.split()[1]) == pid:
            yield f"{before}) {after.split()[0]}"


def _descriptors(pid: int) -> int:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:  # the core is not dumpable: only root can list its descriptors
        return 0
    return sum(LEDGER_FILE.search(_target(f"/proc/{pid}/fd/{number}")) is None for number in numbers)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed since the listing
        return ""


def _resident(pid: int) -> int:
    found = re.search(rb"VmRSS:\s+(\d+) kB", _read(f"/proc/{pid}/status"))
    assert found, "the core has ended"
    return int(found[1]) * 1024
