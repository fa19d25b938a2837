"""Which build this is: the version, and in a checkout the commit."""

from datetime import UTC, datetime
from pathlib import Path

from ductile import __version__

UNKNOWN = "unknown"


def build_info() -> dict[str, str]:
    """Version, commit (12 characters) and the time this build was made."""
    package = Path(__file__).parent.parent
    head, made = _head(package.parent / ".git")
    if made is None:
        made = package.joinpath("__init__.py").stat().st_mtime
    return {
        "version": __version__,
        "commit": head[:12],
        "build_time": datetime.fromtimestamp(int(made), UTC).isoformat().replace("+00:00", "Z"),
    }


def _head(git: Path) -> tuple[str, float | None]:
    """The commit that is checked out, and when it got there."""
    try:
        reference = git / "HEAD"
        text = reference.read_text().strip()
        if text.startswith("ref: "):
            reference = git / text.removeprefix("ref: ")
            text = reference.read_text().strip()
        return text, reference.stat().st_mtime
    except OSError:
        return UNKNOWN, None
