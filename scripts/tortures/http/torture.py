"""HTTP attacks: runs each attack on one service while background clients send ordinary requests.

Checks what all attacks have in common: the background clients, memory, descriptors and the log. Each attack checks its
own responses.
"""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import asdict, frozen

from scripts.tortures.http import (
    body_sizes,
    duplicates,
    event_streams,
    framing,
    hostile_requests,
    large_queries,
    slow_clients,
    timing,
    waiting_callers,
    webhook_senders,
    wrong_credentials,
)
from scripts.tortures.http.lib.background_clients import BackgroundClients, BackgroundReport
from scripts.tortures.http.lib.target_service import MIB, AttackResult, ResourceUsage, TargetService
from scripts.tortures.lib.report import print_progress

MEMORY_SETTLE_SECONDS = 4.0
"""The allocator returns memory once the service has been idle for two seconds."""
MAX_SHOWN = 5
WARM_UP_SECONDS = 0.7
RELEASE_TIMEOUT = 35.0
MAX_P99_MS, MAX_LAG_MS = 250.0, 100.0
EXISTING_JOBS = 100_000
RUNNING_JOB_DESCRIPTORS = 16


@frozen(kw_only=True)
class Attack:
    """One part of the test, and its limits."""

    name: str
    run: Callable[[TargetService, random.Random, float], Awaitable[AttackResult]]
    max_memory: int = 32 * MIB
    has_background_clients: bool = True
    """False if they would disturb a measurement or be attacked themselves."""
    spoils_service: bool = False
    """True if the next attack needs a new service."""
    existing_jobs: int = 0
    """The number of finished jobs in the ledger."""
    remaining_descriptors: int = 0
    """Descriptors of jobs that are still running afterwards."""


@frozen
class HttpOptions:
    """`share` of every number; `only` these attacks; `leniency` multiplies time limits."""

    seed: int = 1
    share: float = 1.0
    only: tuple[str, ...] = ()
    leniency: float = 1.0


ATTACKS: Sequence[Attack] = (
    Attack(name="H1", run=hostile_requests.attack),
    Attack(name="H2", run=framing.attack),
    Attack(name="H3", run=slow_clients.hold_connections),
    Attack(name="H4", run=slow_clients.open_many_connections),
    Attack(name="H5", run=wrong_credentials.send_wrong_tokens),
    Attack(name="H6", run=body_sizes.send_requests, has_background_clients=False),
    Attack(name="W1", run=wrong_credentials.send_wrong_signatures, max_memory=16 * MIB),
    Attack(name="W3", run=body_sizes.send_deliveries, has_background_clients=False),
    Attack(name="W5", run=webhook_senders.send_wrong_timestamps),
    Attack(name="W6", run=webhook_senders.rotate_secret, has_background_clients=False),
    Attack(name="H7", run=duplicates.repeat_requests, has_background_clients=False),
    Attack(name="W2", run=duplicates.repeat_deliveries, has_background_clients=False),
    Attack(name="H8", run=waiting_callers.attack),
    Attack(name="W7", run=timing.attack, has_background_clients=False),
    Attack(
        name="W4",
        run=webhook_senders.deliver_while_busy,
        has_background_clients=False,
        spoils_service=True,
        remaining_descriptors=RUNNING_JOB_DESCRIPTORS,
    ),
    Attack(name="H9", run=event_streams.attack, existing_jobs=EXISTING_JOBS),
    Attack(name="H10", run=large_queries.attack, existing_jobs=EXISTING_JOBS),
)


def torture(directory: Path, options: HttpOptions) -> dict[str, Any]:
    """Run the attacks; return the summary with the number of violations of each."""
    begun, parts, violations = time.monotonic(), {}, {}
    chosen = [attack for attack in ATTACKS if not options.only or attack.name in options.only]
    for group in group_by_service(chosen):
        existing_jobs = int(group[0].existing_jobs * options.share)
        target = start_target(directory / f"for-{group[0].name}", existing_jobs, options.leniency)
        try:
            for attack in group:
                result = run_attack(target, attack, options)
                parts[attack.name], violations[attack.name] = result.numbers, result.violations
                print_progress(f"{attack.name}: {result.numbers}")
                for violation in result.violations[:MAX_SHOWN]:
                    print_progress(f"  {attack.name} {violation}")
        finally:
            target.kill()
    return {
        "torture": "http",
        "seed": options.seed,
        "share": options.share,
        "parts": parts,
        "violations": {name: len(found) for name, found in violations.items()},
        "seconds": round(time.monotonic() - begun, 1),
    }


def group_by_service(attacks: Sequence[Attack]) -> list[list[Attack]]:
    """Group the attacks that can run on the same service."""
    groups: list[list[Attack]] = []
    for attack in attacks:
        last = groups[-1][-1] if groups else None
        if last is None or last.spoils_service or last.existing_jobs != attack.existing_jobs:
            groups.append([])
        groups[-1].append(attack)
    return groups


def start_target(directory: Path, existing_jobs: int, leniency: float) -> TargetService:
    """Start a service and warm it up, so that what it loads on demand does not count as growth."""
    target = TargetService.create(directory, existing_jobs=existing_jobs, leniency=leniency)
    background = BackgroundClients.start(target.ports)
    time.sleep(WARM_UP_SECONDS)
    background.stop()
    return target


def run_attack(target: TargetService, attack: Attack, options: HttpOptions) -> AttackResult:
    """Run one attack and all checks."""
    before, begun = target.resource_usage(), time.monotonic()
    background = BackgroundClients.start(target.ports) if attack.has_background_clients else None
    rng = random.Random(f"{options.seed}/{attack.name}")
    try:
        result = trio.run(attack.run, target, rng, options.share)
    except Exception as error:
        result = AttackResult(violations=[f"the attack failed: {error!r}"])
    finally:
        report = background.stop() if background else None
    result.numbers["seconds"] = round(time.monotonic() - begun, 1)
    if report:
        check_background(result, report, options)
    check_service(result, target, attack, before)
    return result


def check_background(result: AttackResult, report: BackgroundReport, options: HttpOptions) -> None:
    """Check that no ordinary request failed or was slow."""
    result.numbers["good"] = {**asdict(report), "failed": len(report.failed)}
    result.violations += [f"an ordinary request failed: {one}" for one in report.failed]
    result.expect(report.asked > 0, "there were no ordinary requests")
    result.expect(report.p99_ms < MAX_P99_MS * options.leniency, f"ordinary requests were slow: p99 {report.p99_ms} ms")
    result.expect(
        report.lag_p99_ms < MAX_LAG_MS * options.leniency, f"the event loop was late: p99 {report.lag_p99_ms} ms"
    )


def check_service(result: AttackResult, target: TargetService, attack: Attack, before: ResourceUsage) -> None:
    """Check that the service runs, has released memory and descriptors, and has no forbidden output."""
    if target.service.process.poll() is not None:
        result.violations.append(f"the service ended: {target.service.stderr[-3:]}")
        return
    released = target.wait_until_released(before.descriptors + attack.remaining_descriptors, RELEASE_TIMEOUT)
    limit = before.memory + attack.max_memory
    growth = target.wait_until_memory_below(limit, target.wait_seconds(MEMORY_SETTLE_SECONDS)) - before.memory
    result.numbers["grown_mib"] = round(growth / MIB, 1)
    result.numbers["left_after_seconds"] = released if released is None else round(released, 1)
    result.expect(released is not None, f"descriptors were not released: {before} {target.resource_usage()}")
    result.expect(growth < attack.max_memory, f"memory grew by {growth} bytes")
    result.violations += [f"forbidden output: {line}" for line in target.forbidden_output()]
