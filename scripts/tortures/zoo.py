"""The zoo in a crowd, round after round: every animal once, in any order, and twice as many good jobs beside them.

Every animal ends as the catalogue says, no good job is harmed or has to wait long, and after each round nothing is
left: no process, no descriptor, no slot, no memory.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from ductile.core.clock import from_text
from scripts.tortures.kill import percentile
from scripts.tortures.telling import tell, tell_violations
from tests.e2e.zoo_service import ENDS, MOST_GROWTH, Enclosure, Traces, enclosure, lane_of, settled
from tests.zoo.catalogue import HOSTILE_PLUGINS, HostilePlugin, break_entrypoint

SETTLE_SECONDS = 4.0
"""How long memory may take to be given back."""

ELSEWHERE = ("Z60", "Z62", "Z64", "Z65")
"""They end the service, flood it, or can be let out only once: tests/e2e has them on their own."""
CROWD = tuple(animal for animal in HOSTILE_PLUGINS if animal.id not in ELSEWHERE)
GOOD_FOR_EACH = 2
MOST_WAIT_SECONDS = 2.0
MOST_OPEN_PER_WORKER = 2
PATIENCE = 240.0
RULES = ("good jobs succeed", "good jobs do not wait", "animals end as they should", "nothing is left", "memory")


@frozen
class Options:
    """`rounds`, each with this `share` of the animals."""

    rounds: int
    seed: int
    share: float = 1.0
    workers: int = 8
    leniency: float = 1.0


@define
class Rounds:
    """One service with all animals, and what was wrong."""

    zoo: Enclosure
    options: Options
    dice: random.Random
    violations: dict[str, list[str]] = field(factory=lambda: {rule: [] for rule in RULES})
    waits: list[float] = field(factory=list)
    resident: list[int] = field(factory=list)
    jobs: int = 0

    def round(self, animals: Sequence[HostilePlugin]) -> None:
        order: list[HostilePlugin | None] = [*animals, *[None] * (len(animals) * GOOD_FOR_EACH)]
        self.dice.shuffle(order)
        jobs = {self._let_out(animal): animal for animal in order}
        self.jobs += len(jobs)
        if not settled(self.zoo.is_idle, bool, patience=PATIENCE):
            self.violations["nothing is left"].append("some jobs never ended")
        self._look_at(jobs)
        try:
            self.zoo.nothing_is_left_of(*jobs)
        except AssertionError as error:
            self.violations["nothing is left"].append(str(error).replace("\n", " ")[:300])
        # What large answers took is given back once the service has been quiet for two seconds.
        enough = self.resident[1] + MOST_GROWTH if len(self.resident) > 1 else 0
        self.resident.append(
            settled(lambda: Traces.of(self.zoo.pid).resident, lambda now: now <= enough, patience=SETTLE_SECONDS)
        )

    def _let_out(self, animal: HostilePlugin | None) -> str:
        """On its way as soon as not too many are."""
        most = self.options.workers * MOST_OPEN_PER_WORKER
        settled(lambda: self._open_jobs() < most, bool, patience=PATIENCE)
        return self.zoo.service.post("good") if animal is None else self.zoo.let_out(animal)

    def _open_jobs(self) -> int:
        (row,) = self.zoo.home.rows("SELECT COUNT(*) AS n FROM job_queue WHERE status IN ('queued', 'running')")
        count: int = row["n"]
        return count

    def _look_at(self, jobs: dict[str, HostilePlugin | None]) -> None:
        rows = {
            row["id"]: row for row in self.zoo.home.rows("SELECT id, status, created_at, last_error FROM job_queue")
        }
        begun = {row["job_id"]: row["started_at"] for row in self.zoo.home.rows(FIRST_STARTS)}
        for job_id, animal in jobs.items():
            status, error = rows[job_id]["status"], rows[job_id]["last_error"]
            if animal is None:
                waited = from_text(begun[job_id]) - from_text(rows[job_id]["created_at"])
                self.waits.append(waited.total_seconds())
                if status != "succeeded":
                    self.violations["good jobs succeed"].append(f"{job_id} is {status}: {error}")
            elif status != ENDS[animal.expected][0]:
                self.violations["animals end as they should"].append(f"{animal} {job_id} is {status}: {error}")

    def judge(self) -> None:
        """Over all rounds."""
        wait = percentile(sorted(self.waits), 99)
        if wait > MOST_WAIT_SECONDS * self.options.leniency:
            self.violations["good jobs do not wait"].append(f"p99 {wait:.2f} s")
        settled_at = self.resident[1:2] or self.resident  # what is needed at most at once is known after two rounds
        if self.resident[-1] > settled_at[0] + MOST_GROWTH:
            self.violations["memory"].append(f"{settled_at[0]} bytes became {self.resident[-1]}")


FIRST_STARTS = "SELECT job_id, started_at FROM job_log WHERE attempt = 1"


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """All rounds; the summary, with the number of violations of each rule."""
    begun = time.monotonic()
    with enclosure(directory / "ductile", CROWD, workers=options.workers) as zoo:
        for animal in CROWD:
            if animal.breakage is not None:
                break_entrypoint(zoo.home.path / "plugins" / lane_of(animal) / "run", animal.breakage)
        rounds = Rounds(zoo, options, dice := random.Random(options.seed))
        animals = dice.sample(CROWD, max(1, round(len(CROWD) * options.share)))
        for number in range(options.rounds):
            rounds.round(animals)
            found = sum(map(len, rounds.violations.values()))
            tell(f"round {number + 1}: {rounds.jobs} jobs, {found} violations, {time.monotonic() - begun:.0f} s")
        rounds.judge()
    tell_violations(rounds.violations)
    waits = sorted(rounds.waits)
    return {
        "torture": "zoo",
        "rounds": options.rounds,
        "seed": options.seed,
        "animals": len(CROWD),
        "jobs": rounds.jobs,
        "good_wait_seconds": {"p50": round(percentile(waits, 50), 3), "p99": round(percentile(waits, 99), 3)},
        "resident_mebibytes": [round(one / (1 << 20), 1) for one in rounds.resident],
        "violations": {rule: len(found) for rule, found in rounds.violations.items()},
    }
