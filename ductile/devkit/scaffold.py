"""The files of `plugin new`: templates in three languages, and the helper library that ships with Ductile."""

import os
from importlib import resources
from pathlib import Path

from attrs import frozen

from ductile.config.scaffold import bundled_plugins_dir
from ductile.core import files
from ductile.core.errors import UsageInvalid
from ductile.plugin.manifest import PLUGIN_NAME, PLUGIN_NAME_HELP

TEMPLATES = "templates"
SUFFIX = ".txt"
"""The suffix of every template, so that tools do not treat it as code of this repository."""


@frozen
class Language:
    """The file names of a plugin in one language."""

    entrypoint: str
    helper: str


LANGUAGES = {
    "python": Language("run.py", "ductile_plugin.py"),
    "sh": Language("run.sh", "ductile.sh"),
    "node": Language("run.js", "ductile.js"),
}


def plan_files(name: str, lang: str) -> dict[str, bytes]:
    """Return the files of a new plugin by relative path. Raises UsageInvalid for an invalid name."""
    if not PLUGIN_NAME.fullmatch(name):
        raise UsageInvalid(f"{name!r} is not a plugin name: {PLUGIN_NAME_HELP}")
    language = LANGUAGES[lang]
    texts = {"@NAME@": name, "@ENTRYPOINT@": language.entrypoint, "@HELPER@": language.helper}
    planned = {}
    for folder in ("common", lang):
        root = Path(str(resources.files("ductile.devkit"))) / TEMPLATES / folder
        for path in sorted(root.rglob(f"*{SUFFIX}")):
            text = path.read_text()
            for placeholder, value in texts.items():
                text = text.replace(placeholder, value)
            planned[path.relative_to(root).as_posix().removesuffix(SUFFIX)] = text.encode()
    planned[language.helper] = (bundled_plugins_dir() / "lib" / lang / language.helper).read_bytes()
    return planned


def write_plugin(folder: Path, planned: dict[str, bytes], *, dry_run: bool) -> None:
    """Write the files to the new folder; with `dry_run`, only check that this is possible."""
    if os.path.lexists(folder):
        raise UsageInvalid(f"{folder} already exists", hint="Choose another name, or another directory with --dir.")
    parent = next(path for path in folder.absolute().parents if path.exists())
    files.require_writable(parent)
    if dry_run:
        return
    entrypoints = {language.entrypoint for language in LANGUAGES.values()}
    for name, content in planned.items():
        _write(folder / name, content, 0o755 if name in entrypoints else 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        # Set explicit modes regardless of the umask: a service does not run files that other users can write.
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    except OSError as error:
        raise files.FileRefused(path, os.strerror(error.errno or 0).lower()) from error
