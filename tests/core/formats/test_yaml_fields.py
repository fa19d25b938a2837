"""Configuration sections compare by value and omit private values from their repr."""

from attrs import evolve, frozen

from ductile.config.sections.settings import Retry, TokenEntry
from ductile.core.formats.yaml_fields import option
from ductile.core.secret import Secret


@frozen(kw_only=True)
class Section:
    """A section for these tests."""

    size: int = option("a number", default=1)
    note: str = option("a private value", default="", private=True)


def test_sections_with_equal_values_are_equal() -> None:
    assert Section(size=2) == Section(size=2) != Section(size=3)
    assert hash(Section(size=2)) == hash(Section(size=2))
    assert len({Retry(), Retry(), evolve(Retry(), max_attempts=9)}) == 2


def test_the_repr_of_a_section_omits_private_values() -> None:
    """A log line or a traceback must not reveal secrets."""
    assert repr(Section(size=2, note="hidden")) == "Section(size=2)"
    assert "hidden words" not in repr(TokenEntry(name="a", key=Secret("hidden words")))
