"""The files in docs/deployment say what the program really understands."""

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


# ── what the page tells to type ─────────────────────────────────────────────────────────────────────────────────────

PAGE = (ROOT / "docs" / "deployment.md").read_text()
BY_NAME = re.compile(r"\bpipx? install(?: +-{1,2}\S+(?: +\S+\.txt)?)* +ductile\b")
"""On the public index that name is another project's."""


def block(chapter: str, language: str) -> str:
    """The first block of code of a chapter."""
    (text,) = re.findall(rf"^## {chapter}\n.*?^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def test_nothing_tells_to_install_a_stranger_s_package() -> None:
    """Ductile is installed from a checkout, or from a wheel that was built of one."""
    texts = [ROOT / "README.md", ROOT / "constraints.txt", *ROOT.glob("docs/**/*"), *ROOT.glob("ductile/**/*.py")]
    files = [path for path in texts if path.is_file() and path.suffix not in (".svg", ".png")]

    assert ROOT / "docs" / "getting-started.md" in files
    assert [path.name for path in files if BY_NAME.search(path.read_text())] == []
    assert "another project" in PAGE.partition("## systemd")[0]


@pytest.fixture
def mounts() -> dict[str, str]:
    """Target → source of the volumes of the compose file."""
    compose = strict_yaml.load((FILES / "compose.yaml").read_bytes(), source="compose.yaml").data()
    assert compose["services"].keys() == {"ductile"}
    return {
        target: source
        for source, _, target in (one.partition(":") for one in compose["services"]["ductile"]["volumes"])
    }


def test_the_container_finds_the_configuration_that_the_recipe_makes(mounts: dict[str, str]) -> None:
    """Compose reads ./ as the directory of its file; there the recipe makes `config`, where the image looks for it."""
    where = ROOT
    made = []
    for line in block("Containers", "sh").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["cd"]:
            where = where / words[1]
        if words[:1] == ["mkdir"]:
            made.append(where / words[words.index("&&") - 1])

    assert made == [FILES / mounts["/etc/ductile"]]
    assert "DUCTILE_CONFIG_DIR=/etc/ductile " in (FILES / "Dockerfile").read_text()


def test_the_container_recipe_leads_to_a_service_that_can_be_asked(tmp_path: Path, mounts: dict[str, str]) -> None:
    """Its commands, on this host: the API answers whoever has the token, and the ledger is in the volume for it."""
    home = Home(tmp_path / "config")
    volumes = {"/etc/ductile": home.path, "/var/lib/ductile": tmp_path / mounts["/var/lib/ductile"]}
    for volume in volumes.values():
        volume.mkdir(mode=0o700)
    said = ""
    recipe = block("Containers", "sh").replace("0.0.0.0:8080", "127.0.0.1:0").splitlines()
    for line in [line.removeprefix(IN_CONTAINER) for line in recipe if line.startswith(IN_CONTAINER)]:
        for target, volume in volumes.items():
            line = line.replace(target, str(volume))
        command = [sys.executable, "-m", "ductile", *shlex.split(line, comments=True), "--config-dir", str(home.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        said += done.stdout
    (token,) = re.findall(r"^key \(shown only once\): (\S+)$", said, re.MULTILINE)
    service = home.start()
    try:
        assert service.ask("GET", "/jobs", token=token)[0] == 200
        assert service.ask("GET", "/jobs", token=None)[0] == 401
        assert (volumes["/var/lib/ductile"] / "state.db").exists()
        assert list((home.path / "data").iterdir()) == []
    finally:
        service.stop()


def test_the_api_listens_where_the_compose_file_opens_it() -> None:
    """The port that is published is the one the recipe sets, on every address of the container."""
    compose = strict_yaml.load((FILES / "compose.yaml").read_bytes(), source="compose.yaml").data()
    (listen,) = re.findall(r"api\.listen=(\S+)", block("Containers", "sh"))

    assert listen.startswith("0.0.0.0:")
    assert f"127.0.0.1:8080:{listen.partition(':')[2]}" in compose["services"]["ductile"]["ports"]


def test_the_proxy_s_variables_are_defined() -> None:
    """`$connection_upgrade` is none of nginx's own."""
    text = block("Behind a reverse proxy", "nginx")

    assert re.search(r"^map \$http_upgrade \$connection_upgrade \{", text, re.MULTILINE)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx's own checker")
def test_nginx_takes_the_example(tmp_path: Path) -> None:
    """Inside `http`, with a certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = f"openssl req -x509 -nodes -newkey rsa:2048 -subj /CN=x -keyout {key} -out {certificate}"
    subprocess.run(made.split(), check=True, capture_output=True)
    text = block("Behind a reverse proxy", "nginx").replace("listen 443 ssl", f"listen unix:{tmp_path}/door ssl")
    text = re.sub(r"ssl_certificate_key \S+;", f"ssl_certificate_key {key};", text)
    text = re.sub(r"ssl_certificate \S+;", f"ssl_certificate {certificate};", text)
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{text}\n}}\n")
    checked = subprocess.run(
        ["nginx", "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True, check=False
    )

    assert checked.returncode == 0, checked.stderr
