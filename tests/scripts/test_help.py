"""What the scripts say of themselves, and what they say to a mistake."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)


def say(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)


def test_every_script_is_there() -> None:
    """The rules below speak of all of them."""
    assert {"bench", "check", "docs", "model-check", "oracle", "reference", "start", "test", "torture", "venv"} == set(
        SCRIPTS
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_told_and_nothing_is_done(script: str) -> None:
    """On stdout, with exit code 0."""
    done = say(script, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 60
    assert "#!" not in done.stdout


@pytest.mark.parametrize(
    ("script", "argument"), [("bench", "nothing"), ("bench", ""), ("model-check", "many"), ("docs", "burn")]
)
def test_an_argument_that_cannot_be_meant_is_a_mistake_of_usage(script: str, argument: str) -> None:
    """Exit code 2, and where the help is, before anything is begun."""
    done = say(script, argument)

    assert (done.returncode, done.stdout) == (2, "")
    assert "--help tells more" in done.stderr
