"""Ductile as a stranger installs it: a wheel in a clean environment, far from the repository."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ductile import __version__
from tests.docs.instance import free_ports

ROOT = Path(__file__).parent.parent.parent
CLEAN = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DUCTILE_", "VIRTUAL_ENV"))
}

pytestmark = pytest.mark.timeout(300)


def checked(*command: str | Path, cwd: Path, **more: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**CLEAN, **more}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    checked(*pip, "wheel", "--no-deps", "--wheel-dir", target, ROOT, cwd=target)
    (built,) = target.glob("ductile-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs of an environment that has the wheel and what it needs, and nothing else."""
    place = tmp_path_factory.mktemp("clean") / "environment"
    venv.create(place, with_pip=True)
    constraints = str(ROOT / "constraints.txt")
    pip: list[str | Path] = [place / "bin" / "python", "-m", "pip", "-qq", "--disable-pip-version-check"]
    checked(*pip, "install", wheel, cwd=place, PIP_CONSTRAINT=constraints)
    return place / "bin"


@pytest.fixture
def started(installed: Path, tmp_path: Path) -> Iterator[Path]:
    """A demo configuration whose service runs, made by the two commands of the README."""
    port = str(free_ports())  # those of the demo may be taken where the tests run
    checked(installed / "ductile", "config", "init", "--demo", "--port", port, "--config-dir", "demo", cwd=tmp_path)
    demo = tmp_path / "demo"
    command: list[str | Path] = [installed / "ductile", "system", "start", "--config", demo]
    process = subprocess.Popen(command, cwd=tmp_path, env=CLEAN, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if '"ready"' in line:
                break
        yield demo
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_the_wheel_has_the_program_its_schema_and_the_bundled_plugins(wheel: Path) -> None:
    """Everything in plugins/ comes along, executable files as such; tests and caches do not."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert "ductile/ledger/schema.sql" in packed
    sources = [path for path in (ROOT / "plugins").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    for source in sources:
        name = f"ductile/bundled/{source.relative_to(ROOT / 'plugins')}"
        assert name in packed, name
        assert bool(packed[name] & 0o100) == os.access(source, os.X_OK), name
    assert not [name for name in packed if name.startswith("tests/") or "__pycache__" in name]
    assert f"ductile-{__version__}.dist-info/METADATA" in packed


def test_what_is_installed_runs_a_job_without_the_repository(installed: Path, started: Path, tmp_path: Path) -> None:
    """`config init --demo`, `system start`, and a plugin runs; the service stops well on SIGTERM."""
    ran = checked(
        installed / "ductile",
        *("plugin", "run", "echo", "--payload", '{"message": "from a wheel"}', "--wait", "--json"),
        *("--config", started),
        cwd=tmp_path,
    )
    assert "from a wheel" in ran
    status = json.loads(checked(installed / "ductile", "status", "--json", "--config", started, cwd=tmp_path))
    assert status["healthy"] is True
    assert status["service"]["version"] == __version__
    where = checked(installed / "python", "-c", "import ductile; print(ductile.__file__)", cwd=tmp_path)
    assert not Path(where.strip()).is_relative_to(ROOT)
