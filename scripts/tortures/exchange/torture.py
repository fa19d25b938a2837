"""The exchange under kill -9 of the service and of workers, stopped workers and a clock that is set.

Publishers, worker hosts, workers by hand and consumers are at work all the time, on one growing ledger. The checker
runs after every cycle.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import frozen

from scripts.tortures.exchange.clock_jumps import set_clock
from scripts.tortures.exchange.lib.checker import RULES, ExchangeHistory, check, pages_are_intact
from scripts.tortures.exchange.lib.stage import Stage
from scripts.tortures.exchange.service_deaths import kill_at_any_moment, kill_at_failpoint
from scripts.tortures.exchange.stopped_workers import stop_workers
from scripts.tortures.exchange.worker_deaths import kill_workers
from scripts.tortures.lib.report import print_progress, print_violations, spread

CYCLES: tuple[Callable[[Stage], None], ...] = (
    kill_at_failpoint,
    kill_at_any_moment,
    kill_workers,
    kill_at_failpoint,
    kill_at_any_moment,
    stop_workers,
    kill_at_failpoint,
    kill_at_any_moment,
    set_clock,
    kill_at_any_moment,
)
"""Ten cycles, which are repeated."""
PROGRESS_INTERVAL = 25
INTACT = "E12 pages are intact"


@frozen
class ExchangeOptions:
    """`cycles` with one disturbance each."""

    cycles: int
    seed: int
    workers: int = 8
    messages_per_second: float = 20.0


def torture(directory: Path, options: ExchangeOptions) -> dict[str, Any]:
    """Run all cycles in an empty directory; return the summary with the number of violations of each rule."""
    stage = Stage.build(directory, workers=options.workers, per_second=options.messages_per_second, seed=options.seed)
    begun = time.monotonic()
    stage.start_clients()
    violations: dict[str, dict[str, None]] = {name: {} for name in (*RULES, INTACT)}
    try:
        for cycle in range(1, options.cycles + 1):
            CYCLES[(cycle - 1) % len(CYCLES)](stage)
            add(violations, check(stage.history()))
            if cycle % PROGRESS_INTERVAL == 0 or cycle == options.cycles:
                print_cycle(stage, cycle, options, violations, begun)
    finally:
        rest_seconds = stage.finish()
    history = stage.history()
    add(violations, {**check(history), INTACT: list(pages_are_intact(stage.instance.ledger))})
    found = {name: list(each) for name, each in violations.items()}
    print_violations(found)
    return summary(stage, options, history, found, {"seconds": time.monotonic() - begun, "rest_seconds": rest_seconds})


def add(violations: dict[str, dict[str, None]], found: dict[str, list[str]]) -> None:
    """Add violations. Each is kept once, although it is found after every later cycle too."""
    for name, each in found.items():
        violations[name].update(dict.fromkeys(each))


def print_cycle(
    stage: Stage, cycle: int, options: ExchangeOptions, violations: dict[str, dict[str, None]], begun: float
) -> None:
    print_progress(
        f"cycle {cycle}/{options.cycles}: {len(stage.publishers.acknowledged)} acknowledged, "
        f"{stage.open_requests()} open, {dict(stage.counts)}, {sum(map(len, violations.values()))} violations, "
        f"{time.monotonic() - begun:.0f} s"
    )


def summary(
    stage: Stage,
    options: ExchangeOptions,
    history: ExchangeHistory,
    violations: dict[str, list[str]],
    times: dict[str, float],
) -> dict[str, Any]:
    kinds = Counter(kind.removeprefix("message.") for kind, _, _ in history.journal)
    return {
        "torture": "exchange",
        "cycles": options.cycles,
        "seed": options.seed,
        "workers": options.workers,
        "messages_per_second": options.messages_per_second,
        "acknowledged": len(stage.publishers.acknowledged),
        "unanswered": stage.address.unanswered,
        "refused": len(stage.publishers.refused),
        "messages": len(history.messages),
        "claims": len(history.claims),
        "runs": len(history.runs),
        "ended_by_hand": len(history.ended_by_hand),
        "refused_late": len(history.refused_late),
        "disturbances": dict(sorted(stage.counts.items())),
        "journal": dict(sorted(kinds.items())),
        "violations": {name.split()[0]: len(found) for name, found in violations.items()},
        "ready_seconds": spread(stage.ready_seconds),
        "load_average": round(os.getloadavg()[2], 1),
        **{name: round(value, 1) for name, value in times.items()},
    }
