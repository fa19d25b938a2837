"""Patterns that are compiled when they are first used."""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ductile.patterns import LatePattern, compiled_late


def test_a_late_pattern_answers_as_a_pattern_does() -> None:
    late, early = LatePattern("(?P<first>[a-c])+", re.IGNORECASE), re.compile("(?P<first>[a-c])+", re.IGNORECASE)
    for _ in range(2):
        assert late.findall("Abd c") == early.findall("Abd c")
    assert (late.pattern, late.flags, late.groupindex) == (early.pattern, early.flags, early.groupindex)
    assert copy.copy(late).findall("Abd c") == early.findall("Abd c")


def test_only_the_package_itself_gets_late_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that cannot be compiled tells so to whoever uses it; everybody else hears of theirs at once."""
    (tmp_path / "tardy").mkdir()
    (tmp_path / "tardy" / "__init__.py").write_text("from tardy import inner\nimport prompt\n")
    (tmp_path / "tardy" / "inner.py").write_text("import re\nBROKEN = re.compile('[')\n")
    (tmp_path / "prompt.py").write_text("import re\nSOUND = re.compile('prompt, and only here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with compiled_late("tardy"):
        import tardy.inner  # type: ignore[import-not-found]

        with pytest.raises(re.error):
            re.compile("[")
    assert isinstance(sys.modules["prompt"].SOUND, re.Pattern)
    with pytest.raises(re.error):
        tardy.inner.BROKEN.match("a")


def test_the_patterns_of_the_yaml_library_work_all_the_same() -> None:
    """What reads YAML in Python instead of libyaml finds them when it needs them, and they are its own again."""
    script = (
        "import re; from ductile import strict_yaml; import yaml\n"
        "assert re.compile.__module__ == 're'\n"
        "assert type(yaml.reader.Reader.NON_PRINTABLE).__name__ == 'LatePattern'\n"
        "print(yaml.load('{a: 1.5, b: 2026-01-02, c: yes, d: ~}', yaml.SafeLoader))\n"
        "try: yaml.load('a\\x01', yaml.SafeLoader)\n"
        "except yaml.reader.ReaderError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["{'a': 1.5, 'b': datetime.date(2026, 1, 2), 'c': True, 'd': None}", "refused"]
