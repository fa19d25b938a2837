"""Run the marked blocks of a documentation page in order, and compare their output with the page.

A comment marks a block: `<!-- run -->` a shell script or a console transcript, `<!-- file: NAME -->` a file to write,
`<!-- start -->` a service that keeps running. In a transcript, `…` matches anything, a number matches any number, and
an id matches the id of this run that first appeared in its place.
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
    """A marked block: commands to run, or a file to write."""

    kind: str
    argument: str
    language: str
    body: str


@frozen
class Step:
    """One command of a transcript and its expected output."""

    command: str
    expected: tuple[str, ...]


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the marked blocks of a page in order."""
    for kind, argument, language, body in BLOCK.findall(text):
        yield Block(kind, argument, language, body)


def steps_of(body: str) -> Iterator[Step]:
    """Yield the commands of a transcript. `$` starts a command; a trailing backslash or a leading `>` continues it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        command = [lines.pop(0)]
        while lines and (command[-1].endswith("\\") or lines[0].startswith("> ")):
            command.append(lines.pop(0).removeprefix("> "))
        yield Step("\n".join(command), tuple(lines))


@define
class Shell:
    """One bash process per page, so that exported variables stay set."""

    process: "subprocess.Popen[str]"
    ids: dict[str, str] = field(factory=dict)
    """The ids of the page and the corresponding ids of this run."""

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
        """Kill the shell and its background processes."""
        if self.process.poll() is None:
            self.run("kill $(jobs -p) 2> /dev/null; wait")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def run(self, command: str) -> tuple[int, list[str]]:
        """Run a command and return its exit code and the lines of stdout and stderr."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        end = f"end-{uuid.uuid4().hex}"
        self.process.stdin.write(f"{self._with_current_ids(command)}\n__code=$?; echo; echo {end} $__code\n")
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith(end):
                return int(line.split()[1]), lines[:-1] if lines and not lines[-1] else lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the shell exited during {command!r}: {lines}")

    def run_block(self, block: Block) -> None:
        """Run the block. Raises AssertionError if the result differs from the page."""
        if block.kind == "file":
            self._write(block.argument, block.body)
        elif block.kind == "start":
            self._start(*steps_of(block.body))
        elif block.language == "console":
            for step in steps_of(block.body):
                code, printed = self.run(step.command)
                transcript = "\n".join([f"$ {step.command}", f"→ {code}", *printed])
                assert code == 0 or step.expected, f"the command failed, and the page shows no output\n{transcript}"
                self.compare(step.expected, printed, transcript=transcript)
        else:
            code, lines = self.run(f"__failed=0; trap __failed=1 ERR\n{block.body}\ntrap - ERR; (exit $__failed)")
            assert code == 0, f"{block.body}\n→ {code}\n" + "\n".join(lines)

    def _start(self, step: Step) -> None:
        """Start the service in the background, and compare its output until it is ready."""
        output = f"output-{uuid.uuid4().hex}.txt"
        waiting = f"until grep -q 'is ready' {output} || ! kill -0 $!; do sleep 0.05; done; cat {output}"
        _, printed = self.run(f": > {output}; {step.command} > {output} 2>&1 &\n{waiting}")
        self.compare(step.expected, printed, transcript="\n".join(printed))

    def _write(self, name: str, body: str) -> None:
        code, lines = self.run(f"cat > {name} <<'END-OF-FILE'\n{body}END-OF-FILE")
        assert code == 0, lines

    def compare(self, expected: Sequence[str], printed: Sequence[str], *, transcript: str) -> None:
        """Assert that every expected line was printed in order. Only `…` allows other lines in between."""
        at = 0
        for index, line in enumerate(expected):
            if line.strip() == "…":
                continue
            may_skip = index > 0 and expected[index - 1].strip() == "…"
            while not self._matches(line, printed[at] if at < len(printed) else None, transcript):
                assert may_skip, f"expected: {line}\n{transcript}"
                at += 1
            at += 1

    def _matches(self, expected: str, line: str | None, transcript: str) -> bool:
        assert line is not None, f"not printed: {expected}\n{transcript}"
        match = re.fullmatch(self._pattern(expected), line.rstrip())
        if match is None:
            return False
        page_ids = re.findall(ID, expected)
        self.ids |= {
            page_id: match[f"id{index}"]
            for index, page_id in enumerate(page_ids)
            if f"id{index}" in match.re.groupindex
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

    def _with_current_ids(self, command: str) -> str:
        """Replace the ids of the page with the ids of this run."""
        return re.sub(ID, lambda found: self.ids.get(found[0], found[0]), command)
