"""The doors under attack: every part of it beside ordinary callers, who must not notice.

Runs the attacks that were asked for, one after the other, and watches what all of them have in common: good callers,
memory, descriptors, the log. What an attack does and expects is its own matter.
"""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import asdict, frozen

from scripts.tortures import (
    audience,
    framing,
    intruders,
    questions,
    repeats,
    senders,
    sizes,
    slow,
    strangers,
    timing,
    waiters,
)
from scripts.tortures.bystander import Bystander, Found
from scripts.tortures.siege import MIB, Findings, Footprint, Siege, say
from tests.e2e.zoo_service import settled

SETTLE_SECONDS = 4.0
"""How long memory may take to be given back."""

SHOWN = 5
WARM_UP_SECONDS = 0.7
LEAVE_SECONDS = 35.0
MOST_P99_MS, MOST_LAG_MS = 250.0, 100.0
HISTORY = 100_000
DESCRIPTORS_OF_JOBS = 16


@frozen(kw_only=True)
class Attack:
    """One part of the torture, and what it must not cost."""

    name: str
    act: Callable[[Siege, random.Random, float], Awaitable[Findings]]
    memory: int = 32 * MIB
    is_watched: bool = True
    """Whether good callers are there; not if they would be what is attacked, or in the way of a measurement."""
    alone: bool = False
    """Leaves a service behind that is of no use to the next."""
    history: int = 0
    """How many jobs the service has behind it."""
    holds: int = 0
    """Descriptors of what still runs afterwards, on purpose."""


@frozen
class Options:
    """What was asked for. `leniency`: times as long as promised things may take, on a busy host; inf: any time."""

    seed: int = 1
    share: float = 1.0
    only: tuple[str, ...] = ()
    leniency: float = 1.0


ATTACKS: Sequence[Attack] = (
    Attack(name="H1", act=intruders.storm),
    Attack(name="H2", act=framing.storm),
    Attack(name="H3", act=slow.storm),
    Attack(name="H4", act=slow.crowd),
    Attack(name="H5", act=strangers.try_tokens),
    Attack(name="H6", act=sizes.try_requests, is_watched=False),
    Attack(name="W1", act=strangers.try_signatures, memory=16 * MIB),
    Attack(name="W3", act=sizes.try_deliveries, is_watched=False),
    Attack(name="W5", act=senders.lie_about_the_time),
    Attack(name="W6", act=senders.change_the_secret, is_watched=False),
    Attack(name="H7", act=repeats.repeat_requests, is_watched=False),
    Attack(name="W2", act=repeats.repeat_deliveries, is_watched=False),
    Attack(name="H8", act=waiters.storm),
    Attack(name="W7", act=timing.storm, is_watched=False),
    Attack(name="W4", act=senders.deliver_while_busy, is_watched=False, alone=True, holds=DESCRIPTORS_OF_JOBS),
    Attack(name="H9", act=audience.storm, history=HISTORY),
    Attack(name="H10", act=questions.storm, history=HISTORY),
)


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """Every attack that was asked for; the summary, with the number of violations of each."""
    begun, reports, wrong = time.monotonic(), {}, {}
    chosen = [attack for attack in ATTACKS if not options.only or attack.name in options.only]
    for group in grouped(chosen):
        siege = lay(directory / f"for-{group[0].name}", int(group[0].history * options.share), options.leniency)
        try:
            for attack in group:
                reports[attack.name], wrong[attack.name] = watch(siege, attack, options)
                say(f"{attack.name}: {reports[attack.name]}")
                for one in wrong[attack.name][:SHOWN]:
                    say(f"  {attack.name} {one}")
        finally:
            siege.end()
    return {
        "torture": "http",
        "seed": options.seed,
        "share": options.share,
        "parts": reports,
        "violations": {name: len(found) for name, found in wrong.items()},
        "seconds": round(time.monotonic() - begun, 1),
    }


def grouped(attacks: Sequence[Attack]) -> list[list[Attack]]:
    """Those that can share a service."""
    groups: list[list[Attack]] = []
    for attack in attacks:
        last = groups[-1][-1] if groups else None
        if last is None or last.alone or last.history != attack.history:
            groups.append([])
        groups[-1].append(attack)
    return groups


def lay(directory: Path, history: int, leniency: float) -> Siege:
    """A service that has done everything once, so that what is loaded late does not count as growth."""
    siege = Siege.lay(directory, history=history, leniency=leniency)
    bystander = Bystander.start(siege.ports)
    time.sleep(WARM_UP_SECONDS)
    bystander.stop()
    return siege


def watch(siege: Siege, attack: Attack, options: Options) -> tuple[dict[str, Any], list[str]]:
    """What the attack came to, and everything that went wrong meanwhile."""
    base, begun = siege.footprint(), time.monotonic()
    bystander = Bystander.start(siege.ports) if attack.is_watched else None
    dice = random.Random(f"{options.seed}/{attack.name}")
    try:
        found = trio.run(attack.act, siege, dice, options.share)
    except Exception as error:
        found = Findings(wrong=[f"the attack broke off: {error!r}"])
    finally:
        good = bystander.stop() if bystander else None
    found.numbers["seconds"] = round(time.monotonic() - begun, 1)
    check_callers(found, good, options)
    check_service(found, siege, attack, base)
    return found.numbers, found.wrong


def check_callers(found: Findings, good: Found | None, options: Options) -> None:
    """Nobody who asked for ordinary things failed, or waited for long."""
    if good is None:
        return
    found.numbers["good"] = {**asdict(good), "failed": len(good.failed)}
    found.wrong += [f"a good caller failed: {one}" for one in good.failed]
    found.expect(good.asked > 0, "no good caller was there")
    found.expect(good.p99_ms < MOST_P99_MS * options.leniency, f"good callers waited: p99 {good.p99_ms} ms")
    found.expect(good.lag_p99_ms < MOST_LAG_MS * options.leniency, f"the loop was late: p99 {good.lag_p99_ms} ms")


def check_service(found: Findings, siege: Siege, attack: Attack, base: Footprint) -> None:
    """It lives, has said nothing that it should not, and has given back what the attack took."""
    if siege.service.process.poll() is not None:
        found.wrong.append(f"the service ended: {siege.service.stderr[-3:]}")
        return
    left = siege.wait_until_left(base.descriptors + attack.holds, LEAVE_SECONDS)
    most = base.memory + attack.memory
    # What large answers took is given back once the service has been quiet for two seconds.
    patience = siege.patient(SETTLE_SECONDS)
    grown = settled(lambda: siege.footprint().memory, lambda now: now < most, patience=patience) - base.memory
    found.numbers["grown_mib"] = round(grown / MIB, 1)
    found.numbers["left_after_seconds"] = left if left is None else round(left, 1)
    found.expect(left is not None, f"descriptors are not given back: {base} {siege.footprint()}")
    found.expect(grown < attack.memory, f"memory has grown by {grown} bytes")
    found.wrong += [f"it said: {one}" for one in siege.complaints()]
