"""The zoo behind its fence: a whole service that keeps every animal, and the look around after each of them."""

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
"""As few as make sense: one leaked slot, and the next animal and the job beside it no longer run side by side."""
HANGING_TIMEOUT, PATIENT_TIMEOUT = "1s", "60s"
SERVICE_KEYS = "  kill_grace: 300ms\n"
API_KEYS = "  max_body_size: 4MB\n"
GOOD = '#!/bin/sh\necho \'{"status":"ok","result":"good"}\'\n'
# Opening a pipe waits for the other end: each of the two ends well only while the other runs.
GIVES = '#!/bin/sh\n: > "$MEETING"\necho \'{"status":"ok","result":"met"}\'\n'
TAKES = '#!/bin/sh\n: < "$MEETING"\necho \'{"status":"ok","result":"met"}\'\n'
EVENT_TYPES = ("zoo.seen", "zoo.counted", "zoo.large", "zoo.forged")
ROUTES_OF_LARGE = 10
MOST_GROWTH = 12 * MIB
# The interpreter itself, not a chooser of versions in front of it that takes longer than most animals live.
DIRECT = {"PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}"}


@frozen
class Ended:
    """What became of one animal, from the API and from the ledger."""

    job: Mapping[str, Any]
    attempts: list[dict[str, Any]]
    children: list[dict[str, Any]]
    state: str | None

    @property
    def error(self) -> str:
        return str(self.job.get("last_error") or "")


@frozen
class Traces:
    """What the core holds while nothing runs: descriptors (0 where the host hides them), children, memory."""

    descriptors: int
    children: tuple[str, ...]
    resident: int

    @classmethod
    def of(cls, pid: int) -> "Traces":
        return cls(_descriptors(pid), tuple(_children(pid)), _resident(pid))


@define
class Enclosure:
    """A running service with animals, and how it was before the first of them."""

    service: Service
    before: Traces
    workers: int

    @property
    def home(self) -> Home:
        return self.service.home

    @property
    def pid(self) -> int:
        return self.service.process.pid

    def let_out(self, animal: HostilePlugin) -> str:
        """The id of the animal's job, on its way."""
        padding = {"padding": "x" * animal.request_bytes} if animal.request_bytes else None
        return self.service.post(lane_of(animal), payload=padding)

    def watch(self, job_id: str) -> Ended:
        """The animal's end, and that of everything that followed from it."""
        job = self.service.job(job_id, wait="60s")
        assert settled(lambda: self.home.rows(TREE_IS_DONE, job_id), bool, patience=2 * WAIT_SECONDS)
        return Ended(
            job,
            self.home.rows("SELECT * FROM job_log WHERE job_id = ? ORDER BY attempt", job_id),
            self.home.rows("SELECT * FROM job_queue WHERE parent_job_id = ? ORDER BY seq", job_id),
            next((r["state"] for r in self.home.rows(STATE_OF, job["plugin"])), None),
        )

    def show(self, animal: HostilePlugin) -> Ended:
        return self.watch(self.let_out(animal))

    def nothing_is_left_of(self, *job_ids: str) -> None:
        """No process, no zombie, no descriptor, no slot."""
        assert marked(job_ids) == []
        assert Traces.of(self.pid).children == ()
        assert self.home.rows("SELECT id FROM job_queue WHERE status = 'running'") == []
        self.all_slots_are_free()
        # The connections of the last requests close in their own time.
        now = settled(lambda: Traces.of(self.pid), lambda seen: seen.descriptors <= self.before.descriptors)
        assert now.descriptors <= self.before.descriptors

    def is_idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return self.home.rows("SELECT 1 FROM job_queue WHERE status IN ('queued', 'running') LIMIT 1") == []

    def all_slots_are_free(self) -> None:
        """All workers can be busy at once: jobs that wait for each other meet."""
        pairs = range(self.workers // 2)
        jobs = [self.service.post(f"{name}{pair}") for name in ("gives", "takes") for pair in pairs]
        assert [self.service.job(one, wait="60s")["status"] for one in jobs] == ["succeeded"] * len(jobs)

    def a_good_job_takes(self) -> float:
        """Seconds from the request to the answer of a job that has nothing to do with any animal."""
        begun = time.monotonic()
        assert self.service.run("good")["status"] == "succeeded"
        return time.monotonic() - begun


ENDS = {
    Expected.SUCCESS: ("succeeded", ["succeeded"]),
    Expected.FINAL: ("failed", ["failed"]),
    Expected.RETRY: ("dead", ["failed", "failed"]),
    Expected.SPAWN_ERROR: ("dead", ["failed", "failed"]),
    Expected.TIMED_OUT: ("dead", ["timed_out", "timed_out"]),
}
"""How a job ends that has two attempts, and how its attempts do."""
TREE_IS_DONE = "SELECT 1 FROM job_queue WHERE id = ? AND open_jobs = 0"
STATE_OF = "SELECT state FROM plugin_state WHERE plugin_name = ?"


def lane_of(animal: HostilePlugin) -> str:
    """The name it is called by: its own, if it has a folder of its own; else an alias for each variant."""
    return str(animal).replace("-", "_") if animal.on_a_copy else f"zoo-{animal}"


@contextmanager
def enclosure(
    path: Path,
    animals: Iterable[HostilePlugin],
    *,
    workers: int = WORKERS,
    service_keys: str = "",
    more: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Enclosure]:
    """A service with these animals, warm and quiet, for as long as the block lasts; then it stops in order."""
    home = build(path, animals, workers=workers, service_keys=service_keys, more=more)
    service = home.start(environ={**DIRECT, **(environ or {})})
    try:
        yield Enclosure(service, _warmed_up(service), workers)
        assert service.stop() == 0
    finally:
        if service.process.poll() is None:
            service.kill()


def build(
    path: Path,
    animals: Iterable[HostilePlugin],
    *,
    workers: int = WORKERS,
    service_keys: str = "",
    more: Mapping[str, Any] | None = None,
) -> Home:
    """The configuration of such a service."""
    home = Home.make(path, workers=workers, drain="1s")
    config = (home.path / "config.yaml").read_text()
    config = config.replace("service:\n", f"service:\n{SERVICE_KEYS}{service_keys}").replace(
        "api:\n", f"api:\n{API_KEYS}"
    )
    home.write("config.yaml", config)
    entries: dict[str, Any] = {"good": {}, "gives": {}, "takes": {}}
    for pair in range(workers // 2):
        # Each pair has a place of its own: at a shared one somebody could meet who has met another already.
        meeting = path.parent / f"{path.name}-meeting{pair}"
        os.mkfifo(meeting)
        entries |= {f"{name}{pair}": {"uses": name, "env": {"MEETING": str(meeting)}} for name in ("gives", "takes")}
    for name, script in (("good", GOOD), ("gives", GIVES), ("takes", TAKES)):
        home.plugin(name, script)
    chosen = tuple(animals)
    for animal in chosen:
        entries[lane_of(animal)] = _entry(animal)
        _settle_in(home, animal)
    home.add(strict_yaml.dump({"plugins": entries | dict(more or {}), "routes": list(_routes(chosen))}))
    return home


def _settle_in(home: Home, animal: HostilePlugin) -> None:
    """Those that damage their folder, or are damaged, have one of their own; variants of the others share one."""
    name = lane_of(animal) if animal.on_a_copy else animal.folder
    if (home.path / "plugins" / name).exists():
        return
    home.copy_plugin(animal.path)
    if name != animal.folder:
        folder = (home.path / "plugins" / animal.folder).rename(home.path / "plugins" / name)
        manifest = folder / "manifest.yaml"
        manifest.write_text(manifest.read_text().replace(f"name: {animal.folder}", f"name: {name}"))


def _entry(animal: HostilePlugin) -> dict[str, Any]:
    hangs = animal.expected in (Expected.TIMED_OUT, Expected.SUCCESS_OR_TIMED_OUT)
    timeout = HANGING_TIMEOUT if hangs else PATIENT_TIMEOUT
    entry: dict[str, Any] = {
        "config": dict(animal.config),
        "timeouts": {"poll": timeout, "handle": timeout},
        "retry": {"max_attempts": 2, "backoff_base": "10ms"},
    }
    if not animal.on_a_copy:
        entry["uses"] = animal.folder
    if animal.limits is not None:
        names = {
            "memory": "address_space",
            "open_files": "open_files",
            "processes": "processes",
            "file_size": "file_size",
        }
        asked = {ours: getattr(animal.limits, theirs) for ours, theirs in names.items()}
        entry["limits"] = {name: value for name, value in asked.items() if value is not None}
    return entry


def _routes(animals: Iterable[HostilePlugin]) -> Iterator[dict[str, str]]:
    for animal in animals:
        for kind in EVENT_TYPES:
            for _ in range(ROUTES_OF_LARGE if kind == "zoo.large" else 1):
                yield {"from": lane_of(animal), "event_type": kind, "to": "good"}
        if animal.id == "Z64":
            yield {"from": lane_of(animal), "event_type": "zoo.again", "to": lane_of(animal)}


def _warmed_up(service: Service) -> Traces:
    """As it is after the first jobs, when everything that is opened once is open."""
    for _ in range(5):
        service.run("good")
    return settled(lambda: Traces.of(service.process.pid), lambda seen: seen.children == ())


T = TypeVar("T")


def settled(look: Callable[[], T], enough: Callable[[T], bool], *, patience: float = WAIT_SECONDS) -> T:
    """What is seen when it is enough, or at the end of our patience."""
    deadline = time.monotonic() + patience
    while not enough(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return seen


def marked(job_ids: Collection[str]) -> list[int]:
    """The processes that carry the mark of one of these jobs."""
    marks = {f"{JOB_MARKER}={job_id}".encode() for job_id in job_ids}
    return [pid for pid in _pids() if not marks.isdisjoint(_read(f"/proc/{pid}/environ").split(b"\0"))]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # it is gone, or another user's
        return b""


def _children(pid: int) -> Iterator[str]:
    """Every child of the core, zombies included: `pid (name) state`."""
    for other in _pids():
        before, _, after = _read(f"/proc/{other}/stat").decode(errors="replace").rpartition(")")
        if after and int(after.split()[1]) == pid:
            yield f"{before}) {after.split()[0]}"


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:  # the core hides itself from everybody but root
        return 0


def _resident(pid: int) -> int:
    found = re.search(rb"VmRSS:\s+(\d+) kB", _read(f"/proc/{pid}/status"))
    assert found, "the core is gone"
    return int(found[1]) * 1024
