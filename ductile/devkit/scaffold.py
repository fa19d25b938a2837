"""A new plugin: the files `plugin new` writes, in one of three languages, with the helper that comes with Ductile."""

import os
from importlib import resources
from pathlib import Path

from attrs import frozen

from ductile.config.scaffold import bundled_plugins
from ductile.core import files
from ductile.core.errors import UsageInvalid
from ductile.plugin.manifest import PLUGIN_NAME, PLUGIN_NAME_HELP

TEMPLATES = "templates"
SUFFIX = ".txt"
"""At the end of every template's name, so that no tool takes it for code of ours."""


@frozen
class Language:
    """The program of a plugin and the helper beside it."""

    entrypoint: str
    helper: str


LANGUAGES = {
    "python": Language("run.py", "ductile_plugin.py"),
    "sh": Language("run.sh", "ductile.sh"),
    "node": Language("run.js", "ductile.js"),
}


def plan(name: str, lang: str) -> dict[str, bytes]:
    """The files of a new plugin, by their path below its folder."""
    if not PLUGIN_NAME.fullmatch(name):
        raise UsageInvalid(f"{name!r} is not a plugin's name: {PLUGIN_NAME_HELP}")
    language = LANGUAGES[lang]
    texts = {"@NAME@": name, "@ENTRYPOINT@": language.entrypoint, "@HELPER@": language.helper}
    made = {}
    for folder in ("common", lang):
        root = Path(str(resources.files("ductile.devkit"))) / TEMPLATES / folder
        for path in sorted(root.rglob(f"*{SUFFIX}")):
            text = path.read_text()
            for mark, value in texts.items():
                text = text.replace(mark, value)
            made[path.relative_to(root).as_posix().removesuffix(SUFFIX)] = text.encode()
    made[language.helper] = (bundled_plugins() / "lib" / lang / language.helper).read_bytes()
    return made


def make(folder: Path, planned: dict[str, bytes], *, dry_run: bool) -> None:
    """The files are in `folder`, which was not there before; with `dry_run` they could be."""
    if os.path.lexists(folder):
        raise UsageInvalid(f"{folder} is already there", hint="choose another name, or another place with --dir")
    above = next(path for path in folder.absolute().parents if path.exists())
    files.require_writable(above)
    if dry_run:
        return
    entrypoints = {language.entrypoint for language in LANGUAGES.values()}
    for name, content in planned.items():
        _write(folder / name, content, 0o755 if name in entrypoints else 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        # Whatever the umask: what anybody may write, no service runs.
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    except OSError as error:
        raise files.FileRefused(path, os.strerror(error.errno or 0).lower()) from error
