"""A reason as a value: a stable code for programs, its data, and the sentence that people read."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict, cast

from attrs import field, frozen

from ductile.core.formats.json_schema import OPEN, Omittable
from ductile.explain.sentences import sentence


class ReasonView(TypedDict):
    """A reason. Its other members are the data of the code."""

    code: Annotated[str, "Stable code of the reason"]
    words: Omittable[Annotated[str, "The reason as a sentence"]]


AnyReasonView = Annotated[ReasonView, OPEN]


@frozen
class Reason:
    """Why something is as it is."""

    code: str
    data: Mapping[str, Any] = field(factory=dict)
    at: datetime = field(factory=lambda: datetime.now(UTC), eq=False)
    """The moment that relative times in the sentence count from."""

    @property
    def words(self) -> str:
        return sentence(self.code, self.data, now=self.at)

    def as_data(self) -> ReasonView:
        """Return the reason as JSON members: `code`, `words` and the data."""
        return cast(ReasonView, {"code": self.code, "words": self.words, **self.data})
