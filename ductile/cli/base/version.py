"""`ductile version`: the version, and in a checkout the commit."""

from datetime import UTC, datetime
from pathlib import Path

import click

import ductile
from ductile.cli.base import options, output

UNKNOWN = "unknown"


@click.command("version")
@options.as_json
def command(as_json: bool) -> None:
    """Print the version, the commit and the build time.

    Example: ductile version --json
    """
    output.show(build_info(), as_json=as_json, human=lambda info: [f"{name}: {value}" for name, value in info.items()])


def build_info() -> dict[str, str]:
    """Return the version, the commit (12 characters) and the build time."""
    package = Path(ductile.__file__).parent
    commit, built_at = _checked_out_commit(package.parent / ".git")
    if built_at is None:
        built_at = package.joinpath("__init__.py").stat().st_mtime
    return {
        "version": ductile.__version__,
        "commit": commit[:12],
        "build_time": datetime.fromtimestamp(int(built_at), UTC).isoformat().replace("+00:00", "Z"),
    }


def _checked_out_commit(git: Path) -> tuple[str, float | None]:
    """Return the commit of HEAD and the time at which it was checked out."""
    try:
        reference = git / "HEAD"
        text = reference.read_text().strip()
        if text.startswith("ref: "):
            reference = git / text.removeprefix("ref: ")
            text = reference.read_text().strip()
        return text, reference.stat().st_mtime
    except OSError:
        return UNKNOWN, None
