"""The error family: what Ductile could not do, with a stable code, an exit code, an HTTP status and a hint.

What a plugin did wrong is not an error but an outcome (see `model`). Foreign errors are translated next to the call
that raised them. The CLI and the web turn these into words and numbers in one place each.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

_PASSWORD = r"(://[^\s/:@]*:)[^\s/@]+@"
"""In an address; whoever complains about the address does not repeat it."""


def _without_password(text: str) -> str:
    return re.sub(_PASSWORD, r"\1***@", text)


class Mark(NamedTuple):
    """A place in a text: lines and columns count from 1."""

    source: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


class _Complaint(NamedTuple):
    message: str
    path: str = ""
    mark: Mark | None = None
    category: str = "config"


class Complaint(_Complaint):
    """One thing that is wrong with what the operator wrote: where, which value, what, and what is allowed."""

    __slots__ = ()

    def __new__(cls, message: str, path: str = "", mark: Mark | None = None, category: str = "config") -> "Complaint":
        return super().__new__(cls, _without_password(message), path, mark, category)

    def __str__(self) -> str:
        return ": ".join(str(part) for part in (self.mark, self.path, self.message) if part)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known word is close."""
    # Costs more to import than most texts cost to read, and is needed only for mistakes.
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=1, cutoff=0.65)
    return f" (did you mean {close[0]!r}?)" if close else ""


class DuctileError(Exception):
    """Ductile cannot do what it was asked."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    status: ClassVar[int] = 500
    hint: str = ""

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, context: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message or type(self).__doc__)
        if hint is not None:
            self.hint = hint
        self.context: dict[str, Any] = dict(context or {})


class UsageInvalid(DuctileError):
    """The command line asks for something that does not exist."""

    code, exit_code, status = "usage", 2, 400


class NotFound(DuctileError):
    """There is nothing with that name or id."""

    code, exit_code, status = "not_found", 1, 404


class WrongState(DuctileError):
    """The job is not in a state in which this can be done."""

    code, exit_code, status = "wrong_state", 1, 409


class NotAllowed(DuctileError):
    """The caller may not do this."""

    code, exit_code, status = "not_allowed", 77, 403


class ServiceUnreachable(DuctileError):
    """The service does not answer."""

    code, exit_code, status = "unreachable", 69, 503


class AlreadyRunning(DuctileError):
    """Another instance holds the lock."""

    code, exit_code, status = "already_running", 75, 409


class Unreadable(DuctileError):
    """A text is not what its format allows."""

    code, exit_code, status = "unreadable", 78, 400

    def __init__(self, reason: str, mark: Mark) -> None:
        super().__init__(
            f"{mark.source}:{mark.line}:{mark.column}: {reason}",
            context={"file": mark.source, "line": mark.line, "column": mark.column},
        )
        self.reason, self.mark = reason, mark


class ConfigMissing(DuctileError):
    """No configuration was found."""

    code, exit_code, status = "config_missing", 78, 500


class ConfigInvalid(DuctileError):
    """The configuration cannot be used."""

    code, exit_code, status = "config_invalid", 78, 422

    def __init__(self, complaints: Iterable[Complaint], *, hint: str | None = None) -> None:
        self.complaints = tuple(complaints)
        super().__init__("\n".join(map(str, self.complaints)), hint=hint)


class IntegrityBroken(ConfigInvalid):
    """What is on disk is not what was sealed."""

    code = "integrity_broken"
    hint = "`ductile config lock --dry-run` shows everything that differs from the seal"


class PluginRejected(DuctileError):
    """A plugin is not trusted or not usable."""

    code, exit_code, status = "plugin_rejected", 78, 409


class PipelineInvalid(ConfigInvalid):
    """A pipeline cannot be compiled."""

    code = "pipeline_invalid"


class LedgerError(DuctileError):
    """The ledger cannot be used."""

    code, exit_code, status = "ledger_error", 78, 503


class LedgerLost(LedgerError):
    """The ledger can no longer be written."""

    code, exit_code = "ledger_lost", 1


class LedgerBusy(LedgerError):
    """The ledger is in use by another process."""

    code, exit_code = "ledger_busy", 75


class LedgerFull(LedgerError):
    """The disk that holds the ledger is full."""

    code, exit_code = "ledger_full", 75
