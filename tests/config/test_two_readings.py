"""A configuration is read by us and, once something is wrong, by cattrs: both say the same of every text."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ductile import strict_yaml
from ductile.config import scaffold, structure
from ductile.config.complaints import structure_or_complain
from ductile.config.hooks import yaml_names
from ductile.config.interpolate import interpolate
from ductile.config.sections import Settings
from ductile.errors import ConfigInvalid
from ductile.secret import Secret
from ductile.strict_yaml import Node
from ductile.vocabulary import Section
from tests.config.conftest import spelled
from tests.config.test_hostile import ANYTHING, trees
from tests.config.test_schema import ACCEPTED, ENVIRONMENT, REFUSED
from tests.config.test_structure import BAD_VALUES, RELAY
from tests.pipeline.random_pipelines import some_pipelines

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    block
    for page in sorted(DOCS.glob("*.md"))
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if re.match("(?:#.*\n)*([a-z_]+):", block) and block.partition(":")[0].split()[-1] in yaml_names(Settings).values()
]
SCAFFOLDS = [
    content.decode()
    for demo in (False, True)
    for name, content in scaffold.plan(demo=demo).files.items()
    if name.endswith(".yaml")
]
SOUND = [RELAY, *ACCEPTED, *BLOCKS, *SCAFFOLDS]
WRONG = [*REFUSED, *(spelled(path, value) for path, value, _ in BAD_VALUES)]
BOUNDED = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def node_of(written: Any) -> Node:
    """The document, with what `${NAME}` stands for in it."""
    text = written if isinstance(written, str) else strict_yaml.dump(written)
    return interpolate(strict_yaml.load(text.encode(), source="c"), ENVIRONMENT).root


def typed(value: Any) -> Any:
    """All that a value consists of: True is not 1, and a secret has something in it."""
    match value:
        case Section():
            return type(value), [(name, typed(getattr(value, name))) for name in yaml_names(type(value))]
        case dict():
            return [(name, typed(member)) for name, member in value.items()]
        case tuple() | list():
            return type(value), [typed(member) for member in value]
        case Secret():
            return Secret, value.reveal()
    return type(value), value


def our_reading(root: Node) -> Any:
    """The settings as plain facts; None if we refuse."""
    try:
        return typed(structure.read(root, Settings))
    except Exception:
        return None


def their_reading(root: Node) -> Any:
    try:
        return typed(structure_or_complain(root))
    except ConfigInvalid:
        return None


@pytest.mark.parametrize("text", SOUND)
def test_a_sound_text_is_read_without_help_and_means_the_same(text: str) -> None:
    """So nobody pays for complaints who gives no reason for them."""
    root = node_of(text)
    assert our_reading(root) is not None
    assert our_reading(root) == their_reading(root)


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_refused_by_both(text: str) -> None:
    """The cheap way is as strict as the thorough one."""
    root = node_of(text)
    assert our_reading(root) is None
    assert their_reading(root) is None


def test_there_are_texts_of_every_section() -> None:
    """From the documentation, from `config init`, and from the tests of the schema."""
    said = {name for text in SOUND for name in strict_yaml.load(text.encode(), source="c").data() or {}}
    assert said == set(yaml_names(Settings).values())
    assert len(BLOCKS) > 15


# ── small changes to sound texts ────────────────────────────────────────────────────────────────────────────────────

DATA = [data for text in SOUND if isinstance(data := strict_yaml.load(text.encode(), source="c").data(), dict) and data]


def containers(data: Any) -> Iterator[dict[str, Any] | list[Any]]:
    """Every mapping and list in the data, itself included."""
    if isinstance(data, dict | list):
        yield data
        for member in data.values() if isinstance(data, dict) else data:
            yield from containers(member)


@st.composite
def changed(draw: st.DrawFn, sound: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """Sound data in which some members are other than they should be, gone, empty, alone, in a list, or unknown."""
    data: dict[str, Any] = strict_yaml.load(strict_yaml.dump(draw(sound)).encode(), source="c").data()
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from(list(containers(data))))
        members: Any = list(place) if isinstance(place, dict) else range(len(place))
        if not members:
            continue
        at: Any = draw(st.sampled_from(members))
        match draw(st.sampled_from(["other", "gone", "empty", "alone", "listed", "unknown", "text"])):
            case "other":
                place[at] = draw(ANYTHING)
            case "gone":
                del place[at]
            case "empty":
                place[at] = draw(st.sampled_from([None, {}, [], "", 0, False]))
            case "alone" if isinstance(place[at], list) and place[at]:
                place[at] = place[at][0]
            case "listed":
                place[at] = [place[at]]
            case "unknown" if isinstance(place, dict):
                place[draw(st.sampled_from(["name", "enabled", "with_", "on_hook", "nobody-knows", "__class__"]))] = 1
            case "text" if not isinstance(place[at], dict | list):
                place[at] = str(place[at])
    return data


@BOUNDED
@given(data=changed(st.sampled_from(DATA)))
def test_a_text_with_a_few_changes_is_the_same_to_both(data: dict[str, Any]) -> None:
    """Wrong types, unknown keys, missing keys, nothing, lone members."""
    root = node_of(data)
    assert our_reading(root) == their_reading(root)


@BOUNDED
@given(data=changed(some_pipelines().map(lambda listed: {"pipelines": listed})))
def test_pipelines_with_a_few_changes_are_the_same_to_both(data: dict[str, Any]) -> None:
    """Steps inside steps, too."""
    root = node_of(data)
    assert our_reading(root) == their_reading(root)


@BOUNDED
@given(data=st.deferred(lambda: trees(Settings)))
def test_real_keys_with_any_values_are_the_same_to_both(data: Any) -> None:
    """Also where the text is no mapping at all."""
    root = node_of({"": data} if isinstance(data, str) else data)
    assert our_reading(root) == their_reading(root)


def sections_within(kind: Any) -> set[type]:
    """The classes for YAML that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return {kind}
    return {found for inner in get_args(kind) for found in sections_within(inner)}


def test_every_kind_of_value_in_a_section_can_be_read() -> None:
    """A new kind of value without a hook would send every configuration that uses it to the complaints."""
    seen: set[type] = set()
    waiting: set[type] = {Settings}
    while waiting := waiting - seen:
        seen |= waiting
        kinds = [field.type for section in waiting for field in attrs.fields(section)]
        assert all(callable(structure.hook_of(kind)) for kind in kinds)
        waiting = {found for kind in kinds for found in sections_within(kind)}
    assert len(seen) > 20
