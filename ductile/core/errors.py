"""The exceptions of Ductile, each with a stable code, an exit code, an HTTP status and a hint.

A plugin's failure is not an exception but an outcome (see `model`). Exceptions of libraries are translated next to the
call that raised them. The CLI and the web server each format these in one place.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, NotRequired, TypedDict

from attrs import field, frozen

_PASSWORD = r"(://[^\s/:@]*:)[^\s/@]+@"
"""The password part of a URL, which error messages must not contain."""


def _without_password(text: str) -> str:
    return re.sub(_PASSWORD, r"\1***@", text)


@frozen
class Mark:
    """A position in a text. Lines and columns count from 1."""

    source: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


class ComplaintView(TypedDict):
    category: str
    message: str
    field: str
    file: NotRequired[str]
    line: NotRequired[Annotated[int, {"minimum": 0}]]


@frozen
class Complaint:
    """A validation error in a configuration file or manifest: position, key path and message."""

    message: str = field(converter=_without_password)
    path: str = ""
    mark: Mark | None = None
    category: str = "config"

    def __str__(self) -> str:
        return ": ".join(str(part) for part in (self.mark, self.path, self.message) if part)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "Complaint":
        """Restore a complaint from the output of `as_data`."""
        mark = Mark(data["file"], data["line"]) if "file" in data else None
        return cls(data["message"], data["field"], mark, data["category"])

    def as_data(self) -> ComplaintView:
        view: ComplaintView = {"category": self.category, "message": self.message, "field": self.path}
        if self.mark:
            view |= {"file": self.mark.source, "line": self.mark.line}
        return view


MIN_ABBREVIATION = 3


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.65) -> str:
    """Return ` (did you mean 'x'?)`, or an empty string if no known word is close."""
    close = closest_name(word, known, cutoff=cutoff)
    return f" (did you mean {close!r}?)" if close else ""


def closest_name(word: str, known: Iterable[str], *, cutoff: float = 0.65) -> str | None:
    """Return the known word that is closest to `word`; None if none is close. `sync` stands for `synchronous`."""
    # A slow import that is needed only for errors.
    from difflib import get_close_matches

    names = list(known)
    longer = [name for name in names if len(word) >= MIN_ABBREVIATION and name.startswith(word)]
    close = longer if len(longer) == 1 else get_close_matches(word, names, n=1, cutoff=cutoff)
    return close[0] if close else None


class DuctileError(Exception):
    """Ductile cannot do what was requested."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    status: ClassVar[int] = 500
    hint: str = "Run `ductile system doctor` to check configuration, ledger and service."

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, context: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message or type(self).__doc__)
        if hint:
            self.hint = hint
        self.context: dict[str, Any] = dict(context or {})


class UsageInvalid(DuctileError):
    """The command line is invalid."""

    code, exit_code, status = "usage", 2, 400
    hint = "Add --help to the command to see its arguments and options."


class NotFound(DuctileError):
    """Nothing with that name or id exists."""

    code, exit_code, status = "not_found", 1, 404
    hint = "Run `ductile system describe` to list plugins and pipelines, or `ductile job list` to list jobs."


class WrongState(DuctileError):
    """The job is not in a state that allows this."""

    code, exit_code, status = "wrong_state", 1, 409
    hint = "Run `ductile job inspect` to see its state."


class NotAllowed(DuctileError):
    """The caller is not allowed to do this."""

    code, exit_code, status = "not_allowed", 77, 403
    hint = "Use a token with more scopes."


class ServiceUnreachable(DuctileError):
    """The service does not respond."""

    code, exit_code, status = "unreachable", 69, 503
    hint = "Start the service with `ductile system start`."


class AlreadyRunning(DuctileError):
    """Another instance holds the lock."""

    code, exit_code, status = "already_running", 75, 409
    hint = "Stop the running instance first; `ductile system status` shows it."


class Unreadable(DuctileError):
    """A text does not conform to its format."""

    code, exit_code, status = "unreadable", 78, 400
    hint = "Fix the text at that line."

    def __init__(self, reason: str, mark: Mark) -> None:
        super().__init__(
            f"{mark.source}:{mark.line}:{mark.column}: {reason}",
            context={"file": mark.source, "line": mark.line, "column": mark.column},
        )
        self.reason, self.mark = reason, mark


class ConfigMissing(DuctileError):
    """No configuration was found."""

    code, exit_code, status = "config_missing", 78, 500
    hint = "Create one with `ductile config init`, or select one with --config."


class ConfigInvalid(DuctileError):
    """The configuration is invalid."""

    code, exit_code, status = "config_invalid", 78, 422
    hint = "Fix the errors above, then run `ductile config check`."

    def __init__(self, complaints: Iterable[Complaint], *, hint: str | None = None) -> None:
        self.complaints = tuple(complaints)
        super().__init__("\n".join(map(str, self.complaints)), hint=hint)


class RestartNeeded(ConfigInvalid):
    """The change takes effect only after a restart of the service."""

    code = "restart_needed"
    hint = "The service keeps its current configuration. Restart it to apply the change."


class IntegrityBroken(ConfigInvalid):
    """The files on disk differ from the seal."""

    code = "integrity_broken"
    hint = "Run `ductile config lock --dry-run` to list the differences."


class PluginRejected(DuctileError):
    """A plugin is not trusted or is invalid."""

    code, exit_code, status = "plugin_rejected", 78, 409
    hint = "Fix the errors above, then run `ductile plugin check`."


class PipelineInvalid(ConfigInvalid):
    """A pipeline cannot be compiled."""

    code = "pipeline_invalid"


class LedgerError(DuctileError):
    """The ledger cannot be used."""

    code, exit_code, status = "ledger_error", 78, 503
    hint = "Run `ductile system doctor` to check the ledger."

    def __init__(
        self,
        reason: str | None = None,
        *,
        path: object = None,
        hint: str | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        self.reason, self.path = reason or str(type(self).__doc__), path
        super().__init__(self.reason if path is None else f"{path}: {self.reason}", hint=hint, context=context)


class LedgerLost(LedgerError):
    """The ledger is no longer writable."""

    code, exit_code = "ledger_lost", 1
    hint = "Restart the service; it recovers the jobs that were running."


class LedgerBusy(LedgerError):
    """The ledger is in use by another process."""

    code, exit_code = "ledger_busy", 75
    hint = "Try again in a moment."


class LedgerFull(LedgerError):
    """The disk of the ledger is full."""

    code, exit_code = "ledger_full", 75
    hint = "Free disk space. A running service continues by itself."
