"""Every hostile text, through the reader of its format, in a process of its own."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.hostile_texts import json_texts, yaml_texts

CPU_SECONDS = 1.5


def cases(**tables: Mapping[str, Any]) -> list[Any]:
    return [
        pytest.param(form, case, id=f"{form}: {name}") for form, table in tables.items() for name, case in table.items()
    ]


Load = Callable[[str, bytes], Any]


@pytest.fixture
def load(reader: Any) -> Load:
    """Loads in the other process; a text that took too long gets two more chances, for the machine may be busy."""

    def load(form: str, text: bytes) -> Any:
        verdicts = [reader.load(form, text)]
        while verdicts[-1].cpu_seconds > CPU_SECONDS and len(verdicts) < 3:
            verdicts.append(reader.load(form, text))
        return verdicts[-1]

    return load


@pytest.mark.parametrize(("form", "case"), cases(json=json_texts.REFUSED, yaml=yaml_texts.REFUSED))
def test_a_hostile_text_is_refused_with_its_place_and_reason(load: Load, form: str, case: Any) -> None:
    """No text crashes the process or costs more than 1.5 s of CPU, and its author learns what to change where."""
    text, reason, line, column = case
    verdict = load(form, text)
    assert verdict.died is None
    assert reason in (verdict.reason or verdict.shape)
    assert (verdict.line, verdict.column) == (line, column)
    assert verdict.cpu_seconds <= CPU_SECONDS


@pytest.mark.parametrize(("form", "case"), cases(json=json_texts.READ, yaml=yaml_texts.READ))
def test_a_strange_text_within_the_limits_is_read(load: Load, form: str, case: Any) -> None:
    """The limits are where they are said to be, and no text within them costs more than 1.5 s of CPU."""
    text, shape = case
    verdict = load(form, text)
    assert verdict.died is None
    assert verdict.reason is None
    assert verdict.shape == shape
    assert verdict.cpu_seconds <= CPU_SECONDS


def test_a_crash_belongs_to_the_text_that_caused_it(reader: Any) -> None:
    """A reader that dies is noticed, and the next text gets a new one."""
    assert reader.load("no such format", b"a").died not in (None, 0)
    assert reader.load("yaml", b"a").shape == "str"


def test_there_are_enough_of_them() -> None:
    """At least sixty of each format."""
    assert min(len(texts.REFUSED) + len(texts.READ) for texts in (json_texts, yaml_texts)) >= 60
