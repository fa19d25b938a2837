"""The table of `bench compare`, and the page that it is written into. Pure but for `write`."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from scripts.benches.bench import Line

BEGIN, END = "<!-- bench compare: begin -->", "<!-- bench compare: end -->"
NOT_MEASURED = "not measured"


@frozen
class Compared:
    """One row of the table: the measure, and the number in its lines that a user feels."""

    id: str
    bench: str
    only: str
    measure: str
    what: str
    unit: str
    key: str = "value"
    is_share: bool = False
    """The value of the line is a share of bare runs; it is shown in brackets."""

    def number(self, line: Line) -> float:
        """Return the number of one round."""
        found = line[self.key]
        return float(statistics.median(found) if isinstance(found, list) else found)


@frozen
class Row:
    """A measure with the lines of both sides, one per round."""

    compared: Compared
    before: Sequence[Line] = field(factory=list)
    after: Sequence[Line] = field(factory=list)

    @property
    def cells(self) -> tuple[str, ...]:
        one = self.compared
        return one.id, one.what, self._shown(self.before), self._shown(self.after), self._ratio

    def _shown(self, lines: Sequence[Line]) -> str:
        if not lines:
            return NOT_MEASURED
        number = figure(statistics.median(map(self.compared.number, lines)), self.compared.unit)
        share = statistics.median(line["value"] for line in lines)
        return f"{number} ({share:.2f})" if self.compared.is_share else number

    @property
    def _ratio(self) -> str:
        if not self.before or not self.after or self.compared.unit == "×":
            return ""
        before, after = (statistics.median(map(self.compared.number, lines)) for lines in (self.before, self.after))
        return f"{after / before:.2f}" if before and after else ""


def rows(compared: Sequence[Compared], found: Mapping[str, Sequence[Line]]) -> list[Row]:
    """Return a row per measure. `found` has the lines of "before" and "after"."""

    def lines_of(side: str, one: Compared) -> list[Line]:
        return [line for line in found[side] if (line["bench"], line["measure"]) == (one.bench, one.measure)]

    return [Row(one, lines_of("before", one), lines_of("after", one)) for one in compared]


def table(found: Sequence[Row]) -> str:
    head = ("id", "what", "before", "after", "after ÷ before")
    return "\n".join(f"| {' | '.join(each)} |" for each in (head, ("---",) * len(head), *(row.cells for row in found)))


def figure(value: float, unit: str) -> str:
    """Return three digits that mean something, and the unit."""
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text}{unit}" if unit.startswith(("×", "/")) else f"{text} {unit}".rstrip()


def origin(found: Mapping[str, Sequence[Line]], commits: Mapping[str, str], rounds: int) -> str:
    """Return when, where and on what it was measured."""
    lines = [*found["before"], *found["after"]]
    if not lines:
        return "Nothing was measured."
    host, loads = lines[-1]["machine"], [line["machine"]["load_before"] for line in lines]
    text = (
        f"`scripts/bench compare` on {lines[-1]['at'][:10]}, before {commits['before']}, after {commits['after']}: "
        f"{rounds} round{'s' * (rounds > 1)} in turns, medians, every commit on disk. {python_of(host)}, "
        f"SQLite {host['sqlite']}, {host['kernel']}, {host['cores']} cores, load average {min(loads)} to {max(loads)}."
    )
    if any(line["quick"] for line in lines):
        text += " **Small sizes: this shows that the benches work, not how fast Ductile is.**"
    return text


def python_of(host: Mapping[str, Any]) -> str:
    how = {True: ", built with profile-guided optimisation", False: ", built without profile-guided optimisation"}
    return f"Python {host['python']}{how.get(host['python_is_optimised'], '')}"


def require_marks(page: Path) -> None:
    """Raise SystemExit unless the page has a place for the table."""
    text = page.read_text()
    if text.count(BEGIN) != 1 or END not in text[text.index(BEGIN) :]:
        raise SystemExit(f"{page}: it needs {BEGIN} once, followed by {END}")


def write(page: Path, content: str) -> None:
    """Replace what is between the marks, and leave the rest of the page alone."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{content}\n\n{END}{after}")
