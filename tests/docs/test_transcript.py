"""The documentation runner finds differences between a page and its output."""

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


def test_only_marked_blocks_are_run() -> None:
    page = "```sh\nfalse\n```\n<!-- run -->\n```sh\ntrue\n```\n<!-- file: a/b.yaml -->\n```yaml\nx: 1\n```\n"
    assert list(blocks_of(page)) == [Block("run", "", "sh", "true\n"), Block("file", "a/b.yaml", "yaml", "x: 1\n")]


def test_a_command_may_have_several_lines() -> None:
    """With a trailing backslash or a leading `>`."""
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
def test_equivalent_output_matches(shell: Shell, printed: str, expected: str) -> None:
    """Numbers and spaces may differ, `…` matches anything, and trailing lines may be omitted."""
    shell.run_block(console(f"$ echo -e {printed!r}\n{expected}\n"))


@pytest.mark.parametrize(
    ("printed", "expected"),
    [("hello", "hallo"), ("one\ntwo", "two"), ("one", "one\ntwo"), ("one\ntwo", "one\n…\nthree"), ("", "one")],
)
def test_different_output_fails(shell: Shell, printed: str, expected: str) -> None:
    """A different word, a missing line or an additional line."""
    with pytest.raises(AssertionError):
        shell.run_block(console(f"$ echo -e {printed!r}\n{expected}\n"))


def test_an_id_of_the_page_maps_to_an_id_of_the_run(shell: Shell) -> None:
    """Later commands and lines use the id of the run."""
    shell.run_block(console(f"$ echo job {TWO}\njob {ONE}\n$ echo again {ONE}\nagain {ONE}\n"))
    assert shell.ids == {ONE: TWO}


def test_a_failed_command_in_a_script_fails(shell: Shell) -> None:
    with pytest.raises(AssertionError):
        shell.run_block(Block("run", "", "sh", "false\ntrue\n"))


def test_a_failed_command_without_output_fails(shell: Shell) -> None:
    """If the page shows output, the command may fail."""
    shell.run_block(console("$ echo no; false\nno\n"))
    with pytest.raises(AssertionError, match="the page shows no output"):
        shell.run_block(console("$ echo no; false\n"))


def test_a_service_that_does_not_become_ready_fails(shell: Shell) -> None:
    """The error has its output. A ready service keeps running."""
    with pytest.raises(AssertionError, match="no port"):
        shell.run_block(Block("start", "", "console", "$ echo no port\nductile is ready\n"))
    shell.run_block(Block("start", "", "console", "$ sh -c 'echo it is ready; exec sleep 60'\nit is ready\n"))
    assert shell.run("jobs -r | wc -l") == (0, ["1"])


def test_files_are_written_unchanged(shell: Shell, tmp_path: Path) -> None:
    """Including dollar signs and quotes."""
    shell.run_block(Block("file", "x.yaml", "yaml", "a: \"$HOME\"\nb: '`'\n"))
    assert (tmp_path / "x.yaml").read_text() == "a: \"$HOME\"\nb: '`'\n"
