"""The heartbeat: request a URL at an interval while the service is healthy. A monitor reports when the requests stop.

A failed request is logged and never affects the service. The URL is a secret and is never logged.
"""

from collections.abc import Callable

import trio
from attrs import define

from ductile.config.sections.monitoring import Heartbeat
from ductile.core.hub import CONFIGURATION, Hub
from ductile.core.logs import Log
from ductile.core.units import format_duration
from ductile.relay.client import NoResponse, send_request


@define(eq=False)
class HeartbeatSender:
    """Sends the heartbeat of one service."""

    config: Callable[[], Heartbeat | None]
    """Return the current configuration, which a reload can change."""
    is_healthy: Callable[[], bool]
    hub: Hub
    log: Log
    _failures: int = 0
    """Requests that failed in a row."""
    _is_withheld: bool = False

    async def run(self) -> None:
        """Send heartbeats until cancelled. A reload takes effect immediately."""
        with self.hub.watch(CONFIGURATION) as reloads:
            while True:
                heartbeat, started = self.config(), trio.current_time()
                if heartbeat is None:
                    await reloads.receive()
                    continue
                await self._beat(heartbeat)
                with trio.CancelScope(deadline=started + heartbeat.interval.total_seconds()):
                    await reloads.receive()

    async def _beat(self, heartbeat: Heartbeat) -> None:
        """Send one request, unless the service is degraded."""
        if not self.is_healthy():
            if not self._is_withheld:
                self.log.warn("heartbeat", "heartbeat withheld: the service is degraded or stopping")
            self._is_withheld = True
            return
        self._is_withheld = False
        error = await _request(heartbeat)
        if error is not None:
            self._failures += 1
            if self._failures.bit_count() == 1:  # the first, second, fourth, eighth …: a monitor can be down for days
                self.log.warn("heartbeat", f"heartbeat failed: {error}", failures=self._failures)
        elif self._failures:
            self.log.info("heartbeat", "heartbeat succeeded again", failures=self._failures)
            self._failures = 0


async def _request(heartbeat: Heartbeat) -> str | None:
    """Send one request within the timeout. Return the error; None if the monitor accepted it."""
    with trio.move_on_after(heartbeat.timeout.total_seconds()):
        try:
            response = await send_request(heartbeat.method, heartbeat.url.reveal(), {})
        except NoResponse as error:
            return str(error)
        except Exception as error:
            return f"internal error: {type(error).__name__}"
        return None if 200 <= response.status < 300 else f"the monitor responded with HTTP {response.status}"
    return f"no response within {format_duration(heartbeat.timeout)}"
