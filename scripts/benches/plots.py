"""Small pictures of the lines, as SVG that is readable on a light and on a dark page. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from scripts.benches.bench import Line
from scripts.benches.report import figure

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 62, 44
STYLE = """\
text { font: 12px sans-serif; fill: #24292f } .title { font-size: 15px; font-weight: 600 } .small { font-size: 10px }
.grid { stroke: #8c959f; stroke-opacity: .35 } .s0 { color: #0969da } .s1 { color: #bf5700 } .s2 { color: #1a7f37 }
rect, circle { fill: currentColor } polyline { fill: none; stroke: currentColor; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #d1d7e0 } .s0 { color: #58a6ff } .s1 { color: #f0a35e } .s2 { color: #56d364 } }"""

Points = Sequence[tuple[float, float]]


def pictures(lines: Sequence[Line]) -> dict[str, tuple[str, str]]:
    """File name → title and picture, for all that the lines have enough for."""
    found = {(line["id"], line["measure"]): line for line in lines}
    drawn = {
        "jobs.svg": ("Jobs per second, as a share of bare runs of the same plugin", jobs(found)),
        "latency.svg": ("One job at a time: milliseconds by percentile", latency(found)),
        "history.svg": ("Jobs per second with a history of finished jobs", history(found)),
        "memory.svg": ("Memory (PSS, MB) while jobs run", memory(found)),
    }
    return {name: (title, draw(title)) for name, (title, draw) in drawn.items() if draw}


Found = Mapping[tuple[str, str], Line]
Draw = Callable[[str], str]


def jobs(found: Found) -> Draw | None:
    shown = [line for (key, _), line in found.items() if key == "run" and "workers" in line]
    if not shown:
        return None
    groups = {f"{line['plugin']}, {line['workers']}": [line["value"]] for line in shown}
    captions = [[f"{line['jobs_per_second']:,.0f}/s"] for line in shown]
    names = ["share, by plugin and workers; above it jobs per second"]
    return lambda title: bars(title, names, groups, captions)


def latency(found: Found) -> Draw | None:
    line = found.get(("run", "enqueue_to_done_ms"))
    if line is None:
        return None
    steps: dict[str, dict[str, float]] = line["percentiles_ms"]
    labels = [label for label in next(iter(steps.values())) if label != "max"]
    groups = {label: [step[label] for step in steps.values()] for label in labels}
    captions = [[figure(value, "") for value in values] for values in groups.values()]
    return lambda title: bars(title, [name.replace("_to_", " → ") for name in steps], groups, captions)


def history(found: Found) -> Draw | None:
    series = {}
    for measure, size in (("drain_by_history", "jobs"), ("long_queue_long_history", "queued")):
        if line := found.get(("scale", measure)):
            series[f"{line[size]:,} queued"] = [(rows, rate) for rows, rate in line["jobs_per_second"]]
    return (lambda title: curves(title, series, "finished jobs", even=True)) if series else None


def memory(found: Found) -> Draw | None:
    line = found.get(("B5b", "growth_mb"))
    series = {"PSS": [(jobs, size) for jobs, size in line["memory_mb"]]} if line else {}
    return (lambda title: curves(title, series, "jobs")) if series else None


# ── two kinds of pictures ───────────────────────────────────────────────────────────────────────────────────────────


def bars(
    title: str, names: Sequence[str], groups: Mapping[str, Sequence[float]], captions: Sequence[Sequence[str]]
) -> str:
    """Groups of bars side by side, one bar for each name, with what stands above it."""
    top = ceiling(max(value for values in groups.values() for value in values))
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    wide = room * 0.8 / len(names)
    parts = []
    for place, ((label, values), said) in enumerate(zip(groups.items(), captions, strict=True)):
        x = LEFT + room * (place + 0.1)
        parts.append(text(x + room * 0.4, HEIGHT - BOTTOM + 16, label, "middle"))
        for number, (value, caption) in enumerate(zip(values, said, strict=True)):
            y, at = height(value, top), x + wide * number
            parts.append(
                f'<rect class="s{number}" x="{at:.1f}" y="{y:.1f}" width="{wide - 2:.1f}"'
                f' height="{HEIGHT - BOTTOM - y:.1f}"/>'
            )
            parts.append(text(at + wide / 2, y - 4, caption, "middle", "small"))
    return framed(title, names, top, parts)


def curves(title: str, series: Mapping[str, Points], across: str, *, even: bool = False) -> str:
    """One curve for each name. `even`: the marks of the axis stand at even distances, whatever their numbers."""
    top = ceiling(max(y for points in series.values() for _, y in points))
    marks = sorted({x for points in series.values() for x, _ in points})
    wide = WIDTH - LEFT - RIGHT - 40

    def along(x: float) -> float:
        share = marks.index(x) / max(len(marks) - 1, 1) if even else x / (marks[-1] or 1)
        return LEFT + 20 + wide * share

    shown = marks if even else [marks[0], marks[len(marks) // 2], marks[-1]]
    parts = [text(along(x), HEIGHT - BOTTOM + 16, f"{x:,.0f}", "middle") for x in shown]
    parts.append(text(WIDTH - RIGHT, HEIGHT - 6, across, "end", "small"))
    for number, points in enumerate(series.values()):
        placed = [(along(x), height(y, top)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline class="s{number}" points="{path}"/>')
        parts += [f'<circle class="s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in placed]
    return framed(title, list(series), top, parts)


def framed(title: str, names: Sequence[str], top: float, parts: Sequence[str]) -> str:
    """Title, names, grid, and the parts on it."""
    head = [text(LEFT, 20, title, "start", "title")]
    x = float(LEFT)
    for number, name in enumerate(names):
        head.append(f'<rect class="s{number}" x="{x:.1f}" y="32" width="10" height="10"/>')
        head.append(text(x + 14, 41, name))
        x += 34 + 7 * len(name)
    for step in range(5):
        y = height(top * step / 4, top)
        head.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        head.append(text(LEFT - 6, y + 4, figure(top * step / 4, ""), "end", "small"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            *head,
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, said: str, anchor: str = "start", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def height(value: float, top: float) -> float:
    """Where on the picture a value stands."""
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def ceiling(value: float) -> float:
    """A round number that is not below, for the top of an axis; never zero."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12) if step * power >= value)
