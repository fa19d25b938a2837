"""The JSON examples in docs/api.md match a schema of the OpenAPI description."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.docs.instance import run_page

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FETCH_OPENAPI = "<!-- run -->\n```sh\nductile api /openapi.json > openapi.json\n```\n"
UNKNOWN_MEMBER = {"no such member": 1}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("api")
    run_page(FETCH_OPENAPI, directory)
    return json.loads((directory / "openapi.json").read_text())


def schemas(description: Any) -> Iterator[Any]:
    """Yield the schemas of all request and response bodies, including errors."""
    for item in description["paths"].values():
        for operation in item.values():
            for part in (operation.get("requestBody", {}), *operation["responses"].values()):
                yield from (media["schema"] for media in part.get("content", {}).values() if "schema" in media)


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_matches_a_schema(text: str, description: Any) -> None:
    """It has all required members and no unknown ones."""
    example = json.loads(text)
    known = [
        Draft202012Validator({**schema, "components": description["components"]}) for schema in schemas(description)
    ]
    strict = [validator for validator in known if not validator.is_valid(UNKNOWN_MEMBER)]

    assert any(validator.is_valid(example) for validator in strict), text


def test_the_page_has_enough_examples() -> None:
    """At least one for each kind of response."""
    assert len(EXAMPLES) >= 12
