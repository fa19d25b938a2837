"""The table of `scripts/bench compare`, and the page that it is written into. Pure, except `write_section`."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from scripts.benches.lib.bench import Line

BEGIN, END = "<!-- bench compare: begin -->", "<!-- bench compare: end -->"
NOT_MEASURED = "not measured"


@frozen
class ComparedMeasure:
    """A measure in the table, and the field of its lines that is shown."""

    id: str
    bench: str
    only: str
    measure: str
    description: str
    unit: str
    shown_field: str = "value"
    is_share: bool = False
    """Whether the value of the line is a share of bare runs, which is shown in brackets."""

    def number(self, line: Line) -> float:
        """Return the number to show for one round."""
        value = line[self.shown_field]
        return float(statistics.median(value) if isinstance(value, list) else value)


@frozen
class Row:
    """A measure with the lines of both checkouts, one line per round."""

    measure: ComparedMeasure
    before: Sequence[Line] = field(factory=list)
    after: Sequence[Line] = field(factory=list)

    @property
    def cells(self) -> tuple[str, ...]:
        measure = self.measure
        return measure.id, measure.description, self._format(self.before), self._format(self.after), self._ratio

    def _format(self, lines: Sequence[Line]) -> str:
        if not lines:
            return NOT_MEASURED
        number = format_number(statistics.median(map(self.measure.number, lines)), self.measure.unit)
        share = statistics.median(line["value"] for line in lines)
        return f"{number} ({share:.2f})" if self.measure.is_share else number

    @property
    def _ratio(self) -> str:
        if not self.before or not self.after or self.measure.unit == "×":
            return ""
        before, after = (statistics.median(map(self.measure.number, lines)) for lines in (self.before, self.after))
        return f"{after / before:.2f}" if before and after else ""


def table_rows(measures: Sequence[ComparedMeasure], lines: Mapping[str, Sequence[Line]]) -> list[Row]:
    """Return one row per measure. `lines` has the lines of "before" and "after"."""

    def lines_of(side: str, measure: ComparedMeasure) -> list[Line]:
        return [line for line in lines[side] if (line["bench"], line["measure"]) == (measure.bench, measure.measure)]

    return [Row(measure, lines_of("before", measure), lines_of("after", measure)) for measure in measures]


def format_table(rows: Sequence[Row]) -> str:
    head = ("id", "what", "before", "after", "after ÷ before")
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *(row.cells for row in rows)))


def format_number(value: float, unit: str) -> str:
    """Return the number with three significant digits, or all digits of a whole number, and the unit."""
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text}{unit}" if unit.startswith(("×", "/")) else f"{text} {unit}".rstrip()


def describe_run(results: Mapping[str, Sequence[Line]], commits: Mapping[str, str], rounds: int) -> str:
    """Return the date, the commits, the number of rounds and the machine of a comparison."""
    lines = [*results["before"], *results["after"]]
    if not lines:
        return "There are no results."
    host, loads = lines[-1]["machine"], [line["machine"]["load_before"] for line in lines]
    text = (
        f"`scripts/bench compare` on {lines[-1]['at'][:10]}, before {commits['before']}, after {commits['after']}: "
        f"{rounds} round{'s' * (rounds > 1)}, alternating; medians; every commit on disk. {describe_python(host)}, "
        f"SQLite {host['sqlite']}, {host['kernel']}, {host['cores']} cores, load average {min(loads)} to {max(loads)}."
    )
    if any(line["quick"] for line in lines):
        text += " **Small sizes: this run checks that the benches work. Do not quote its numbers.**"
    return text


def describe_python(host: Mapping[str, Any]) -> str:
    optimised = {True: ", built with profile-guided optimisation", False: ", built without profile-guided optimisation"}
    return f"Python {host['python']}{optimised.get(host['python_is_optimised'], '')}"


def require_markers(page: Path) -> None:
    """Raise SystemExit unless the page has the markers for the table."""
    text = page.read_text()
    if text.count(BEGIN) != 1 or END not in text[text.index(BEGIN) :]:
        raise SystemExit(f"{page} must contain {BEGIN} once, followed by {END}")


def write_section(page: Path, content: str) -> None:
    """Replace the text between the markers of the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{content}\n\n{END}{after}")
