"""The lines of all benches as a page: what was asked, what was found, and what nobody measured.

Pure but for `keep`, which writes between the marks of a page and leaves the rest of it alone.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from attrs import frozen

from scripts.benches.bench import Line
from scripts.benches.targets import MORE, SUITE, Goal, Target

REGIONS = ("run", "suite", "plots", "more")
END = "<!-- bench all: end -->"
NOT_MEASURED = "not measured"
ABSOLUTES = {"jobs_per_second": "/s", "together_per_second": "/s", "per_second": "/s", "p50_ms": "ms", "ms": "ms"}


@frozen
class Row:
    """One target, and what was found for it, if anything was."""

    target: Target
    mode: str | None
    line: Line | None

    @property
    def goal(self) -> Goal | None:
        return self.target.goal_in(self.mode or (self.line["synchronous"] if self.line else "full"))

    @property
    def holds(self) -> bool | None:
        """Whether the must is reached; None without a must or without a measurement."""
        return self.goal.reached(self.line["value"], self.goal.must) if self.goal and self.line else None

    @property
    def verdict(self) -> str:
        if self.holds is None:
            return "–" if self.goal else ""
        if not self.holds:
            return "✗"
        return "✓✓" if self.goal and self.line and self.goal.reached(self.line["value"], self.goal.aim) else "✓"

    @property
    def cells(self) -> tuple[str, ...]:
        what = f"{self.target.what} (`{self.mode}`)" if self.mode else self.target.what
        unit, goal = self.target.unit, self.goal
        measured = figure(self.line["value"], unit) + absolute(self.line) if self.line else NOT_MEASURED
        return self.target.id, what, measured, bound(goal, "must", unit), bound(goal, "aim", unit), self.verdict


def rows(targets: Iterable[Target], lines: Sequence[Line], modes: tuple[str, ...]) -> list[Row]:
    """Every target in every mode it should have been measured in; of repeated lines the last counts."""
    found = {(line["id"], line["measure"], line["synchronous"]): line for line in lines}
    found |= {(line["id"], line["measure"], None): line for line in lines}
    return [
        Row(target, mode, found.get((target.id, target.measure, mode)))
        for target in targets
        for mode in target.modes_of(modes)
    ]


def table(found: Sequence[Row]) -> str:
    head = ("id", "what", "measured", "must", "aim", "")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * 6, *(row.cells for row in found)))


def figure(value: float, unit: str) -> str:
    """Three digits that mean something, and the unit."""
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip() if unit not in ("×", "/s") else f"{text}{unit}"


def absolute(line: Line) -> str:
    """The number behind a ratio, where there is one that says it all."""
    for key, unit in ABSOLUTES.items():
        match line.get(key):
            case int() | float() as value if line["unit"] == "×":
                return f" ({figure(value, unit)})"
            case [int() | float(), *_] as values if line["unit"] == "×":
                return f" ({figure(statistics.median(values), unit)})"
    return ""


def bound(goal: Goal | None, which: str, unit: str) -> str:
    number: float | None = getattr(goal, which, None)
    if goal is None or number is None:
        return ""
    return f"{'≥' if goal.at_least else '≤'} {figure(number, unit)}"


def summary(found: Sequence[Row]) -> str:
    asked = [row for row in found if row.goal]
    held = sum(row.holds is True for row in asked)
    missing = sum(row.line is None for row in found)
    aims = sum(row.verdict == "✓✓" for row in asked)
    text = f"{held} of {len(asked)} musts hold, {aims} of them with the aim as well"
    return f"{text}; {missing} {NOT_MEASURED}." if missing else f"{text}."


def origin(lines: Sequence[Line]) -> str:
    """When, where and on what."""
    if not lines:
        return "Nothing was measured."
    quick = any(line["quick"] for line in lines)
    host, versions = lines[-1]["machine"], ", ".join(sorted({line["version"] for line in lines}))
    loads = [line["machine"]["load_before"] for line in lines]
    longest = max((line.get("rows", 0) for line in lines), default=0)
    text = (
        f"`scripts/bench all{' --quick' * quick}` on {lines[-1]['at'][:10]}: Ductile {versions}, "
        f"Python {host['python']}, SQLite {host['sqlite']}, {host['kernel']}, {host['cores']} cores, "
        f"load average before each bench {min(loads)} to {max(loads)}."
    )
    if longest:
        text += f" A long history is {longest:,} finished jobs."
    if quick:
        text += " **Small sizes, one round: this shows that the benches work, not how fast Ductile is.**"
    return text


def regions(lines: Sequence[Line], modes: tuple[str, ...], plots: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What goes between which marks."""
    suite, more = rows(SUITE, lines, modes), rows(MORE, lines, modes)
    pictures = "\n\n".join(f"![{title}](benchmarks/{name})" for name, title in plots)
    return {
        "run": origin(lines),
        "suite": f"{table(suite)}\n\n{summary(suite)}",
        "plots": pictures or "Nothing to draw.",
        "more": f"{table(more)}\n\n{summary(more)}",
    }


def require_marks(page: Path) -> None:
    text = page.read_text()
    for name in REGIONS:
        if text.count(mark(name)) != 1 or END not in text[text.index(mark(name)) :]:
            raise SystemExit(f"{page}: {mark(name)} stands in it once, and {END} follows it")


def keep(page: Path, contents: dict[str, str]) -> None:
    """Each content is between its marks, and the rest of the page as it was."""
    page.write_text("".join(replaced(page.read_text(), contents)))


def replaced(text: str, contents: dict[str, str]) -> Iterator[str]:
    """The page in pieces, in its own order."""
    for name in sorted(contents, key=lambda name: text.index(mark(name))):
        before, _, rest = text.partition(mark(name))
        _, _, text = rest.partition(END)
        yield f"{before}{mark(name)}\n\n{contents[name]}\n\n{END}"
    yield text


def mark(name: str) -> str:
    return f"<!-- bench all: {name} -->"
