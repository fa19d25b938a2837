"""The `--help` of every script, and the exit code of usage errors."""

import pytest

from tests.scripts.scripts import ROOT, run_script

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)


def test_the_scripts_are_these() -> None:
    """The tests below cover each of them."""
    assert {"bench", "check", "docs", "model-check", "oracle", "reference", "start", "test", "torture", "venv"} == set(
        SCRIPTS
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_printed_on_stdout(script: str) -> None:
    result = run_script(script, "--help")

    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout) > 60
    assert "#!" not in result.stdout


@pytest.mark.parametrize(
    ("script", "argument"), [("bench", "nothing"), ("bench", ""), ("model-check", "many"), ("docs", "burn")]
)
def test_an_invalid_argument_is_a_usage_error(script: str, argument: str) -> None:
    """The exit code is 2, and the message points to --help."""
    result = run_script(script, argument)

    assert (result.returncode, result.stdout) == (2, "")
    assert f"scripts/{script} --help" in result.stderr
