"""Schedules under kill -9: the core dies around and inside the transaction that fires, or at any moment.

Three schedules fire faster than their jobs end, one for each kind of `if_running`, on one growing ledger. At the end
the checker of all tortures runs, and what only schedules promise is looked at here.
"""

import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text
from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.arena import MOST_OUTSTANDING, PATIENCE, Arena, Core
from scripts.tortures.case import CANCELLED, Case, Effect
from scripts.tortures.checker import check
from scripts.tortures.kill import PROGRESS_EVERY, SHOWN, Options, Torture, reap_adopted, spread
from scripts.tortures.play import Role

ROLES = (
    Role("skips", every="120ms", nap_ms=500, if_running="skip", lingers_ms=30, is_alone=True),
    Role("queues", every="170ms", nap_ms=400, if_running="queue", lingers_ms=30),
    Role("cancels", every="230ms", nap_ms=900, if_running="cancel", lingers_ms=30, is_alone=True),
)
MOST_OPEN = {"skips": 1, "queues": MOST_OUTSTANDING + 1, "cancels": 1}
"""Jobs of one schedule that may be unfinished at the same time."""
PLACES = ("schedule.before_fire", "schedule.after_insert", "schedule.after_commit")
CLOCK_SLACK = timedelta(milliseconds=5)
"""The two clocks that are compared are read one after the other, and one of them is corrected now and then."""


@frozen
class Death:
    """How one run ends: when the core has come to a place so many times, or some time after it is ready."""

    place: str | None
    after: float

    @classmethod
    def drawn(cls, dice: random.Random, run: int) -> "Death":
        """Every fourth run any moment will do; the others take the places in turn."""
        if run % 4 == 3:
            return cls(None, dice.uniform(0.0, 1.6))
        return cls(f"{PLACES[run % 4]}:{dice.randint(1, 12)}", PATIENCE)


class Scheduled(Torture):
    """The runs, and what was seen between them."""

    def run(self) -> dict[str, Any]:
        """The summary of all runs, checked."""
        become_subreaper()
        dice, begun = random.Random(self.options.seed), time.monotonic()
        ended, unsettled = Counter[str](), list[str]()
        self.arena.build()
        for run in range(self.options.cycles):
            death = Death.drawn(dice, run)
            ended[self.live(death)] += 1
            with self.arena.read_ledger() as db:
                unsettled += [f"after run {run} {found}" for found in unsettled_schedules(db)]
            if (run + 1) % PROGRESS_EVERY == 0:
                print(f"run {run + 1}: {dict(ended)}, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        self.cut_delays_short()
        rest = self.come_to_rest()
        return self._told(ended, unsettled, seconds=time.monotonic() - begun, rest_seconds=rest)

    def live(self, death: Death) -> str:
        """One core from launch to its death; where it died."""
        core = self._launch(death.place)
        if death.place is None:
            self._is_ready(core)
        fell = core.wait_until_gone(death.after)
        self.deaths.append(core.kill())
        reap_adopted()
        return self._where(core, death, fell=fell)

    def _where(self, core: Core, death: Death, *, fell: bool) -> str:
        if fell and core.process.returncode != -9:
            self.faults.append(f"a core ended by itself with {core.process.returncode}: {core.said[-3:]}")
        if death.place is None:
            return "any moment"
        if not fell:
            self.faults.append(f"a core never came to {death.place}")
        return death.place.partition(":")[0]

    def _told(self, ended: Counter[str], unsettled: list[str], **took: float) -> dict[str, Any]:
        seen = {"stuck": self.stuck, "orphans": self.orphans, "faults": self.faults, "miscounted": self.miscounted}
        case = Case.of(self.arena, (), deaths=self.deaths, **seen)
        violations = {**check(case), **{name: list(rule(case)) for name, rule in PROMISES.items()}}
        violations["S8 settled after every death"] = unsettled
        for name, found in violations.items():
            for violation in found[:SHOWN]:
                print(f"{name}: {violation}", file=sys.stderr)
        statuses = Counter((job["plugin"], job["status"]) for job in case.jobs.values())
        return {
            "torture": "schedule",
            "runs": self.options.cycles,
            "seed": self.options.seed,
            "died": dict(ended),
            "jobs": {role.name: {s: n for (p, s), n in sorted(statuses.items()) if p == role.name} for role in ROLES},
            "cancelled_while_running": len(list(_cancelled_processes(case))),
            "slots_passed_over": len(case.rows("SELECT 1 FROM journal WHERE kind = 'scheduler.skipped'")),
            "violations": {name: len(found) for name, found in violations.items()},
            "ready_seconds": spread(self.ready_seconds),
            **{name: round(value, 1) for name, value in took.items()},
        }


OPEN_BY_PLUGIN = "SELECT plugin, COUNT(*) FROM job_queue WHERE status IN ('queued', 'running') GROUP BY plugin"
BEHIND = """
    SELECT plugin, last_slot_at, last_job_id FROM schedule_entries AS entry
     WHERE last_slot_at < (SELECT MAX(slot_at) FROM job_queue WHERE plugin = entry.plugin)
        OR last_job_id <> (SELECT id FROM job_queue WHERE plugin = entry.plugin ORDER BY slot_at DESC LIMIT 1)
"""


# ── what only schedules promise ─────────────────────────────────────────────────────────────────────────────────────


def unsettled_schedules(db: sqlite3.Connection) -> Iterator[str]:
    """What must not be so even in a ledger that a dead core left: too many unfinished jobs, an entry behind its job."""
    for plugin, count in db.execute(OPEN_BY_PLUGIN):
        if count > MOST_OPEN[plugin]:
            yield f"{plugin} has {count} unfinished jobs"
    yield from (f"{plugin} is at {slot}, {job_id}, behind its last job" for plugin, slot, job_id in db.execute(BEHIND))


def slots_have_one_job(case: Case) -> Iterator[str]:
    """Every job is that of a slot, and no slot has two."""
    seen = Counter((job["plugin"], job["schedule_id"], job["slot_at"]) for job in case.jobs.values())
    yield from (f"{slot} has {count} jobs" for slot, count in seen.items() if count > 1 or None in slot)


def nobody_met_another(case: Case) -> Iterator[str]:
    """No process of `skip` or `cancel` was at work while one before it was, not even that of a core that is dead."""
    yield from (f"{effect.job_id} began beside another" for effect in case.effects if effect.what == "crowd")


def processes_are_gone_before_it_is_said(case: Case) -> Iterator[str]:
    """A job that was cancelled while it ran is dead only after its process said goodbye."""
    for job, gone in _cancelled_processes(case):
        if gone > from_text(job["completed_at"]) + CLOCK_SLACK:
            yield f"{job['id']} was dead at {job['completed_at']}, its process was gone at {gone}"


def _cancelled_processes(case: Case) -> Iterator[tuple[Mapping[str, Any], datetime]]:
    started = datetime.now(UTC) - timedelta(microseconds=time.monotonic_ns() / 1000)
    last: dict[str, Effect] = {effect.job_id: effect for effect in case.effects if effect.what == "gone"}
    for job in case.jobs.values():
        gone = last.get(job["id"])
        if gone and job["status"] == "dead" and job["last_error"] == CANCELLED and gone.attempt == job["attempt"]:
            yield job, started + timedelta(microseconds=gone.at / 1000)


PROMISES = {
    "S8 slots have one job": slots_have_one_job,
    "S8 nobody met another": nobody_met_another,
    "S8 processes are gone before it is said": processes_are_gone_before_it_is_said,
}


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """Run the torture in an empty directory; the summary, with the number of violations of each promise."""
    return Scheduled(Arena(directory, workers=options.workers, roles=ROLES, max_attempts=2), options).run()
