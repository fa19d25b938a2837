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

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Complaint":
        """What `as_data` made, as it was."""
        mark = Mark(data["file"], data["line"]) if "file" in data else None
        return cls(data["message"], data["field"], mark, data["category"])

    def as_data(self) -> dict[str, Any]:
        place = {"file": self.mark.source, "line": self.mark.line} if self.mark else {}
        return {"category": self.category, "message": self.message, "field": self.path, **place}


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
    hint: str = "`ductile system doctor` looks at configuration, ledger and service and says what can be done"

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, context: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message or type(self).__doc__)
        if hint:
            self.hint = hint
        self.context: dict[str, Any] = dict(context or {})


class UsageInvalid(DuctileError):
    """The command line asks for something that does not exist."""

    code, exit_code, status = "usage", 2, 400
    hint = "`--help` behind the command says what it takes"


class NotFound(DuctileError):
    """There is nothing with that name or id."""

    code, exit_code, status = "not_found", 1, 404
    hint = "`ductile system describe` names plugins and pipelines, `ductile job list` the newest jobs"


class WrongState(DuctileError):
    """The job is not in a state in which this can be done."""

    code, exit_code, status = "wrong_state", 1, 409
    hint = "`ductile job inspect` shows the state it is in"


class NotAllowed(DuctileError):
    """The caller may not do this."""

    code, exit_code, status = "not_allowed", 77, 403
    hint = "ask whoever runs this Ductile, or use a token with more scopes"


class ServiceUnreachable(DuctileError):
    """The service does not answer."""

    code, exit_code, status = "unreachable", 69, 503
    hint = "is it running? start it with `ductile system start`"


class AlreadyRunning(DuctileError):
    """Another instance holds the lock."""

    code, exit_code, status = "already_running", 75, 409
    hint = "`ductile system status` tells how the one that runs is; stop it first"


class Unreadable(DuctileError):
    """A text is not what its format allows."""

    code, exit_code, status = "unreadable", 78, 400
    hint = "mend the text at that line"

    def __init__(self, reason: str, mark: Mark) -> None:
        super().__init__(
            f"{mark.source}:{mark.line}:{mark.column}: {reason}",
            context={"file": mark.source, "line": mark.line, "column": mark.column},
        )
        self.reason, self.mark = reason, mark


class ConfigMissing(DuctileError):
    """No configuration was found."""

    code, exit_code, status = "config_missing", 78, 500
    hint = "make one with `ductile config init`, or name one with --config"


class ConfigInvalid(DuctileError):
    """The configuration cannot be used."""

    code, exit_code, status = "config_invalid", 78, 422
    hint = "mend what is named; `ductile config check` tells whether that is all"

    def __init__(self, complaints: Iterable[Complaint], *, hint: str | None = None) -> None:
        self.complaints = tuple(complaints)
        super().__init__("\n".join(map(str, self.complaints)), hint=hint)


class RestartNeeded(ConfigInvalid):
    """The service must be started anew to use what is on disk."""

    code = "restart_needed"
    hint = "the old configuration stays; end the service and start it again to change it"


class IntegrityBroken(ConfigInvalid):
    """What is on disk is not what was sealed."""

    code = "integrity_broken"
    hint = "`ductile config lock --dry-run` shows everything that differs from the seal"


class PluginRejected(DuctileError):
    """A plugin is not trusted or not usable."""

    code, exit_code, status = "plugin_rejected", 78, 409
    hint = "mend what is named; `ductile plugin check` tells whether that is all"


class PipelineInvalid(ConfigInvalid):
    """A pipeline cannot be compiled."""

    code = "pipeline_invalid"


class LedgerError(DuctileError):
    """The ledger cannot be used."""

    code, exit_code, status = "ledger_error", 78, 503
    hint = "`ductile system doctor` examines the ledger and says what can be done"


class LedgerLost(LedgerError):
    """The ledger can no longer be written."""

    code, exit_code = "ledger_lost", 1
    hint = "start the service again; it puts right what was running"


class LedgerBusy(LedgerError):
    """The ledger is in use by another process."""

    code, exit_code = "ledger_busy", 75
    hint = "try again in a moment"


class LedgerFull(LedgerError):
    """The disk that holds the ledger is full."""

    code, exit_code = "ledger_full", 75
    hint = "make room on that disk; a running service goes on by itself"
