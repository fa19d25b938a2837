"""The checker of the documentation finds what is not true."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.transcript import Block, Shell, blocks_of, steps_of

ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell.open(tmp_path, {})
    yield opened
    opened.close()


def console(body: str) -> Block:
    return Block("run", "", "console", body)


def test_only_marked_blocks_count() -> None:
    """A reader sees no mark; the checker sees nothing else."""
    page = "```sh\nfalse\n```\n<!-- run -->\n```sh\ntrue\n```\n<!-- file: a/b.yaml -->\n```yaml\nx: 1\n```\n"
    assert list(blocks_of(page)) == [Block("run", "", "sh", "true\n"), Block("file", "a/b.yaml", "yaml", "x: 1\n")]


def test_a_command_may_go_on_over_several_lines() -> None:
    """With a backslash, or as a shell shows it: after `>`."""
    steps = list(steps_of("$ echo a \\\n  b\na b\n$ cat <<X\n> y\n> X\ny\n"))
    assert [step.command for step in steps] == ["echo a \\\n  b", "cat <<X\ny\nX"]
    assert [step.expected for step in steps] == [("a b",), ("y",)]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("hello", "hello"),
        ("took 17 ms", "took 203 ms"),
        ("a    b", "a b"),
        ("id abc and more", "id … more"),
        ("one\ntwo\nthree", "one\n…\nthree"),
        ("one\ntwo", "one"),
    ],
)
def test_what_is_alike_is_true(shell: Shell, printed: str, expected: str) -> None:
    """Numbers and spaces may differ, `…` is anything, and lines at the end may be left out."""
    shell.perform(console(f"$ echo -e {printed!r}\n{expected}\n"))


@pytest.mark.parametrize(
    ("printed", "expected"),
    [("hello", "hallo"), ("one\ntwo", "two"), ("one", "one\ntwo"), ("one\ntwo", "one\n…\nthree"), ("", "one")],
)
def test_what_differs_is_found(shell: Shell, printed: str, expected: str) -> None:
    """Another word, a line that is missing, a line that nobody announced."""
    with pytest.raises(AssertionError):
        shell.perform(console(f"$ echo -e {printed!r}\n{expected}\n"))


def test_an_id_of_the_page_becomes_the_id_of_the_run(shell: Shell) -> None:
    """Later commands and lines name the same thing."""
    shell.perform(console(f"$ echo job {TWO}\njob {ONE}\n$ echo again {ONE}\nagain {ONE}\n"))
    assert shell.ids == {ONE: TWO}


def test_a_script_that_fails_is_found(shell: Shell) -> None:
    """Any command of it."""
    with pytest.raises(AssertionError):
        shell.perform(Block("run", "", "sh", "false\ntrue\n"))


def test_a_command_that_fails_unseen_is_found(shell: Shell) -> None:
    """One whose output the page shows may fail: that is what it shows."""
    shell.perform(console("$ echo no; false\nno\n"))
    with pytest.raises(AssertionError, match="does not show it"):
        shell.perform(console("$ echo no; false\n"))


def test_a_service_that_never_comes_up_is_found(shell: Shell) -> None:
    """With what it said instead; one that does runs on while the page is followed."""
    with pytest.raises(AssertionError, match="no port"):
        shell.perform(Block("start", "", "console", "$ echo no port\nductile is ready\n"))
    shell.perform(Block("start", "", "console", "$ sh -c 'echo it is ready; exec sleep 60'\nit is ready\n"))
    assert shell.run("jobs -r | wc -l") == (0, ["1"])


def test_files_are_written_as_they_stand(shell: Shell, tmp_path: Path) -> None:
    """Dollar signs and quotes included."""
    shell.perform(Block("file", "x.yaml", "yaml", "a: \"$HOME\"\nb: '`'\n"))
    assert (tmp_path / "x.yaml").read_text() == "a: \"$HOME\"\nb: '`'\n"
