"""A first configuration: private, sealed, healthy, and never over somebody else's."""

import stat
from collections.abc import Callable

import pytest

from ductile.config import scaffold
from ductile.config.load.sources import CONFIG_FILE
from ductile.core.errors import UsageInvalid
from ductile.core.files import FileRefused
from tests.config.conftest import Home


def made(home: Home, *, demo: bool = True) -> scaffold.Scaffold:
    planned = scaffold.plan(demo=demo)
    scaffold.require_free(home.folder, planned, force=False)
    scaffold.write(home.folder, planned)
    home.lock()
    return planned


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o027])
def test_everything_is_private_whatever_the_umask(home: Home, with_umask: Callable[[int], None], mask: int) -> None:
    """Directories 0700, files 0600, also folders that had to be made on the way."""
    with_umask(mask)
    nested = Home(home.folder / "one/two/etc")
    made(nested)
    for path in [home.folder / "one", *(home.folder / "one").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        is_program = path.name in ("run.sh", "run.py")
        assert mode == (0o700 if path.is_dir() or is_program else 0o600), path


@pytest.mark.parametrize("demo", [False, True])
def test_a_new_configuration_is_healthy(home: Home, demo: bool) -> None:
    """The doctor finds no error, and nothing about seals or permissions."""
    made(home, demo=demo)
    report = home.examine().report
    assert report.errors == ()
    told = [warning for warning in report.warnings if str(home.folder) in str(warning)]
    assert [warning for warning in told if warning.category in ("integrity", "permissions", "env_vars")] == []


def test_the_demo_has_a_plugin_an_api_and_a_token_of_its_own(home: Home) -> None:
    """The token is fresh, long, and kept in .env alone."""
    planned = made(home)
    found = home.examine()
    assert set(found.plugins) == {"echo", "github_events"}
    assert found.config.settings.api.enabled is True
    assert planned.token is not None
    assert found.config.settings.api.auth.tokens[0].token.reveal() == planned.token
    assert [name for name, content in home.contents().items() if planned.token.encode() in content] == [".env"]
    assert scaffold.plan(demo=True).token != planned.token


@pytest.mark.parametrize("name", [CONFIG_FILE, "tokens.yaml", ".env", "ductile.schema.json", "plugins/echo/run.sh"])
def test_what_is_there_already_is_not_touched(home: Home, name: str) -> None:
    """Files and plugins of the operator; the refusal names them and the way out."""
    home.write(name, "mine")
    before = home.contents()
    with pytest.raises(UsageInvalid, match="already has") as caught:
        made(home)
    assert "--force" in caught.value.hint
    assert home.contents() == before


def test_a_dangling_link_counts_as_there(home: Home) -> None:
    """Nothing is written through it."""
    (home.folder / CONFIG_FILE).symlink_to("nowhere")
    with pytest.raises(UsageInvalid, match=CONFIG_FILE):
        made(home)


def test_force_replaces_files(home: Home) -> None:
    """The operator said so; other files stay."""
    home.write(CONFIG_FILE, "mine")
    home.write("other.yaml", "mine")
    planned = scaffold.plan(demo=False)
    scaffold.require_free(home.folder, planned, force=True)
    scaffold.write(home.folder, planned)
    assert home.contents()[CONFIG_FILE] == planned.files[CONFIG_FILE]
    assert home.contents()["other.yaml"] == b"mine"


def test_a_place_that_cannot_be_written_is_refused(home: Home) -> None:
    """A file where a directory should be."""
    home.write("etc", "a file")
    with pytest.raises(FileRefused, match="etc"):
        scaffold.write(home.folder / "etc/ductile", scaffold.plan(demo=False))
