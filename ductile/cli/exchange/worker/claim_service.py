"""The claims of a worker host over HTTP: claim, extend, end and release."""

from collections.abc import Sequence
from typing import Any

import trio
from attrs import frozen

from ductile.cli.base.client import Client
from ductile.cli.exchange.worker.async_client import REQUEST_TIMEOUT, SentRequest, request_json, send_request
from ductile.core.errors import DuctileError, ServiceUnreachable
from ductile.core.message import ClaimLost, ClaimStatus, ClaimUnknown
from ductile.exchange.worker.values import ClaimEnd, GiveBack, HeldClaim

VERBS = {ClaimStatus.COMPLETED: "complete", ClaimStatus.FAILED: "fail", ClaimStatus.TIMED_OUT: "time_out"}
LATE_CLAIM_SECONDS = 2.0
"""Time to receive and release claims that were made while the request for them was cancelled."""


@frozen(kw_only=True)
class HttpClaimService:
    """The service of a worker host. `lease_seconds` None is the default of the topic."""

    client: Client
    topic: str
    worker_group: str
    worker_instance_id: str
    lease_seconds: float | None

    async def claim(self, *, limit: int, wait_seconds: float) -> Sequence[HeldClaim]:
        """Wait for messages and claim them. If it is cancelled, claims that were made meanwhile are released."""
        body = {
            "topic": self.topic,
            "worker_group": self.worker_group,
            "worker_instance_id": self.worker_instance_id,
            "lease": self.lease_seconds,
            "wait": wait_seconds,
            "max": limit,
        }
        try:
            with trio.fail_after(wait_seconds + REQUEST_TIMEOUT):
                async with send_request(self.client, "POST", "/exchange/claims", body) as sent:
                    try:
                        return _held_claims(await sent.response())
                    except trio.Cancelled:
                        with trio.move_on_after(LATE_CLAIM_SECONDS, shield=True):
                            await self._release_late_claims(sent)
                        raise
        except trio.TooSlowError:
            raise ServiceUnreachable("the service did not respond in time") from None

    async def _release_late_claims(self, sent: SentRequest) -> None:
        try:
            await sent.end_of_requests()
            for claim in _held_claims(await sent.response()):
                await self.release(claim, GiveBack(reason="the worker host was stopped", uncounted=True))
        except DuctileError:  # without a response there are no claims
            return

    async def extend(self, claim: HeldClaim) -> None:
        await self._act(claim, "extend", {"lease": self.lease_seconds})

    async def end(self, claim: HeldClaim, end: ClaimEnd) -> None:
        await self._act(
            claim, VERBS[end.status], {"topic": end.topic, "body": end.body, "metadata": dict(end.metadata)}
        )

    async def release(self, claim: HeldClaim, give_back: GiveBack) -> None:
        seconds = give_back.delay.total_seconds()
        body = {"delay": seconds or None, "reason": give_back.reason, "uncounted": give_back.uncounted or None}
        await self._act(claim, "release", body)

    async def _act(self, claim: HeldClaim, verb: str, body: dict[str, Any]) -> None:
        try:
            await request_json(self.client, "POST", f"/exchange/claims/{claim.claim_id}/{verb}", body)
        except DuctileError as error:
            kinds = {kind.code: kind for kind in (ClaimLost, ClaimUnknown)}
            if error.code in kinds:
                raise kinds[error.code](str(error), context=error.context) from error
            raise


def _held_claims(answer: Any) -> list[HeldClaim]:
    now = trio.current_time()
    return [
        HeldClaim(
            claim_id=claim["claim_id"],
            delivery=claim["delivery"],
            lease_seconds=claim["lease_seconds"],
            held_since=now,
            message_id=claim["message_id"],
            conversation_id=claim["message"]["conversation_id"],
            topic=claim["topic"],
            body=claim["message"]["body"],
            metadata=claim["message"]["metadata"] or {},
            max_body_size=answer["max_body_size"],
        )
        for claim in answer["claims"]
    ]
