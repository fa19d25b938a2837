"""The files in docs/deployment match the program: commands, users, directories, ports."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from ductile.cli import ductile
from ductile.core.formats import strict_yaml
from tests.e2e.service import Home

ROOT = Path(__file__).parent.parent
FILES = ROOT / "docs" / "deployment"
IN_CONTAINER = "docker compose run --rm ductile "


def directives() -> list[tuple[str, str]]:
    """Return the directives of the unit as pairs. A name can occur several times."""
    lines = (FILES / "ductile.service").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in pairs]


def unit(name: str) -> str:
    """Return the value of a directive that occurs once."""
    (value,) = [value for directive, value in directives() if directive == name]
    return value


def require_command(args: list[str]) -> None:
    """Check that `ductile ARGS` is a valid command line."""
    command: click.Command | None = ductile
    context = click.Context(ductile)
    while isinstance(command, click.Group):
        command = command.get_command(context, args.pop(0))
    assert command is not None
    flags = {flag for option in command.params for flag in option.opts}
    assert {arg for arg in args if arg.startswith("-")} <= flags


def test_the_unit_starts_the_service_and_waits_until_it_is_ready() -> None:
    """It has Type=notify, a watchdog, and a valid command line."""
    assert unit("Type") == "notify"
    assert unit("WatchdogSec")
    program, *args = shlex.split(unit("ExecStart"))
    assert Path(program).name == "ductile"
    require_command(args)


def test_an_invalid_configuration_does_not_cause_restarts() -> None:
    """78 is the exit code for an invalid configuration."""
    assert unit("Restart") == "on-failure"
    assert unit("RestartPreventExitStatus") == "78"


def test_the_sandbox_allows_plugin_limits() -> None:
    """`limits` are set with setrlimit, which is in systemd's @resources."""
    denied = [value for name, value in directives() if name == "SystemCallFilter" and value.startswith("~")]
    assert not any("@resources" in value for value in denied)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Every directive is known, and the security rating of the sandbox is good."""
    text = (FILES / "ductile.service").read_text().replace("/opt/ductile/bin/ductile", "/bin/true")
    copy = tmp_path / "ductile.service"
    copy.write_text(text)
    verified = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert "ductile.service" not in verified.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", copy],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout[-500:]


def test_user_and_directories_are_those_of_the_unit() -> None:
    """All three files have the same user and directories."""
    user = unit("User")
    assert (FILES / "ductile.sysusers").read_text().splitlines()[-1].split()[1] == user
    rows = [line.split() for line in (FILES / "ductile.tmpfiles").read_text().splitlines() if line.startswith("d ")]
    assert {row[3] for row in rows} == {user}
    assert {f"/var/lib/{unit('StateDirectory')}", f"/etc/{unit('ConfigurationDirectory')}"} <= {row[1] for row in rows}


def test_the_image_copies_existing_files_and_runs_valid_commands() -> None:
    """COPY sources exist, the health check and the default command are valid, and the user is not root."""
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


def test_the_compose_file_builds_the_image() -> None:
    """Its context is the checkout."""
    text = (FILES / "compose.yaml").read_text()
    strict_yaml.load(text.encode(), source="compose.yaml")
    (context,) = re.findall(r"context: (\S+)", text)
    (dockerfile,) = re.findall(r"dockerfile: (\S+)", text)
    assert (FILES / context).resolve() == ROOT
    assert (ROOT / dockerfile) == FILES / "Dockerfile"


def test_the_version_is_defined_once() -> None:
    """In the package, from which the wheel reads it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert "version" not in project["project"]
    assert (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text().count("__version__ =") == 1


# ── commands and configuration in the page ──────────────────────────────────────────────────────────────────────────

PAGE = (ROOT / "docs" / "deployment.md").read_text()
BY_NAME = re.compile(r"\bpipx? install(?: +-{1,2}\S+(?: +\S+\.txt)?)* +ductile\b")
"""On the public package index this name belongs to another project."""


def block(chapter: str, language: str) -> str:
    """Return the first code block of a chapter."""
    (text,) = re.findall(rf"^## {chapter}\n.*?^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def test_no_page_installs_the_package_of_another_project() -> None:
    """Ductile is installed from a checkout, or from a wheel built from one."""
    texts = [ROOT / "README.md", ROOT / "constraints.txt", *ROOT.glob("docs/**/*"), *ROOT.glob("ductile/**/*.py")]
    files = [path for path in texts if path.is_file() and path.suffix not in (".svg", ".png")]

    assert ROOT / "docs" / "getting-started.md" in files
    assert [path.name for path in files if BY_NAME.search(path.read_text())] == []
    assert "another project" in PAGE.partition("## systemd")[0]


@pytest.fixture
def mounts() -> dict[str, str]:
    """Return the volumes of the compose file: target → source."""
    compose = strict_yaml.load((FILES / "compose.yaml").read_bytes(), source="compose.yaml").data()
    assert compose["services"].keys() == {"ductile"}
    return {
        target: source
        for source, _, target in (volume.partition(":") for volume in compose["services"]["ductile"]["volumes"])
    }


def test_the_container_mounts_the_configuration_folder_of_the_recipe(mounts: dict[str, str]) -> None:
    """Compose resolves ./ to the folder of its file, in which the recipe creates `config`."""
    folder = ROOT
    created = []
    for line in block("Containers", "sh").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["cd"]:
            folder = folder / words[1]
        if words[:1] == ["mkdir"]:
            created.append(folder / words[words.index("&&") - 1])

    assert created == [FILES / mounts["/etc/ductile"]]
    assert "DUCTILE_CONFIG_DIR=/etc/ductile " in (FILES / "Dockerfile").read_text()


def test_the_container_recipe_starts_a_service_with_an_api_token(tmp_path: Path, mounts: dict[str, str]) -> None:
    """Runs its commands on this host. The API requires the token, and the ledger is in its volume."""
    home = Home(tmp_path / "config")
    volumes = {"/etc/ductile": home.path, "/var/lib/ductile": tmp_path / mounts["/var/lib/ductile"]}
    for volume in volumes.values():
        volume.mkdir(mode=0o700)
    output = ""
    recipe = block("Containers", "sh").replace("0.0.0.0:8080", "127.0.0.1:0").splitlines()
    for line in [line.removeprefix(IN_CONTAINER) for line in recipe if line.startswith(IN_CONTAINER)]:
        for target, volume in volumes.items():
            line = line.replace(target, str(volume))
        command = [sys.executable, "-m", "ductile", *shlex.split(line, comments=True), "--config-dir", str(home.path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{line}: {result.stderr}"
        output += result.stdout
    (token,) = re.findall(r"^key \(shown only once\): (\S+)$", output, re.MULTILINE)
    service = home.start()
    try:
        assert service.ask("GET", "/jobs", token=token)[0] == 200
        assert service.ask("GET", "/jobs", token=None)[0] == 401
        assert (volumes["/var/lib/ductile"] / "state.db").exists()
        assert list((home.path / "data").iterdir()) == []
    finally:
        service.stop()


def test_the_compose_file_publishes_the_port_of_the_api() -> None:
    """The recipe sets it, on every address of the container."""
    compose = strict_yaml.load((FILES / "compose.yaml").read_bytes(), source="compose.yaml").data()
    (listen,) = re.findall(r"api\.listen=(\S+)", block("Containers", "sh"))

    assert listen.startswith("0.0.0.0:")
    assert f"127.0.0.1:8080:{listen.partition(':')[2]}" in compose["services"]["ductile"]["ports"]


def test_the_variables_of_the_proxy_are_defined() -> None:
    """`$connection_upgrade` is not built into nginx."""
    text = block("Behind a reverse proxy", "nginx")

    assert re.search(r"^map \$http_upgrade \$connection_upgrade \{", text, re.MULTILINE)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_nginx_accepts_the_example(tmp_path: Path) -> None:
    """Inside `http`, with a certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    create = f"openssl req -x509 -nodes -newkey rsa:2048 -subj /CN=x -keyout {key} -out {certificate}"
    subprocess.run(create.split(), check=True, capture_output=True)
    text = block("Behind a reverse proxy", "nginx").replace("listen 443 ssl", f"listen unix:{tmp_path}/listener ssl")
    text = re.sub(r"ssl_certificate_key \S+;", f"ssl_certificate_key {key};", text)
    text = re.sub(r"ssl_certificate \S+;", f"ssl_certificate {certificate};", text)
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{text}\n}}\n")
    checked = subprocess.run(
        ["nginx", "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stderr
