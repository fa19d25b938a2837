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
    beside: Line | None = None
    """What another run found."""

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
    def other(self) -> "Row":
        """The same of the other run."""
        return Row(self.target, self.mode, self.beside)

    @property
    def measured(self) -> str:
        return figure(self.line["value"], self.target.unit) + absolute(self.line) if self.line else NOT_MEASURED

    @property
    def cells(self) -> tuple[str, ...]:
        what = f"{self.target.what} (`{self.mode}`)" if self.mode else self.target.what
        unit, goal = self.target.unit, self.goal
        return self.target.id, what, self.measured, bound(goal, "must", unit), bound(goal, "aim", unit), self.verdict


def rows(
    targets: Iterable[Target], lines: Sequence[Line], modes: tuple[str, ...], beside: Sequence[Line] = ()
) -> list[Row]:
    """Every target in every mode it should have been measured in; of repeated lines the last counts."""
    found, other = by_name(lines), by_name(beside)
    return [
        Row(target, mode, found.get(name), other.get(name))
        for target in targets
        for mode in target.modes_of(modes)
        for name in [(target.id, target.measure, mode)]
    ]


def by_name(lines: Sequence[Line]) -> dict[tuple[str, str, str | None], Line]:
    """Each line by its id, its measure and its mode, and by no mode for who does not care."""
    found: dict[tuple[str, str, str | None], Line] = {
        (line["id"], line["measure"], line["synchronous"]): line for line in lines
    }
    return found | {(line["id"], line["measure"], None): line for line in lines}


def table(found: Sequence[Row]) -> str:
    """With two more columns if there is another run."""
    head: tuple[str, ...] = ("id", "what", "measured", "must", "aim", "")
    cells = [row.cells for row in found]
    if any(row.beside for row in found):
        head += ("beside", "")
        cells = [(*row.cells, row.other.measured, row.other.verdict) for row in found]
    return "\n".join(f"| {' | '.join(each)} |" for each in (head, ("---",) * len(head), *cells))


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


def summaries(found: Sequence[Row]) -> str:
    others = [row.other for row in found]
    return f"{summary(found)} Beside it, {summary(others)}" if any(row.line for row in others) else summary(found)


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
        f"{python_of(lines)}, SQLite {host['sqlite']}, {host['kernel']}, {host['cores']} cores, "
        f"load average before each bench {min(loads)} to {max(loads)}."
    )
    if longest:
        text += f" A long history is {longest:,} finished jobs."
    if quick:
        text += " **Small sizes, one round: this shows that the benches work, not how fast Ductile is.**"
    return text


def python_of(lines: Sequence[Line]) -> str:
    host = lines[-1]["machine"]
    guided = "profile-guided optimisation"
    how = {
        True: f"built with {guided}",
        False: f"built without {guided}",
        None: f"whether built with {guided}, its build does not say",
    }
    return f"Python {host['python']} ({how[host['python_is_optimised']]})"


def regions(
    lines: Sequence[Line],
    modes: tuple[str, ...],
    plots: Iterable[tuple[str, str]],
    beside: Sequence[Line] = (),
) -> dict[str, str]:
    """What goes between which marks."""
    suite, more = rows(SUITE, lines, modes, beside), rows(MORE, lines, modes, beside)
    pictures = "\n\n".join(f"![{title}](benchmarks/{name})" for name, title in plots)
    return {
        "run": f"{origin(lines)}\n\nBeside it: {origin(beside)}" if beside else origin(lines),
        "suite": f"{table(suite)}\n\n{summaries(suite)}",
        "plots": pictures or "Nothing to draw.",
        "more": f"{table(more)}\n\n{summaries(more)}",
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
