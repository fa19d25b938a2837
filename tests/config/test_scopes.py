"""Scope files: what a token of tokens.yaml may do, and only if its file is the approved one."""

import pytest

from ductile.config.load.load import Config
from ductile.config.scopes import scopes_hash
from ductile.core.errors import ConfigInvalid
from tests.config.conftest import Home

SCOPES = b'{"scopes": ["plugin:ro", "jobs:ro"], "metadata": {"any": "thing"}}'


def granted(home: Home, content: bytes = SCOPES, hashed: str | None = None) -> Config:
    """A configuration with one token and its scope file, sealed."""
    home.write("scopes/t.json", content)
    line = f", scopes_hash: '{hashed}'" if hashed is not None else ""
    home.write(
        "tokens.yaml", f"tokens: [{{name: t, key: 0123456789012345678901234, scopes_file: scopes/t.json{line}}}]"
    )
    home.write("config.yaml", "include: [tokens.yaml]")
    home.lock()
    return home.load()


@pytest.mark.parametrize("prefix", ["blake3:", ""])
def test_a_scope_file_with_its_hash_grants_what_it_says(home: Home, prefix: str) -> None:
    """The hash is `blake3:<hex>`."""
    hashed = scopes_hash(SCOPES).replace("blake3:", prefix)
    grant = granted(home, hashed=hashed).grants["t"]
    assert (grant.scopes, grant.refused) == (("plugin:ro", "jobs:ro"), "")


@pytest.mark.parametrize("hashed", [None, "", "blake3:", scopes_hash(SCOPES + b" "), "sha256:abc"])
def test_a_token_whose_hash_does_not_fit_grants_nothing_but_still_signs(home: Home, hashed: str | None) -> None:
    """It stays a named secret; the API does not know it."""
    config = granted(home, hashed=hashed)
    assert config.grants["t"].scopes == ()
    assert config.settings.tokens[0].key.reveal() == "0123456789012345678901234"
    (told,) = (warning for warning in config.warnings if warning.category == "token_scopes")
    assert "token t cannot use the API" in told.message


def test_a_token_without_a_scope_file_has_no_grant(home: Home) -> None:
    """It is a secret and nothing else."""
    home.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234}]")
    home.write("config.yaml", "include: [tokens.yaml]")
    home.lock()
    assert home.load().grants == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"scopes": "plugin:ro"}',
        b'{"scopes": [1]}',
        b'{"scopes": [""]}',
        b'{"scopes": ["a"], "scopes": ["*"]}',
        b'{"scopes": NaN}',
        b"\xff",
        b"{" * 100_000,
        b'{"scopes": ["' + b"x" * 70_000 + b'"]}',
    ],
)
def test_a_broken_scope_file_is_an_error_at_the_token(home: Home, content: bytes) -> None:
    """With where it is named or where it breaks, never a guess."""
    with pytest.raises(ConfigInvalid, match=r"tokens\[0\]\.scopes_file: ") as caught:
        granted(home, content)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("name", ["gone.json", "../../../etc/shadow-gone", "/dev/zero", "scopes"])
def test_a_scope_file_that_is_none_is_an_error_with_the_line_that_names_it(home: Home, name: str) -> None:
    """tokens.yaml, line, path, reason."""
    home.write("tokens.yaml", f"tokens:\n  - name: t\n    key: 0123456789012345678901234\n    scopes_file: {name}\n")
    home.write("scopes/x.json", "")
    home.write("config.yaml", "include: [tokens.yaml]")
    with pytest.raises(ConfigInvalid, match=r"tokens\.yaml:4: tokens\[0\]\.scopes_file: "):
        home.lock()


def test_a_world_writable_scope_file_is_refused(home: Home) -> None:
    """Whoever can write it decides what a token may do."""
    granted(home)
    (home.folder / "scopes/t.json").chmod(0o666)
    assert "is world-writable" in home.refusal()
