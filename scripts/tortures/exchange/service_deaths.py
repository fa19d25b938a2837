"""kill -9 of the service: at random moments while messages are published, claimed and ended, and at failpoints."""

import signal

from scripts.tortures.exchange.lib.stage import Stage
from scripts.tortures.lib.harness import EXCHANGE_FAILPOINTS

FAILPOINTS = (
    *sorted(EXCHANGE_FAILPOINTS),
    "commit.before",
    "commit.after",
    "record.after_status",
)
MAX_COUNT = 8
FAILPOINT_TIMEOUT = 45.0


def kill_at_any_moment(stage: Stage) -> None:
    """Kill the service during its start, just after it is ready, or while all clients are at work."""
    stage.kill_service()
    match stage.rng.choices(("start", "ready", "work"), (1, 2, 7))[0]:
        case "start":
            service = stage.service = stage.instance.launch(stage.library.shifting_clock(stage.clock))
            service.wait_until_starting()
            service.wait_for_exit(stage.rng.uniform(0.0, 0.3))
        case "ready":
            stage.start_service().wait_for_exit(stage.rng.uniform(0.0, 0.1))
        case _:
            stage.start_service().wait_for_exit(stage.rng.uniform(0.1, 2.5))
    stage.kill_service()


def kill_at_failpoint(stage: Stage) -> None:
    """Kill the service at the next failpoint of the list. One that it does not reach is a fault."""
    name = FAILPOINTS[stage.counts["failpoints"] % len(FAILPOINTS)]
    stage.counts["failpoints"] += 1
    stage.kill_service()
    passage = f"{name}:{stage.rng.randint(1, MAX_COUNT)}"
    service = stage.start_service(passage)
    service.wait_for_exit(FAILPOINT_TIMEOUT)
    if service.process.poll() == -signal.SIGKILL:
        stage.counts[name] += 1
    else:
        stage.faults.append(f"{passage}: not reached")
    stage.kill_service()
