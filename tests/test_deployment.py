"""The files in docs/deployment say what the program really understands."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

from ductile import strict_yaml
from ductile.cli import ductile

ROOT = Path(__file__).parent.parent
FILES = ROOT / "docs" / "deployment"


def directives() -> list[tuple[str, str]]:
    """The lines of the unit as pairs; a name may come twice."""
    lines = (FILES / "ductile.service").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in pairs]


def unit(name: str) -> str:
    """The one value of a directive."""
    (value,) = [value for found, value in directives() if found == name]
    return value


def require_command(args: list[str]) -> None:
    """`ductile ARGS` is a command line that the program understands."""
    command: click.Command | None = ductile
    context = click.Context(ductile)
    while isinstance(command, click.Group):
        command = command.get_command(context, args.pop(0))
    assert command is not None
    flags = {flag for option in command.params for flag in option.opts}
    assert {arg for arg in args if arg.startswith("-")} <= flags


def test_the_unit_starts_the_service_and_waits_until_it_is_ready() -> None:
    """Type=notify, a watchdog, and a command line that exists."""
    assert unit("Type") == "notify"
    assert unit("WatchdogSec")
    program, *args = shlex.split(unit("ExecStart"))
    assert Path(program).name == "ductile"
    require_command(args)


def test_a_bad_configuration_is_not_tried_again_and_again() -> None:
    """78 is the exit code of a configuration that cannot be used."""
    assert unit("Restart") == "on-failure"
    assert unit("RestartPreventExitStatus") == "78"


def test_plugins_may_set_limits_inside_the_sandbox() -> None:
    """`limits` of a plugin are set with setrlimit, which is one of systemd's @resources."""
    denied = [value for name, value in directives() if name == "SystemCallFilter" and value.startswith("~")]
    assert not any("@resources" in value for value in denied)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own checker")
def test_systemd_has_no_complaint_about_the_unit(tmp_path: Path) -> None:
    """Every directive is known to systemd, and its own rating of the sandbox is good."""
    text = (FILES / "ductile.service").read_text().replace("/opt/ductile/bin/ductile", "/bin/true")
    copy = tmp_path / "ductile.service"
    copy.write_text(text)
    checked = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert "ductile.service" not in checked.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout[-500:]


def test_user_and_directories_are_those_of_the_unit() -> None:
    """The three files speak of one user and of the same directories."""
    user = unit("User")
    assert (FILES / "ductile.sysusers").read_text().splitlines()[-1].split()[1] == user
    rows = [line.split() for line in (FILES / "ductile.tmpfiles").read_text().splitlines() if line.startswith("d ")]
    assert {row[3] for row in rows} == {user}
    assert {f"/var/lib/{unit('StateDirectory')}", f"/etc/{unit('ConfigurationDirectory')}"} <= {row[1] for row in rows}


def test_the_image_copies_what_exists_and_runs_what_exists() -> None:
    """COPY sources are in the checkout; the health check and the default command are ours; nobody is root."""
    text = (FILES / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in re.findall(r"^COPY (?!--from).*$", text, re.MULTILINE)]
    assert copied
    for sources in copied:
        assert all((ROOT / source).exists() for source in sources), sources
    (health,) = re.findall(r"^HEALTHCHECK .*CMD \[(.*)\]$", text, re.MULTILINE)
    require_command([part.strip().strip('"') for part in health.split(",")][1:])
    (default,) = re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)
    require_command([part.strip().strip('"') for part in default.split(",")])
    assert "\nUSER ductile\n" in text


def test_the_compose_file_builds_that_image() -> None:
    """Its context is the checkout, its Dockerfile ours."""
    text = (FILES / "compose.yaml").read_text()
    strict_yaml.load(text.encode(), source="compose.yaml")
    (context,) = re.findall(r"context: (\S+)", text)
    (dockerfile,) = re.findall(r"dockerfile: (\S+)", text)
    assert (FILES / context).resolve() == ROOT
    assert (ROOT / dockerfile) == FILES / "Dockerfile"


def test_the_version_is_written_once() -> None:
    """In the package; the wheel takes it from there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert "version" not in project["project"]
    assert (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text().count("__version__ =") == 1
