"""Sections: values from YAML that compare and print as values do, and keep to themselves what is private."""

from attrs import evolve, frozen

from ductile.config.sections.settings import Retry, TokenEntry
from ductile.core.formats.yaml_fields import option
from ductile.core.secret import Secret


@frozen(kw_only=True)
class Shelf:
    """A section of these tests."""

    books: int = option("how many", default=1)
    diary: str = option("what nobody reads", default="", private=True)


def test_sections_are_alike_when_their_values_are() -> None:
    """Equal and of one hash, whoever made them; another value or another class is another section."""
    assert Shelf(books=2) == Shelf(books=2) != Shelf(books=3)
    assert hash(Shelf(books=2)) == hash(Shelf(books=2))
    assert len({Retry(), Retry(), evolve(Retry(), max_attempts=9)}) == 2


def test_a_section_prints_its_values_without_the_private_ones() -> None:
    """A log line or a traceback gives away neither secrets nor what the operator handed on."""
    assert repr(Shelf(books=2, diary="dear diary")) == "Shelf(books=2)"
    assert "hidden words" not in repr(TokenEntry(name="a", key=Secret("hidden words")))
