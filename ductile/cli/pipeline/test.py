"""`ductile pipeline test`: cases of pipelines, played and compared."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output


@click.command("test")
@click.argument("file", type=click.Path(path_type=Path))
@options.config
@options.as_json
def test(file: Path, config_path: Path | None, config_dir: Path | None, as_json: bool) -> int:
    """Play the cases in FILE: an event or payload goes in, steps answer as written, the run must go as expected.

    No plugin runs and nothing is recorded; the code that decides what follows is the service's. docs/pipelines.md says
    how a case is written. Exit 1 if one does not hold.

    Example: ductile pipeline test tests/report.yaml
    """
    import os

    from ductile.config.checks.doctor import examine
    from ductile.config.load.load import load
    from ductile.config.load.sources import find
    from ductile.config.snapshot import take_snapshot
    from ductile.devkit.pipeline_cases import play_case, read_cases

    cases = read_cases(file)
    config = load(find(options.chosen(config_path, config_dir), os.environ).path)
    snapshot = take_snapshot(examine(config), os.environ)
    told = [play_case(case, snapshot) for case in cases]
    rows = [
        {
            "name": one.case.name,
            "pipeline": one.case.pipeline,
            "holds": not one.differences,
            "differences": list(one.differences),
            "found": one.shown,
        }
        for one in told
    ]
    shown = {"file": str(file), "holds": all(row["holds"] for row in rows), "cases": rows}
    output.show(shown, as_json=as_json, human=_lines)
    return 0 if shown["holds"] else 1


def _lines(shown: dict[str, Any]) -> list[str]:
    lines = []
    for case in shown["cases"]:
        lines.append(f"{'pass' if case['holds'] else 'FAIL'}  {case['pipeline']}: {case['name']}")
        lines += [f"      {line}" for line in case["differences"]]
    good = sum(case["holds"] for case in shown["cases"])
    return [*lines, f"{good} of {len(shown['cases'])} cases hold"]
