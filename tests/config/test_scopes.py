"""Scope files: a token has the scopes of its scope file only if the hash matches."""

import re

import pytest

from ductile.config.load.load import Config
from ductile.config.scopes import hash_scope_file
from tests.config.conftest import ConfigDir

SCOPES = b'{"scopes": ["plugin:ro", "jobs:ro"], "metadata": {"any": "thing"}}'


def load_grants(config_dir: ConfigDir, content: bytes = SCOPES, hashed: str | None = None) -> Config:
    """Load a sealed configuration with one token and its scope file."""
    config_dir.write("scopes/t.json", content)
    line = f", scopes_hash: '{hashed}'" if hashed is not None else ""
    config_dir.write(
        "tokens.yaml", f"tokens: [{{name: t, key: 0123456789012345678901234, scopes_file: scopes/t.json{line}}}]"
    )
    config_dir.write("config.yaml", "include: [tokens.yaml]")
    config_dir.seal()
    return config_dir.load()


@pytest.mark.parametrize("prefix", ["blake3:", ""])
def test_a_scope_file_with_a_matching_hash_grants_its_scopes(config_dir: ConfigDir, prefix: str) -> None:
    hashed = hash_scope_file(SCOPES).replace("blake3:", prefix)
    grant = load_grants(config_dir, hashed=hashed).grants["t"]
    assert (grant.scopes, grant.refused) == (("plugin:ro", "jobs:ro"), "")


@pytest.mark.parametrize("hashed", [None, "", "blake3:", hash_scope_file(SCOPES + b" "), "sha256:abc"])
def test_a_token_whose_hash_does_not_match_has_no_scopes_but_is_still_a_secret(
    config_dir: ConfigDir, hashed: str | None
) -> None:
    config = load_grants(config_dir, hashed=hashed)
    assert config.grants["t"].scopes == ()
    assert config.settings.tokens[0].key.reveal() == "0123456789012345678901234"
    (warning,) = (warning for warning in config.warnings if warning.category == "token_scopes")
    assert "token t cannot authenticate API requests" in warning.message


def test_a_token_without_a_scope_file_has_no_grant(config_dir: ConfigDir) -> None:
    config_dir.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234}]")
    config_dir.write("config.yaml", "include: [tokens.yaml]")
    config_dir.seal()
    assert config_dir.load().grants == {}


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
def test_a_token_whose_scope_file_is_invalid_has_no_scopes_but_is_still_a_secret(
    config_dir: ConfigDir, content: bytes
) -> None:
    config = load_grants(config_dir, content, hash_scope_file(content))
    assert config.grants["t"].scopes == ()
    assert config.settings.tokens[0].key.reveal() == "0123456789012345678901234"
    (warning,) = (warning for warning in config.warnings if warning.category == "token_scopes")
    assert warning.path == "tokens[0].scopes_file"
    assert "token t cannot authenticate API requests: " in warning.message


@pytest.mark.parametrize("name", ["gone.json", "../../../etc/shadow-gone", "/dev/zero", "scopes"])
def test_an_unreadable_scope_file_is_reported_at_the_line_that_refers_to_it(config_dir: ConfigDir, name: str) -> None:
    config_dir.write(
        "tokens.yaml", f"tokens:\n  - name: t\n    key: 0123456789012345678901234\n    scopes_file: {name}\n"
    )
    config_dir.write("scopes/x.json", "")
    config_dir.write("config.yaml", "include: [tokens.yaml]")
    config_dir.seal()
    found = [str(warning) for warning in config_dir.load().warnings if warning.category == "token_scopes"]
    assert re.search(r"tokens\.yaml:4: tokens\[0\]\.scopes_file: token t cannot authenticate", found[0])


def test_a_world_writable_scope_file_is_refused(config_dir: ConfigDir) -> None:
    load_grants(config_dir)
    (config_dir.path / "scopes/t.json").chmod(0o666)
    assert "is world-writable" in config_dir.errors()
