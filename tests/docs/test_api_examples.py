"""The JSON that docs/api.md shows is JSON that the API takes or gives, by its own description."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.docs.instance import follow

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SHOWN = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
ASK = "<!-- run -->\n```sh\nductile api /openapi.json > openapi.json\n```\n"
NONSENSE = {"no such member": 1}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("api")
    follow(ASK, directory)
    return json.loads((directory / "openapi.json").read_text())


def schemas(description: Any) -> Iterator[Any]:
    """Of every body that is taken and every answer that is given, refusals included."""
    for item in description["paths"].values():
        for operation in item.values():
            for part in (operation.get("requestBody", {}), *operation["responses"].values()):
                yield from (media["schema"] for media in part.get("content", {}).values() if "schema" in media)


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_shown_fits_the_description(text: str, description: Any) -> None:
    """No member that the API does not have, none missing that it always has."""
    shown = json.loads(text)
    known = [
        Draft202012Validator({**schema, "components": description["components"]}) for schema in schemas(description)
    ]
    strict = [validator for validator in known if not validator.is_valid(NONSENSE)]

    assert any(validator.is_valid(shown) for validator in strict), text


def test_there_is_something_to_compare() -> None:
    """One for each kind of answer that is hard to imagine."""
    assert len(SHOWN) >= 12
