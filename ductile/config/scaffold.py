"""The files of a new configuration for `config init`, and the demo that `--demo` adds.

Creates directories with mode 0700 and files with mode 0600. Does not replace existing files unless forced.
"""

import json
import os
import secrets
import shutil
from importlib import resources
from pathlib import Path

from attrs import frozen

from ductile.config.files.sources import CONFIG_FILE
from ductile.config.views.schema import schema
from ductile.core import files
from ductile.core.errors import UsageInvalid

SCHEMA_FILE = "ductile.schema.json"
SCHEMA_COMMENT = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"
PLUGINS_FOLDER = "plugins"
DEFAULT_PORT = 8080
"""Port of the API. Webhooks use the next port."""


@frozen
class Scaffold:
    """The files of a new configuration, by path relative to its directory."""

    files: dict[str, bytes]
    plugins: tuple[Path, ...]
    token: str | None


def plan(*, demo: bool, port: int = DEFAULT_PORT) -> Scaffold:
    """Return the files of a new configuration. The demo has a new API token and a new webhook secret."""
    token = f"demo-{secrets.token_hex(16)}" if demo else None
    texts = {
        CONFIG_FILE: SCHEMA_COMMENT + _config_text(demo=demo, port=port),
        "plugins.yaml": SCHEMA_COMMENT + (_DEMO_PLUGINS if demo else _EMPTY_PLUGINS),
        "pipelines.yaml": SCHEMA_COMMENT + (_DEMO_PIPELINES if demo else _EMPTY_PIPELINES),
        "webhooks.yaml": SCHEMA_COMMENT
        + _WEBHOOKS.format(port=port + 1)
        + (_DEMO_ENDPOINT if demo else _EMPTY_ENDPOINTS),
        "tokens.yaml": SCHEMA_COMMENT + (_DEMO_TOKENS if demo else _EMPTY_TOKENS),
        ".env": _ENV + (_DEMO_ENV.format(token=token, secret=secrets.token_hex(32)) if demo else _EMPTY_ENV),
        SCHEMA_FILE: json.dumps(schema(), indent=2) + "\n",
    }
    bundled = tuple(bundled_plugins_dir() / name for name in _DEMO_NAMES) if demo else ()
    return Scaffold({name: text.encode() for name, text in texts.items()}, bundled, token)


def require_no_conflicts(directory: Path, scaffold: Scaffold, *, force: bool) -> None:
    """Raise UsageInvalid if existing files would be replaced, unless `force` is set."""
    names = [*scaffold.files, *(f"{PLUGINS_FOLDER}/{plugin.name}" for plugin in scaffold.plugins)]
    existing = [name for name in names if os.path.lexists(directory / name)]
    if existing and not force:
        raise UsageInvalid(
            f"{directory} already has {', '.join(existing)}",
            hint="Choose another directory with --config-dir, or replace the files with --force.",
        )


def write(directory: Path, scaffold: Scaffold) -> None:
    """Write the files of `scaffold` to `directory`."""
    for folder in (directory, directory / PLUGINS_FOLDER, directory / "scopes", directory / "data"):
        files.make_private_folder(folder)
    for name, content in scaffold.files.items():
        files.write_private(directory / name, content)
    for plugin in scaffold.plugins:
        copy_plugin(plugin, directory / PLUGINS_FOLDER / plugin.name)


def bundled_plugins_dir() -> Path:
    """Return the directory of the bundled plugins, in the installed package or in the checkout."""
    installed = Path(str(resources.files("ductile"))) / "bundled"
    return installed if installed.is_dir() else installed.parent.parent / PLUGINS_FOLDER


def copy_plugin(source: Path, target: Path) -> None:
    """Copy a bundled plugin to `target` with private modes."""

    def copy(origin: str, copied: str) -> str:
        shutil.copyfile(origin, copied)
        os.chmod(copied, 0o700 if os.access(origin, os.X_OK) else 0o600)
        return copied

    try:
        shutil.copytree(
            source, target, copy_function=copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        for folder, _, _ in os.walk(target):
            os.chmod(folder, 0o700)
    except (OSError, shutil.Error) as error:
        raise files.FileRefused(target, str(error)) from error


def _config_text(*, demo: bool, port: int) -> str:
    return f"""\
# Ductile configuration. `ductile config schema` describes every key.
# After a change, run `ductile config check`, then `ductile config lock`.

include:
  - plugins.yaml
  - pipelines.yaml
  - webhooks.yaml
  - tokens.yaml

environment_vars:
  include:
    - .env

plugin_roots:
  - {PLUGINS_FOLDER}

state:
  path: data/state.db

service:
  name: ductile
  log_level: info

api:
  enabled: {"true" if demo else "false"}
  listen: 127.0.0.1:{port}
{_DEMO_AUTH if demo else _EMPTY_AUTH}"""


_DEMO_AUTH = """\
  auth:
    tokens:
      - name: demo
        token: ${DUCTILE_API_TOKEN}
        scopes: ["*"]
"""
_EMPTY_AUTH = """\
  # The API requires at least one token. Add its value to .env.
  # auth:
  #   tokens:
  #     - name: admin
  #       token: ${DUCTILE_API_TOKEN}
  #       scopes: ["*"]
"""
_DEMO_NAMES = ("echo", "github_events")
_DEMO_PLUGINS = """\
plugins:
  github_events: {}
  echo:
    config:
      message: hello from Ductile
"""
_EMPTY_PLUGINS = """\
plugins: {}
#  my-plugin:
#    config: {}
#    schedules:
#      - every: 15m
"""
_EMPTY_PIPELINES = """\
pipelines: []
#  - name: my-pipeline
#    on: my.event
#    steps:
#      - uses: my-plugin
#      - uses: other-plugin
#        if: {path: payload.status, op: eq, value: done}
#        with:
#          message: "Finished: {payload.name}"
"""
_DEMO_PIPELINES = """\
pipelines:
  # Announce every push that GitHub reports.
  - name: announce-push
    on: github.push
    steps:
      - id: announce
        uses: echo
        with:
          message: "{payload.text}"
"""
_WEBHOOKS = """\
webhooks:
  listen: 127.0.0.1:{port}
"""
_DEMO_ENDPOINT = """\
  endpoints:
    - name: github
      path: /hook/github
      plugin: github_events
      scheme: github
      secret_ref: github
"""
_EMPTY_ENDPOINTS = """\
  endpoints: []
#    - path: /hook/github
#      plugin: my-plugin
#      scheme: github
#      secret_ref: github
"""
_ENV = "# Values for ${NAME} in the configuration. They are not passed to plugins.\n"
_DEMO_ENV = "DUCTILE_API_TOKEN={token}\nGITHUB_WEBHOOK_SECRET={secret}\n"
_EMPTY_ENV = "# DUCTILE_API_TOKEN=\n"
_DEMO_TOKENS = """\
tokens:
  - name: github
    key: ${GITHUB_WEBHOOK_SECRET}
"""
_EMPTY_TOKENS = """\
tokens: []
#  - name: github
#    key: ${GITHUB_WEBHOOK_SECRET}
"""
