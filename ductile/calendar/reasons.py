"""Why a slot did not run: stable codes for programs, words for people.

The codes that the original had keep their names. The scheduler uses those that it decides itself.
"""

from enum import StrEnum


class SkipReason(StrEnum):
    """A code; `words` says the same to people."""

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
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    SkipReason.NOT_DUE: "its time has not come",
    SkipReason.SCHEDULE_PAUSED_MANUAL: "paused by the operator",
    SkipReason.SCHEDULE_EXHAUSTED: "it ran once and does not repeat",
    SkipReason.INVALID_SCHEDULE_CONFIG: "the schedule is not valid",
    SkipReason.SCHEDULED_HANDLE_DISALLOWED: "`handle` needs an event and cannot be scheduled",
    SkipReason.COMMAND_NOT_SUPPORTED: "the plugin has no such command",
    SkipReason.OUTSIDE_DAY_CONSTRAINT: "not on this weekday; it fires when the day is over",
    SkipReason.OUTSIDE_TIME_WINDOW: "outside its window; it fires when that opens",
    SkipReason.CIRCUIT_OPEN: "the circuit breaker is open after failures in a row",
    SkipReason.ALREADY_RUNNING: "its previous job is not finished",
    SkipReason.OUTSTANDING_LIMIT: "as many of its jobs are waiting as may",
    SkipReason.MISSED: "nobody looked within a minute of its time: the service was down, its plugin could not run, "
    "or the clock jumped",
    SkipReason.SUPERSEDED: "a later slot of the same schedule runs in its place",
    SkipReason.CLOCK_SET_BACK: "the clock was set back; the schedule goes on from the time it shows now",
    SkipReason.CATCH_UP_CAPPED: "more slots were missed than are made up for; the latest hundred run",
    SkipReason.PLUGIN_UNHEALTHY: "its plugin is unhealthy: `init` has failed",
    SkipReason.SCHEDULE_FAULT: "the scheduler fails at this schedule, goes on with the others and tries it again",
}
