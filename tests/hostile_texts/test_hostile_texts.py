"""Hostile texts are refused or read by the decoders within limits of time, in a separate process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.hostile_texts import json_texts, yaml_texts

pytestmark = pytest.mark.process

MAX_CPU_SECONDS = 1.5
TEXTS = {"json": json_texts, "yaml": yaml_texts}

Load = Callable[[str, bytes], Any]


@pytest.fixture
def load(reader: Any) -> Load:
    """Load a text in the other process. A slow text is loaded up to three times, in case the machine is busy."""

    def load(format_name: str, text: bytes) -> Any:
        result = reader.load(format_name, text)
        for _ in range(2):
            if result.cpu_seconds > MAX_CPU_SECONDS:
                result = reader.load(format_name, text)
        return result

    return load


def problems(result: Any, *, is_expected: bool) -> Iterator[str]:
    if result.died is not None:
        yield f"crashed the reader with exit code {result.died}"
    elif not is_expected:
        yield f"gave {result}"
    if result.cpu_seconds > MAX_CPU_SECONDS:
        yield f"took {result.cpu_seconds:.1f} s of CPU"


@pytest.mark.parametrize("format_name", TEXTS)
def test_a_hostile_text_is_refused_with_its_position_and_reason(load: Load, format_name: str) -> None:
    """No text crashes the process or takes more than 1.5 s of CPU."""
    failures = []
    for name, (text, reason, line, column) in TEXTS[format_name].REFUSED.items():
        result = load(format_name, text)
        is_expected = reason in (result.reason or "") and (result.line, result.column) == (line, column)
        failures += [f"{name}: {problem}" for problem in problems(result, is_expected=is_expected)]
    assert failures == []


@pytest.mark.parametrize("format_name", TEXTS)
def test_an_unusual_text_within_the_limits_is_read(load: Load, format_name: str) -> None:
    """Values exactly at the limits are accepted and take no more than 1.5 s of CPU."""
    failures = []
    for name, (text, shape) in TEXTS[format_name].READ.items():
        result = load(format_name, text)
        is_expected = (result.reason, result.shape) == (None, shape)
        failures += [f"{name}: {problem}" for problem in problems(result, is_expected=is_expected)]
    assert failures == []


def test_a_crash_is_reported_for_the_text_that_caused_it(reader: Any) -> None:
    """After a crash the next text is loaded in a new process."""
    assert reader.load("no such format", b"a").died not in (None, 0)
    assert reader.load("yaml", b"a").shape == "str"


def test_each_format_has_at_least_sixty_hostile_texts() -> None:
    assert min(len(texts.REFUSED) + len(texts.READ) for texts in TEXTS.values()) >= 60
