"""What stands on a terminal: tables fit, states have colours, and nothing that a plugin says is obeyed."""

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
from tests.cli.history import past_of
from tests.cli.terminals import run_in_terminal

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b2J\x00\r\u202egnorw\u2066 日本語のエラー 🔥\ttab \ufdd1mark"
COMMANDS = ("job list", "job logs", "job inspect {failed}", "job tree {failed}", "job why {failed}", "queue status")
ESCAPE = re.compile(rb"\x1b\[[0-9;]*m")


@pytest.fixture
def home(demo: Path) -> tuple[Path, str]:
    """A ledger in which one job failed with every trick there is, one succeeded and one waits."""
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
def test_nothing_a_plugin_says_is_obeyed_by_a_terminal(home: tuple[Path, str], command: str, columns: int) -> None:
    """Whatever is in the ledger, only our own colours reach the terminal, and the screen is as we left it."""
    where, failed = home
    picture = run_in_terminal(*command.format(failed=failed).split(), "--config", where, columns=columns)

    assert picture.exit_code == 0, picture.lines
    rest = ESCAPE.sub(b"", picture.sent).decode()
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufdd0-\ufddf]", rest)
    assert picture.screen.title == ""


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("command", ["job list", "job logs", "queue list", "plugin list", "config token list"])
def test_a_table_fits_and_every_id_is_whole(home: tuple[Path, str], command: str, columns: int) -> None:
    """No line of a table is longer than the terminal is wide, and an id can be copied from it."""
    where, failed = home
    picture = run_in_terminal(*command.split(), "--config", where, columns=columns)

    assert picture.exit_code == 0, picture.lines
    shown = [line for line in ESCAPE.sub(b"", picture.sent).decode().splitlines() if "in all" not in line]
    from rich.cells import cell_len

    assert max(map(cell_len, shown)) <= columns, shown
    if command in ("job list", "job logs"):
        assert any(failed in line for line in picture.lines)


def test_states_have_colours(home: tuple[Path, str]) -> None:
    """What went well is green, what failed red, what waits yellow."""
    picture = run_in_terminal("job", "list", "--config", home[0], columns=200)

    assert [picture.colour_of(word) for word in ("succeeded", "failed", "queued")] == ["green", "red", "brown"]


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
def test_who_wants_no_colour_gets_none(home: tuple[Path, str], environ: dict[str, str]) -> None:
    """NO_COLOR and a dumb terminal: the same table without a single escape."""
    picture = run_in_terminal("job", "list", "--config", home[0], columns=200, environ=environ)

    assert b"\x1b" not in picture.sent
    assert "succeeded" in "".join(picture.lines)


def piped(*args: object, **environ: str) -> str:
    """What `ductile ARGS…` prints where nobody looks."""
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
def test_nothing_a_plugin_says_leaves_a_pipe_raw(home: tuple[Path, str], command: str) -> None:
    """Who pages or tails a file is as safe as who looks at once; a pipe gets no colour and one line for each row."""
    text = piped(*command.format(failed=home[1]).split(), "--config", home[0])

    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert command not in ("job list", "job logs") or len([line for line in text.splitlines() if home[1] in line]) == 1


def test_json_is_the_same_value_and_harmless(home: tuple[Path, str]) -> None:
    """What a terminal could obey is written as JSON writes it; who decodes it has every character back."""
    text = piped("job", "list", "--json", "--config", home[0])

    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    errors = [job.get("last_error", "") for job in json.loads(text)["jobs"]]
    assert any(HOSTILE in error for error in errors)


def test_colours_can_be_forced(home: tuple[Path, str]) -> None:
    """FORCE_COLOR is for pagers that show colours; the lines stay as they are in a pipe."""
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
    """One text for each row (a head may be told with the rows), none of its lines too long."""
    from rich.cells import cell_len

    texts = [terminal.printed(text, coloured=False) for text in terminal.fitted(rows, at)]

    assert len(texts) in (len(rows), len(rows) - 1)
    assert all(cell_len(line) <= at for text in texts for line in text.split("\n"))
