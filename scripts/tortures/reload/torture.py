"""Reloads under load: the configuration changes repeatedly while jobs arrive, run and are waited for.

No request may fail, no job may be lost or run twice, no slot may be missed, and no stream may end. An invalid
configuration is refused and changes nothing; a removed key is rejected.
"""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.core.clock import from_text
from ductile.core.units import parse_duration
from scripts.tortures.lib.checker import check
from scripts.tortures.lib.clients import Acknowledgement, WorkloadClients
from scripts.tortures.lib.harness import OPEN_JOBS, STALL_SECONDS
from scripts.tortures.lib.history import History, Row
from scripts.tortures.lib.instance import TOKEN, Instance, ServiceProcess, listen_urls
from scripts.tortures.lib.report import print_progress, print_violations, spread
from scripts.tortures.lib.workload import WorkloadPlugin
from scripts.tortures.reload.clients import (
    EventStreamReader,
    KeepAliveClient,
    KeyedClients,
    TimedResponse,
    deliver_webhook,
    run_pipeline,
)
from scripts.tortures.reload.editions import (
    CHANGES,
    INVALID,
    NEW_KEY,
    OLD_KEY_REMOVED,
    PIPELINE,
    Edition,
    write_edition,
    write_invalid,
)

PLUGINS = (
    WorkloadPlugin("gather", emits="item.found", event_count=2, records_facts=True, weight=1),
    WorkloadPlugin("refine", emits="item.refined", sleep_ms=20, records_facts=True),
    WorkloadPlugin("keep", weight=4),
    WorkloadPlugin("flaky", failure_percent=35, sleep_ms=10, timeout="400ms", notifies=True, weight=2),
    WorkloadPlugin("slow", sleep_ms=1500, weight=1),
    WorkloadPlugin("tick", every="200ms"),
    WorkloadPlugin("tock"),
    WorkloadPlugin("order", emits="order.placed"),
    WorkloadPlugin("pick", emits="order.picked", max_items=2, notifies=True),
    WorkloadPlugin("press", sleep_ms=20, records_facts=True),
    WorkloadPlugin("twin", emits="half.done", event_count=2),
    WorkloadPlugin("brittle", failure_percent=10, timeout="400ms"),
)
RELOAD_TIMEOUT = 30.0
SIGNAL_SHARE = 0.2
"""The share of reloads that are requested by SIGHUP."""
PROGRESS_INTERVAL = 25
"""Reloads between two lines of progress."""


@frozen
class ReloadOptions:
    """`reloads` of one service under load."""

    reloads: int
    seed: int
    jobs_per_second: float = 20.0
    workers: int = 4


@define
class ReloadTorture:
    """One service whose configuration changes."""

    instance: Instance
    options: ReloadOptions
    edition: Edition = field(factory=Edition)
    results: Counter[str] = field(factory=Counter)
    seconds: list[float] = field(factory=list)
    wrong_results: list[str] = field(factory=list)

    def run(self) -> dict[str, Any]:
        """Run all reloads and the checker; return the summary."""
        self.instance.build()
        write_edition(self.instance, self.edition)
        service, begun = self.instance.launch(), time.monotonic()
        service.wait_until_ready()
        assert service.url, service.stderr
        record = self.instance.path / "acknowledged"
        clients = WorkloadClients(self.instance, self.options.jobs_per_second, self.options.seed, record)
        api, webhooks = listen_urls(service.stderr)
        keyed, reader = KeyedClients(api, webhooks), EventStreamReader(service.url)
        reader.start()
        clients.start()
        keyed.start()
        clients.use_url(service.url)
        try:
            self._reload_repeatedly(service, keyed)
        finally:
            keyed.stop()
            clients.stop()
        self._finish_all_jobs(service)
        return self._summary(service, clients, keyed, reader, seconds=time.monotonic() - begun)

    def _reload_repeatedly(self, service: ServiceProcess, keyed: KeyedClients) -> None:
        rng, client = random.Random(self.options.seed), KeepAliveClient(service.url or "")
        for number in range(self.options.reloads):
            change, next_edition = CHANGES[number % len(CHANGES)]
            if next_edition is None:
                write_invalid(self.instance, self.edition, rng)
            else:
                self.edition = next_edition(self.edition)
                write_edition(self.instance, self.edition)
            self.results[self._reload(service, client, change, by_signal=rng.random() < SIGNAL_SHARE)] += 1
            if change == NEW_KEY:
                keyed.change_key(self.edition.keys[-1])
            elif change == OLD_KEY_REMOVED:
                self._check_removed_key(service, self.edition.keys[0] - 1)
            time.sleep(rng.uniform(0, 0.4))
            if (number + 1) % PROGRESS_INTERVAL == 0:
                print_progress(f"reload {number + 1}: {len(keyed.failed)} failed requests")
        client.close()

    def _reload(self, service: ServiceProcess, client: KeepAliveClient, change: str, *, by_signal: bool) -> str:
        """Reload by a request or by SIGHUP, check the response, and return the result."""
        if by_signal and change != INVALID:
            self._reload_by_signal(service)
            return "by signal"
        response = client.post("/system/reload", b"", {"authorization": f"Bearer {TOKEN}"})
        self.seconds.append(response.seconds)
        refusals = {(422, "config_invalid"), (422, "restart_needed")}  # the second for another address
        expected = refusals if change == INVALID else {(200, None)}
        if (response.status, response.body.get("code")) not in expected:
            self.wrong_results.append(f"{change}: {response.status} {response.body}")
        return "refused" if response.status == 422 else "by request"

    def _reload_by_signal(self, service: ServiceProcess) -> None:
        """Send SIGHUP and wait for the log line of the reload."""
        begun = time.monotonic()
        with self.instance.service_log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            service.process.send_signal(signal.SIGHUP)
            while not any(b'"message":"reloaded"' in line for line in log):
                assert time.monotonic() - begun < RELOAD_TIMEOUT, "a reload by signal did not happen"
                time.sleep(0.01)

    def _check_removed_key(self, service: ServiceProcess, key: int) -> None:
        """Check that a removed token and secret are rejected."""
        api, webhooks = map(KeepAliveClient, listen_urls(service.stderr))
        statuses = run_pipeline(api, -1, key).status, deliver_webhook(webhooks, -1, key).status
        if statuses != (401, 403):
            self.wrong_results.append(f"the removed key {key} got {statuses}")
        api.close()
        webhooks.close()

    def _finish_all_jobs(self, service: ServiceProcess) -> None:
        """Remove the schedules by one more reload, and wait until no job is open."""
        write_edition(self.instance, self.edition, scheduled=False)
        client = KeepAliveClient(service.url or "")
        self._reload(service, client, "no schedules", by_signal=False)
        client.close()
        begun = time.monotonic()
        with self.instance.read_ledger() as db:
            while db.execute(OPEN_JOBS).fetchone()[0] and time.monotonic() - begun < STALL_SECONDS:
                if service.wait_for_exit(0.05):
                    break

    def _summary(
        self,
        service: ServiceProcess,
        clients: WorkloadClients,
        keyed: KeyedClients,
        reader: EventStreamReader,
        *,
        seconds: float,
    ) -> dict[str, Any]:
        stream_gaps = _find_stream_gaps(self.instance, service, reader)
        code = service.stop()
        faults = [] if code == 0 else [f"the service exited with {code}: {service.stderr[-3:]}"]
        orphans = [f"process {pid} is alive after the end" for pid in self.instance.plugin_processes()]
        acknowledged: list[Acknowledgement] = [*clients.acknowledged, *keyed.acknowledged]
        history = History.of(
            self.instance, acknowledged, unchecked_pipelines=[PIPELINE], faults=faults, orphans=orphans
        )
        violations = {
            **check(history),
            "R1 no request fails": [*keyed.failed, *clients.refused, *["no response"] * clients.unanswered],
            "R2 changes are applied or refused": self.wrong_results,
            "R3 runs have the steps of their edition": list(runs_match_their_edition(history, keyed.runs)),
            "R4 no slot is missed": list(no_slot_is_missed(history, "tick", "200ms")),
            "R5 the stream has no gap": stream_gaps,
        }
        print_violations(violations)
        return {
            "torture": "reload",
            "reloads": self.options.reloads,
            "seed": self.options.seed,
            "taken": dict(self.results),
            "acknowledged": len(acknowledged),
            "jobs": len(history.jobs),
            "jobs_per_second": round(len(history.jobs) / seconds, 1),
            "waited": clients.completed + len(keyed.runs),
            "steps_gone": sum(job["last_error"] == STEP_REMOVED[2] for job in history.jobs.values()),
            "slots": sum(job["slot_at"] is not None for job in history.jobs.values()),
            "events_heard": len(reader.events),
            "reload_seconds": spread(self.seconds),
            "slowest_answer": round(keyed.max_seconds, 3),
            "violations": {name: len(found) for name, found in violations.items()},
            "seconds": round(seconds, 1),
        }


# ── the invariants of reloads ─────────────────────────────────────────────────────────────────────────────────────────


def runs_match_their_edition(history: History, responses: Iterable[TimedResponse]) -> Iterator[str]:
    """R3: a step continues with the edition under which it was started, and a waiting client gets the real tree.

    A step that waited while a reload removed it is dead, with that reason.
    """
    steps_of = {
        row["id"]: _count_steps(row) for row in history.rows("SELECT id, sanitized_config FROM config_snapshots")
    }
    for tree in history.trees.values():
        if tree[0]["pipeline"] != PIPELINE:
            continue
        steps = [steps_of[job["started_config_snapshot_id"]] for job in tree]
        found = [(job["step_id"], job["status"], job["last_error"]) for job in tree]
        second = ("b", "succeeded", None) if steps[-1] == 2 else STEP_REMOVED
        expected = [("a", "succeeded", None), second][: steps[0]]
        if found != expected:
            yield f"{tree[0]['id']} has {found}, not {expected}"
    for response in responses:
        nodes = [(node["job_id"], node["status"]) for node in response.body.get("tree", ())]
        rows = [(job["id"], job["status"]) for job in history.trees[response.body["job_id"]]]
        if response.status == 200 and nodes != rows:
            yield f"the response for {response.body['job_id']} has {nodes}, not {rows}"


STEP_REMOVED = ("b", "dead", f"pipeline {PIPELINE} no longer has step b")


def _count_steps(snapshot: Row) -> int:
    pipelines = json.loads(snapshot["sanitized_config"])["pipelines"]
    (found,) = [one for one in pipelines if one["name"] == PIPELINE]
    return len(found["steps"])


def no_slot_is_missed(history: History, plugin: str, every: str) -> Iterator[str]:
    """R4: every slot from the first job to the last has a job, or a journal entry with the reason."""
    slots = sorted(from_text(job["slot_at"]) for job in history.jobs.values() if job["plugin"] == plugin)
    interval = parse_duration(every)
    expected = {slots[0] + number * interval for number in range((slots[-1] - slots[0]) // interval + 1)}
    end = slots[-1] + timedelta.resolution
    skipped = sum(_skipped_slots(row, end) for row in history.rows(SKIPPED) if row["plugin"] == plugin)
    if set(slots) - expected:
        yield f"{sorted(set(slots) - expected)[:3]} are not slots of {plugin}"
    if len(expected - set(slots)) != skipped:
        yield f"{plugin} has {len(expected)} slots, {len(slots)} jobs and {skipped} skipped slots in the journal"


def _skipped_slots(row: Mapping[str, Any], before: Any) -> int:
    data = json.loads(row["data"])
    return data.get("count") or 0 if from_text(data["slot_at"]) < before else 0


SKIPPED = "SELECT plugin, data FROM journal WHERE kind = 'scheduler.skipped'"


def _find_stream_gaps(instance: Instance, service: ServiceProcess, reader: EventStreamReader) -> list[str]:
    """R5: compare a stream that was open all the time with one that is read afterwards."""
    with instance.read_ledger() as db:
        last: int = db.execute("SELECT MAX(seq) FROM journal WHERE kind LIKE 'job.%'").fetchone()[0]
    later_reader = EventStreamReader(service.url or "")
    later_reader.start()
    is_complete = [one.wait_until(last) for one in (reader, later_reader)]
    for one in (reader, later_reader):
        one.stop()
    if reader.ended or not all(is_complete):
        return [f"the stream reached {reader.events[-1:]} of {last}: {reader.ended}"]
    live, later = ([event for event in one.events if event[0] <= last] for one in (reader, later_reader))
    return [] if live == later else [f"the open stream had {len(live)} events, the later one {len(later)}"]


def torture(directory: Path, options: ReloadOptions) -> dict[str, Any]:
    """Run the test in an empty directory; return the summary with the number of violations of each invariant."""
    return ReloadTorture(Instance(directory, workers=options.workers, plugins=PLUGINS), options).run()
