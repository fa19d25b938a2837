"""Handle one claim: renew its lease, run the command on the message, and deliver the result to the service.

The claim has a nursery: the lease is renewed until the result is delivered, and a lost claim ends the process.
"""

from collections.abc import Callable, Iterator

import trio
from attrs import define, field

from ductile.core.errors import DuctileError
from ductile.core.message import ClaimLost, ClaimUnknown
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.process.run import Cause, Finished, ProcessControl, StopRequest, run_process
from ductile.engine.process.start import SpawnFailed
from ductile.exchange.worker.command import process_spec
from ductile.exchange.worker.judge import decide, refused_result
from ductile.exchange.worker.values import ClaimEnd, ClaimService, GiveBack, HeldClaim, WorkSettings

CLAIM_LOST, HOST_STOPS = "claim_lost", "host_stops"
"""Reasons to end a process."""
RENEWALS_PER_LEASE = 3
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 2.0
UNREACHABLE_EXIT, BUSY_EXIT = 69, 75


@define(eq=False)
class HeldLease:
    """The lease of a claim on the clock of this host."""

    seconds: float
    renewed_at: float
    is_lost: bool = False

    @property
    def ends_at(self) -> float:
        return self.renewed_at + self.seconds

    @property
    def renew_at(self) -> float:
        return self.renewed_at + self.seconds / RENEWALS_PER_LEASE


@define(eq=False)
class Handling:
    """The handling of one claim. `stop` ends its process, `give_up_at` limits the delivery of its result."""

    claim: HeldClaim
    stop: StopRequest = field(factory=StopRequest)
    give_up_at: float = float("inf")
    is_started: bool = False
    """The command could be started."""


async def handle_claim(
    handling: Handling, work: WorkSettings, service: ClaimService, table: ProcessTable, report: Callable[[str], None]
) -> None:
    """Run the command on the message and deliver what follows. Delivers nothing if the claim is lost."""
    claim = handling.claim
    lease = HeldLease(claim.lease_seconds, claim.held_since)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_renew_lease, handling, lease, service, name="lease")
        result = await _run_command(handling, work, table)
        handling.is_started = isinstance(result, Finished)
        decision = _decide(result, claim, work)
        if decision is None or lease.is_lost:
            report(f"message {claim.message_id}: the claim is lost; the result is discarded")
        else:
            await _deliver(handling, lease, decision, work, service, report)
        nursery.cancel_scope.cancel()


async def _run_command(handling: Handling, work: WorkSettings, table: ProcessTable) -> Finished | SpawnFailed:
    spec = process_spec(handling.claim, work)
    if isinstance(spec, SpawnFailed):
        return spec
    return await run_process(spec, ProcessControl(stop=handling.stop), table)


def _decide(result: Finished | SpawnFailed, claim: HeldClaim, work: WorkSettings) -> ClaimEnd | GiveBack | None:
    """Return the decision; None if the process was ended because the claim is lost."""
    if isinstance(result, Finished) and result.cause is Cause.STOPPED:
        is_lost = result.stopped == CLAIM_LOST
        return None if is_lost else GiveBack(reason="the worker host was stopped", uncounted=True)
    return decide(result, claim, work)


async def _renew_lease(handling: Handling, lease: HeldLease, service: ClaimService) -> None:
    """Renew the lease every third of it. A lost claim ends the process."""
    retry = retry_delays()
    while True:
        await trio.sleep_until(lease.renew_at)
        started = trio.current_time()
        try:
            await service.extend(handling.claim)
        except (ClaimLost, ClaimUnknown):
            lease.is_lost = True
            handling.stop.request(CLAIM_LOST)
            return
        except DuctileError:
            await trio.sleep(next(retry))
            continue
        lease.renewed_at, retry = started, retry_delays()


async def _deliver(
    handling: Handling,
    lease: HeldLease,
    decision: ClaimEnd | GiveBack,
    work: WorkSettings,
    service: ClaimService,
    report: Callable[[str], None],
) -> None:
    """Deliver the decision. If the service refuses the result, deliver that as a failure, else release the claim."""
    error = await _try_until_over(handling, lease, decision, service)
    if error is not None and isinstance(decision, ClaimEnd) and not is_temporary(error):
        report(f"message {handling.claim.message_id}: the result was refused: {error}")
        error = await _try_until_over(handling, lease, refused_result(work, error), service)
        if error is not None:
            give_back = GiveBack(reason=f"the result was refused: {error.code}")
            error = await _try_until_over(handling, lease, give_back, service)
    if error is not None:
        report(f"message {handling.claim.message_id}: the claim was not ended: {error}")


async def _try_until_over(
    handling: Handling, lease: HeldLease, decision: ClaimEnd | GiveBack, service: ClaimService
) -> DuctileError | None:
    """Deliver the decision; repeat while the service is away, until the lease is over. Return a refusal.

    A claim that has ended is no error here: the journal of the service has what was late.
    """
    for delay in retry_delays():
        try:
            if isinstance(decision, ClaimEnd):
                await service.end(handling.claim, decision)
            else:
                await service.release(handling.claim, decision)
        except (ClaimLost, ClaimUnknown):
            return None
        except DuctileError as error:
            is_over = trio.current_time() >= min(lease.ends_at, handling.give_up_at)
            if is_over or not is_temporary(error):
                return error
            await trio.sleep(delay)
            continue
        return None
    raise AssertionError("the delays never end")


def is_temporary(error: DuctileError) -> bool:
    """True if a later request can succeed: the service is away, or busy."""
    return error.exit_code in (UNREACHABLE_EXIT, BUSY_EXIT)


def retry_delays() -> Iterator[float]:
    """Yield the delays before further requests to a service that is away."""
    delay = MIN_RETRY_SECONDS
    while True:
        yield delay
        delay = min(delay * 2, MAX_RETRY_SECONDS)
