"""Terminal output: tables fit, states are coloured, control characters of plugins are escaped."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.cli.base import terminal
from ductile.core.model import Failed
from tests.cli.base.terminals import run_in_terminal
from tests.cli.history import past_of

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b2J\x00\r\u202egnorw\u2066 日本語のエラー 🔥\ttab \ufdd1mark"
COMMANDS = ("job list", "job logs", "job inspect {failed}", "job tree {failed}", "job why {failed}", "queue status")
ESCAPE = re.compile(rb"\x1b\[[0-9;]*m")


@pytest.fixture
def home(demo: Path) -> tuple[Path, str]:
    """A ledger with a job that failed with hostile output, one that succeeded and one that is queued."""
    with past_of(demo) as past:
        past.enqueue()
        past.end(past.claim_one("echo"), None)
        past.enqueue(plugin="echo")
        failed = past.claim_one("echo")
        evidence = past.evidence(exit_code=1, stderr=f"{HOSTILE}\n{HOSTILE}", result=HOSTILE)
        past.end(failed, Failed(f"{HOSTILE} " + "word " * 60, evidence))
        past.enqueue(plugin="echo")
    return demo, failed.id


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_plugin_output_cannot_control_the_terminal(home: tuple[Path, str], command: str, columns: int) -> None:
    """Only Ductile's own colours reach the terminal."""
    where, failed = home
    picture = run_in_terminal(*command.format(failed=failed).split(), "--config", where, columns=columns)

    assert picture.exit_code == 0, picture.lines
    rest = ESCAPE.sub(b"", picture.sent).decode()
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufdd0-\ufddf]", rest)
    assert picture.screen.title == ""


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("command", ["job list", "job logs", "queue list", "plugin list", "config token list"])
def test_tables_fit_and_ids_are_not_broken(home: tuple[Path, str], command: str, columns: int) -> None:
    where, failed = home
    picture = run_in_terminal(*command.split(), "--config", where, columns=columns)

    assert picture.exit_code == 0, picture.lines
    shown = [line for line in ESCAPE.sub(b"", picture.sent).decode().splitlines() if "in total" not in line]
    from rich.cells import cell_len

    assert max(map(cell_len, shown)) <= columns, shown
    if command in ("job list", "job logs"):
        assert any(failed in line for line in picture.lines)


def test_states_have_colours(home: tuple[Path, str]) -> None:
    picture = run_in_terminal("job", "list", "--config", home[0], columns=200)

    assert [picture.colour_of(word) for word in ("succeeded", "failed", "queued")] == ["green", "red", "brown"]


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
def test_no_color_and_dumb_terminals_get_no_colours(home: tuple[Path, str], environ: dict[str, str]) -> None:
    picture = run_in_terminal("job", "list", "--config", home[0], columns=200, environ=environ)

    assert b"\x1b" not in picture.sent
    assert "succeeded" in "".join(picture.lines)


def piped(*args: object, **environ: str) -> str:
    """Return what `ductile ARGS…` prints to a pipe."""
    script = "from ductile.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environ},
    )
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_plugin_output_is_escaped_in_pipes(home: tuple[Path, str], command: str) -> None:
    """A pipe gets no colours and one line per row."""
    text = piped(*command.format(failed=home[1]).split(), "--config", home[0])

    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert command not in ("job list", "job logs") or len([line for line in text.splitlines() if home[1] in line]) == 1


def test_json_escapes_control_characters_and_keeps_the_value(home: tuple[Path, str]) -> None:
    text = piped("job", "list", "--json", "--config", home[0])

    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    errors = [job.get("last_error", "") for job in json.loads(text)["jobs"]]
    assert any(HOSTILE in error for error in errors)


def test_force_color_adds_colours_to_pipes(home: tuple[Path, str]) -> None:
    plain, forced = (piped("job", "why", home[1], "--config", home[0], **more) for more in ({}, {"FORCE_COLOR": "1"}))

    assert "\x1b[31m" in forced
    assert re.sub(r"\x1b\[[0-9;]*m", "", forced) == plain


CELLS = st.text(max_size=60) | st.sampled_from([HOSTILE, "succeeded", "3m ago (2026-02-08 09:30:00Z)", "x" * 300])


@settings(deadline=None)  # the first table imports rich
@given(
    rows=st.integers(1, 5).flatmap(lambda n: st.lists(st.tuples(*[CELLS] * n), min_size=1, max_size=5)),
    at=st.integers(20, 200),
)
def test_any_table_fits_any_width(rows: list[tuple[str, ...]], at: int) -> None:
    """One text per row, except a header that is merged into the rows."""
    from rich.cells import cell_len

    texts = [terminal.render(text, coloured=False) for text in terminal.fit_table(rows, at)]

    assert len(texts) in (len(rows), len(rows) - 1)
    assert all(cell_len(line) <= at for text in texts for line in text.split("\n"))
