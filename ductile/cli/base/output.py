"""Output and exit codes of commands: results on stdout, everything else on stderr, errors in one JSON form.

Owns the mapping from errors to exit codes. Knows nothing of single commands.
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
CONTINUATION_INDENT = 4
DETAILED = "ductile.detailed"
"""Key in the context of a command that has `-v`."""


def show(value: Any, *, as_json: bool, human: Callable[[Any], Iterable[str]]) -> None:
    """Print `value` as JSON, or as the lines that `human` returns."""
    if as_json:
        click.echo(format_json(value))
    else:
        for line in human(value):
            print_line(line)


def print_line(line: str) -> None:
    """Print one line of the result. Line breaks in it are indented, so plugin text cannot imitate Ductile's output."""
    coloured = terminal.wants_colour(sys.stdout)
    margin = "\n" + " " * (len(line) - len(line.lstrip(" ")) + CONTINUATION_INDENT)
    click.echo(terminal.render(line.replace("\n", margin), coloured=coloured), color=coloured)


def format_json(value: Any) -> str:
    """Format the value as indented JSON without terminal control characters."""
    return terminal.escape_json_controls(json.dumps(value, indent=2, ensure_ascii=False))


def note(line: str) -> None:
    """Print a line to stderr that is not part of the result."""
    coloured = terminal.wants_colour(sys.stderr)
    click.echo(terminal.render(line, coloured=coloured), err=True, color=coloured)


def detail(line: str) -> None:
    """Print a line to stderr if the command has `-v`."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(DETAILED):
        note(line)


def format_count(number: int, noun: str) -> str:
    """Format a count: `no errors`, `1 error`, `2 errors`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def format_dead(dead: int, cancelled: int) -> str:
    """Format the number of dead jobs, and how many of them an operator cancelled or purged."""
    return f"{dead} dead, {cancelled} of them cancelled" if cancelled else f"{dead} dead"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format rows with aligned columns, one text per row. On a terminal they fit its width and states are coloured."""
    columns = terminal.width()
    return terminal.align_table(rows) if columns is None else terminal.fit_table(rows, columns)


def run(command: click.Command, args: list[str]) -> int:
    """Run the command line and return the exit code. Print errors without a traceback."""
    own = args[: args.index("--")] if "--" in args else args
    as_json = "--json" in own or ("--format", "json") in pairwise(own) or "--format=json" in own
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
        return _fail_group(group, as_json=as_json)
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python reports the error again at shutdown.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit:
        if sys.stdout is not stdout:  # click replaces stdout when the reader closes the pipe
            return 0
        raise
    except OSError as error:  # any path of the command line may fail in ways its command does not expect
        return fail(_translated(error), as_json=as_json)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    return result if isinstance(result, int) else 0


def _translated(error: OSError) -> DuctileError:
    """Turn an OSError into an error. A relative path in a deleted working directory has no file name in its error."""
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_working_directory():
        return UsageInvalid("the working directory no longer exists", hint="Change to an existing directory.")
    return DuctileError(str(error))


def _has_working_directory() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _require_text(args: Sequence[str]) -> None:
    """Raise UsageInvalid for an argument that is not UTF-8."""
    for argument in args:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageInvalid(f"the argument {ascii(argument)[:80]} is not UTF-8") from None


def fail(error: DuctileError, *, as_json: bool) -> int:
    """Print the error and return its exit code."""
    if as_json:
        click.echo(format_json(error_data(error)))
        return error.exit_code
    for line in str(error).splitlines():
        note(f"error: {line}")
    if error.hint:
        note(f"hint: {error.hint}")
    return error.exit_code


def fail_on_one_line(error: DuctileError | BaseExceptionGroup[BaseException]) -> int:
    """Print the error as one line of JSON and return its exit code."""
    reason = error if isinstance(error, DuctileError) else _reasons(error)[0]
    click.echo(terminal.escape_json_controls(json.dumps(error_data(reason), ensure_ascii=False)))
    return reason.exit_code


def _fail_group(group: BaseExceptionGroup[BaseException], *, as_json: bool) -> int:
    """Print the errors of several tasks of the service and return the highest exit code."""
    return max(fail(error, as_json=as_json) for error in _reasons(group)[: 1 if as_json else None])


def _reasons(group: BaseExceptionGroup[BaseException]) -> list[DuctileError]:
    """Return the distinct errors of the group. Raise the group if it has an unexpected exception."""
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


def error_data(error: DuctileError) -> dict[str, Any]:
    """Return the JSON form of the error."""
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
    hint = f"Run `{context.command_path} --help`." if context else "Run `ductile --help`."
    if as_json:
        content = {
            "error": error.format_message(),
            "code": "usage",
            "exit_code": USAGE_EXIT,
            "hint": hint,
            "context": {},
        }
        click.echo(format_json(content))
    else:
        note(f"error: {error.format_message()}")
        note(f"hint: {hint}")
    return USAGE_EXIT
