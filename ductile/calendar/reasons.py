"""Why a slot did not fire: stable codes, each with a message.

Codes that the original Ductile had keep their names.
"""

from enum import StrEnum


class SkipReason(StrEnum):
    """A stable code with a message."""

    NOT_DUE = "not_due"
    SCHEDULE_PAUSED_MANUAL = "schedule_paused_manual"
    SCHEDULE_EXHAUSTED = "schedule_exhausted"
    INVALID_SCHEDULE_CONFIG = "invalid_schedule_config"
    SCHEDULED_HANDLE_DISALLOWED = "scheduled_handle_disallowed"
    COMMAND_NOT_SUPPORTED = "command_not_supported"
    OUTSIDE_DAY_CONSTRAINT = "outside_day_constraint"
    OUTSIDE_TIME_WINDOW = "outside_time_window"
    CIRCUIT_OPEN = "circuit_open"
    ALREADY_RUNNING = "already_running"
    OUTSTANDING_LIMIT = "outstanding_limit"
    MISSED = "missed"
    SUPERSEDED = "superseded"
    CLOCK_SET_BACK = "clock_set_back"
    CATCH_UP_CAPPED = "catch_up_capped"
    PLUGIN_UNHEALTHY = "plugin_unhealthy"
    SCHEDULE_FAULT = "schedule_fault"

    @property
    def message(self) -> str:
        return _MESSAGES[self]


_MESSAGES = {
    SkipReason.NOT_DUE: "not due yet",
    SkipReason.SCHEDULE_PAUSED_MANUAL: "paused by the operator",
    SkipReason.SCHEDULE_EXHAUSTED: "it ran once and does not repeat",
    SkipReason.INVALID_SCHEDULE_CONFIG: "the schedule is not valid",
    SkipReason.SCHEDULED_HANDLE_DISALLOWED: "`handle` needs an event and cannot be scheduled",
    SkipReason.COMMAND_NOT_SUPPORTED: "the plugin has no such command",
    SkipReason.OUTSIDE_DAY_CONSTRAINT: "not on this weekday; it fires on the next allowed day",
    SkipReason.OUTSIDE_TIME_WINDOW: "outside its window; it fires when the window opens",
    SkipReason.CIRCUIT_OPEN: "the circuit breaker is open after consecutive failures",
    SkipReason.ALREADY_RUNNING: "its previous job is not finished",
    SkipReason.OUTSTANDING_LIMIT: "the limit of its unfinished jobs is reached",
    SkipReason.MISSED: "more than a minute late: the service was down, its plugin could not run, or the clock jumped",
    SkipReason.SUPERSEDED: "a later slot of the same schedule runs instead",
    SkipReason.CLOCK_SET_BACK: "the clock was set back; the schedule continues from the current time",
    SkipReason.CATCH_UP_CAPPED: "too many slots were missed; only the latest hundred run",
    SkipReason.PLUGIN_UNHEALTHY: "its plugin is unhealthy: `init` has failed",
    SkipReason.SCHEDULE_FAULT: "an internal error in the scheduler; it tries this schedule again",
}
