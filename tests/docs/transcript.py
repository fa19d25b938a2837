"""Runs what a page tells its reader to run, in the order of the page, and holds the output against the page.

A block counts if a comment before it says so: `<!-- run -->` for a shell script or a console transcript,
`<!-- file: NAME -->` for a file to write, `<!-- start -->` for a service that stays. In a transcript `…` stands for
anything, a number for any number, and an id for the id that the same place had in this run.
"""

import contextlib
import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import define, field, frozen

BLOCK = re.compile(r"^<!-- (run|file|start)(?:: (.*?))? -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PIECE = re.compile(rf"(?P<id>{ID})|(?P<any>…)|(?P<secret>demo-[0-9a-f]+)|(?P<number>\d+(?:\.\d+)?)|(?P<space>[ \t]+)")


@frozen
class Block:
    """A piece of a page that is run, or a file that is written."""

    kind: str
    argument: str
    language: str
    body: str


@frozen
class Step:
    """One command of a transcript and the lines it should print."""

    command: str
    expected: tuple[str, ...]


def blocks_of(text: str) -> Iterator[Block]:
    """The marked blocks of a page, in its order."""
    for kind, argument, language, body in BLOCK.findall(text):
        yield Block(kind, argument, language, body)


def steps_of(body: str) -> Iterator[Step]:
    """The commands of a transcript: `$` begins one, a backslash at the end of a line or `>` at its start goes on."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        command = [lines.pop(0)]
        while lines and (command[-1].endswith("\\") or lines[0].startswith("> ")):
            command.append(lines.pop(0).removeprefix("> "))
        yield Step("\n".join(command), tuple(lines))


@define
class Shell:
    """One bash for a whole page, so that what a command exports is there for the next."""

    process: "subprocess.Popen[str]"
    ids: dict[str, str] = field(factory=dict)
    """What the page calls an id → what it was in this run."""

    @classmethod
    def open(cls, directory: Path, environ: Mapping[str, str]) -> "Shell":
        process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return cls(process)

    def close(self) -> None:
        """The shell is gone, and so is what it left running."""
        if self.process.poll() is None:
            self.run("kill $(jobs -p) 2> /dev/null; wait")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def run(self, command: str) -> tuple[int, list[str]]:
        """The exit code of `command` and the lines it printed, stderr among them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        end = f"end-{uuid.uuid4().hex}"
        self.process.stdin.write(f"{self._known(command)}\n__code=$?; echo; echo {end} $__code\n")
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith(end):
                return int(line.split()[1]), lines[:-1] if lines and not lines[-1] else lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended in the middle of {command!r}: {lines}")

    def perform(self, block: Block) -> None:
        """The block did what the page says it does."""
        if block.kind == "file":
            self._write(block.argument, block.body)
        elif block.kind == "start":
            self._start(*steps_of(block.body))
        elif block.language == "console":
            for step in steps_of(block.body):
                code, printed = self.run(step.command)
                told = "\n".join([f"$ {step.command}", f"→ {code}", *printed])
                assert code == 0 or step.expected, f"failed, and the page does not show it\n{told}"
                self.compare(step.expected, printed, told=told)
        else:
            code, lines = self.run(f"__failed=0; trap __failed=1 ERR\n{block.body}\ntrap - ERR; (exit $__failed)")
            assert code == 0, f"{block.body}\n→ {code}\n" + "\n".join(lines)

    def _start(self, step: Step) -> None:
        """The service of the page runs beside the shell, and said what the page shows until it was ready."""
        said = f"said-{uuid.uuid4().hex}.txt"
        waiting = f"until grep -q 'is ready' {said} || ! kill -0 $!; do sleep 0.05; done; cat {said}"
        _, printed = self.run(f": > {said}; {step.command} > {said} 2>&1 &\n{waiting}")
        self.compare(step.expected, printed, told="\n".join(printed))

    def _write(self, name: str, body: str) -> None:
        code, lines = self.run(f"cat > {name} <<'END-OF-FILE'\n{body}END-OF-FILE")
        assert code == 0, lines

    def compare(self, wanted: Sequence[str], printed: Sequence[str], *, told: str) -> None:
        """Every line of the page was printed, in this order; only after `…` others may come in between."""
        at = 0
        for place, line in enumerate(wanted):
            if line.strip() == "…":
                continue
            may_skip = place > 0 and wanted[place - 1].strip() == "…"
            while not self._matches(line, printed[at] if at < len(printed) else None, told):
                assert may_skip, f"expected: {line}\n{told}"
                at += 1
            at += 1

    def _matches(self, expected: str, line: str | None, told: str) -> bool:
        assert line is not None, f"never printed: {expected}\n{told}"
        match = re.fullmatch(self._pattern(expected), line.rstrip())
        if match is None:
            return False
        written = re.findall(ID, expected)
        self.ids |= {
            page: match[f"id{index}"] for index, page in enumerate(written) if f"id{index}" in match.re.groupindex
        }
        return True

    def _pattern(self, expected: str) -> str:
        pattern, at, count = "", 0, 0
        for piece in PIECE.finditer(expected.rstrip()):
            pattern += re.escape(expected[at : piece.start()])
            at = piece.end()
            match piece.lastgroup:
                case "id" if piece[0] in self.ids:
                    pattern += re.escape(self.ids[piece[0]])
                    count += 1
                case "id":
                    pattern += f"(?P<id{count}>{ID})"
                    count += 1
                case "any":
                    pattern += ".*"
                case "secret":
                    pattern += "demo-[0-9a-f]+"
                case "number":
                    pattern += r"\d+(?:\.\d+)?"
                case _:
                    pattern += "[ \t]+"
        return pattern + re.escape(expected.rstrip()[at:])

    def _known(self, command: str) -> str:
        """The command with the ids of this run instead of the page's."""
        return re.sub(ID, lambda found: self.ids.get(found[0], found[0]), command)
