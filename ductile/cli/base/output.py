"""What a command prints and how it exits: results on stdout, everything else on stderr, errors in one shape.

Exit codes and the JSON form of errors are decided here and nowhere else.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import click

from ductile.cli.base import terminal
from ductile.core.errors import ConfigInvalid, DuctileError, UsageInvalid

USAGE_EXIT = 2
WARNINGS_EXIT = 3
INTERRUPTED_EXIT = 130
SET_IN = 4
DETAILED = "ductile.detailed"
"""In the context of a command that was given `-v`."""


def show(value: Any, *, as_json: bool, human: Callable[[Any], Iterable[str]]) -> None:
    """Print `value`: as JSON, or as the lines `human` makes of it."""
    if as_json:
        click.echo(as_text(value))
    else:
        for line in human(value):
            tell(line)


def tell(line: str) -> None:
    """One line of the result, for people. Breaks in it are set in: what a plugin says never looks like our words."""
    coloured = terminal.wants_colour(sys.stdout)
    margin = "\n" + " " * (len(line) - len(line.lstrip(" ")) + SET_IN)
    click.echo(terminal.printed(line.replace("\n", margin), coloured=coloured), color=coloured)


def as_text(value: Any) -> str:
    """JSON for people and programs; nothing in it does anything to a terminal."""
    return terminal.cleaned_json(json.dumps(value, indent=2, ensure_ascii=False))


def note(line: str) -> None:
    """Something to know that is not the result."""
    coloured = terminal.wants_colour(sys.stderr)
    click.echo(terminal.printed(line, coloured=coloured), err=True, color=coloured)


def detail(line: str) -> None:
    """Something to know for those who asked for more with `-v`."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(DETAILED):
        note(line)


def counted(number: int, noun: str) -> str:
    """`no error`, `1 error`, `2 errors`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """One text for each row, with aligned columns; on a terminal it fits, and states have colours."""
    columns = terminal.width()
    return terminal.aligned(rows) if columns is None else terminal.fitted(rows, columns)


def run(command: click.Command, args: list[str]) -> int:
    """Run the command line and return the exit code. No traceback reaches the operator."""
    as_json = "--json" in args or ("--format", "json") in pairwise(args) or "--format=json" in args
    stdout = sys.stdout
    try:
        _require_text(args)
        result = command.main(args=args, prog_name="ductile", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE_EXIT
    except click.ClickException as error:
        return _fail_usage(error, as_json=as_json)
    except click.exceptions.Abort:
        return INTERRUPTED_EXIT
    except DuctileError as error:
        return fail(error, as_json=as_json)
    except BaseExceptionGroup as group:
        return _fail_together(group, as_json=as_json)
    except BrokenPipeError:
        # The reader of a pipe left early; Python would complain once more while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit:
        if sys.stdout is not stdout:  # click put another in its place because its reader left early
            return 0
        raise
    except OSError as error:  # a path that people gave may be refused in more ways than those who use it expect
        return fail(_translated(error), as_json=as_json)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    return result if isinstance(result, int) else 0


def _translated(error: OSError) -> DuctileError:
    """Of a path that is relative to a directory that is gone, the system says no more than that something is."""
    if isinstance(error, FileNotFoundError) and error.filename is None and not _stands_somewhere():
        return UsageInvalid("the working directory does not exist any more", hint="change to one that does: cd DIR")
    return DuctileError(str(error))


def _stands_somewhere() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _require_text(args: Sequence[str]) -> None:
    """UsageInvalid for arguments that no file, ledger or service could take."""
    for argument in args:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageInvalid(f"the argument {ascii(argument)[:80]} is not UTF-8") from None


def fail(error: DuctileError, *, as_json: bool) -> int:
    """Tell what went wrong and give the exit code for it."""
    if as_json:
        click.echo(as_text(as_error(error)))
        return error.exit_code
    for line in str(error).splitlines():
        note(f"error: {line}")
    if error.hint:
        note(f"hint: {error.hint}")
    return error.exit_code


def fail_in_a_line(error: DuctileError | BaseExceptionGroup[BaseException]) -> int:
    """The same where stdout has one JSON object a line: the error is the last of them."""
    reason = error if isinstance(error, DuctileError) else _reasons(error)[0]
    click.echo(terminal.cleaned_json(json.dumps(as_error(reason), ensure_ascii=False)))
    return reason.exit_code


def _fail_together(group: BaseExceptionGroup[BaseException], *, as_json: bool) -> int:
    """Several tasks of the service failed at once: tell each reason."""
    return max(fail(error, as_json=as_json) for error in _reasons(group)[: 1 if as_json else None])


def _reasons(group: BaseExceptionGroup[BaseException]) -> list[DuctileError]:
    """Each reason once; a mistake of ours is raised as it is."""
    known, unknown = group.split(DuctileError)
    if unknown is not None or known is None:
        raise group
    return list({str(error): error for error in _leaves(known)}.values())


def _leaves(group: BaseExceptionGroup[DuctileError]) -> Iterator[DuctileError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def as_error(error: DuctileError) -> dict[str, Any]:
    """The one JSON form of an error."""
    context = dict(error.context)
    if isinstance(error, ConfigInvalid):
        context["complaints"] = [str(complaint) for complaint in error.complaints]
    return {
        "error": str(error),
        "code": error.code,
        "exit_code": error.exit_code,
        "hint": error.hint,
        "context": context,
    }


def _fail_usage(error: click.ClickException, *, as_json: bool) -> int:
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see `{context.command_path} --help`" if context else "see `ductile --help`"
    if as_json:
        content = {
            "error": error.format_message(),
            "code": "usage",
            "exit_code": USAGE_EXIT,
            "hint": hint,
            "context": {},
        }
        click.echo(as_text(content))
    else:
        note(f"error: {error.format_message()}")
        note(f"hint: {hint}")
    return USAGE_EXIT
