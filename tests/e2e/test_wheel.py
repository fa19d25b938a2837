"""An installation from the wheel in a clean environment."""

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
CLEAN_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DUCTILE_", "VIRTUAL_ENV"))
}

pytestmark = pytest.mark.timeout(300)


def run_checked(*command: str | Path, cwd: Path, **more: str) -> str:
    completed = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**CLEAN_ENVIRONMENT, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, f"{command}:\n{completed.stdout}\n{completed.stderr}"
    return completed.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    run_checked(*pip, "wheel", "--no-deps", "--wheel-dir", target, ROOT, cwd=target)
    (built,) = target.glob("ductile-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment and return its directory of programs."""
    environment = tmp_path_factory.mktemp("clean") / "environment"
    venv.create(environment, with_pip=True)
    constraints = str(ROOT / "constraints.txt")
    pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "-qq", "--disable-pip-version-check"]
    run_checked(*pip, "install", wheel, cwd=environment, PIP_CONSTRAINT=constraints)
    return environment / "bin"


@pytest.fixture
def demo_service(installed: Path, tmp_path: Path) -> Iterator[Path]:
    """Create a demo configuration and start its service with the commands of the README."""
    port = str(free_ports())  # the default ports of the demo may be in use
    run_checked(installed / "ductile", "config", "init", "--demo", "--port", port, "--config-dir", "demo", cwd=tmp_path)
    demo = tmp_path / "demo"
    command: list[str | Path] = [installed / "ductile", "system", "start", "--config", demo]
    process = subprocess.Popen(command, cwd=tmp_path, env=CLEAN_ENVIRONMENT, stdout=subprocess.PIPE, text=True)
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


def test_the_wheel_has_the_schema_and_the_bundled_plugins(wheel: Path) -> None:
    """Executable files stay executable. Tests and caches are not included."""
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


def test_an_installed_wheel_runs_a_job(installed: Path, demo_service: Path, tmp_path: Path) -> None:
    """`config init --demo`, `system start` and `plugin run` work, and the service exits 0 on SIGTERM."""
    ran = run_checked(
        installed / "ductile",
        *("plugin", "run", "echo", "--payload", '{"message": "from a wheel"}', "--wait", "--json"),
        *("--config", demo_service),
        cwd=tmp_path,
    )
    assert "from a wheel" in ran
    status = json.loads(run_checked(installed / "ductile", "status", "--json", "--config", demo_service, cwd=tmp_path))
    assert status["healthy"] is True
    assert status["service"]["version"] == __version__
    module_path = run_checked(installed / "python", "-c", "import ductile; print(ductile.__file__)", cwd=tmp_path)
    assert not Path(module_path.strip()).is_relative_to(ROOT)
