"""Templates: rendering of `with` values, and every configuration error."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.formats import strict_json
from ductile.pipeline.language.paths import Path, PathAbsent, Scope
from ductile.pipeline.language.templates import (
    Fixed,
    Items,
    Members,
    Reference,
    TemplateInvalid,
    Text,
    parse_template,
    parse_with,
    paths_of,
    remap,
    render,
)
from tests.pipeline.cases import check_all

ROOTS = frozenset({"payload", "context", "item"})
TWICE = "write a literal brace twice"
BIG = {"rows": [{"n": 1}]}
SCOPE = Scope(
    payload={
        "text": "hello",
        "empty": "",
        "int": 3,
        "negative": -7,
        "zero": 0,
        "float": 2.5,
        "whole_float": 3.0,
        "large": 10**20,
        "million": 1e6,
        "tiny": 1e-7,
        "yes": True,
        "no": False,
        "null": None,
        "list": [1, "a", None, {"b": True}],
        "empty_list": [],
        "object": {"b": 1, "a": [2, "é"]},
        "empty_object": {},
        "unicode": "größe 🙂",
        "quotes": 'say "hi"\n',
        "braces": "{payload.text} {{x}}",
        "content-type": "text/html",
        "deep": {"er": {"est": "bottom"}},
        "big": BIG,
    },
    context={"web": {"url": "https://example.org"}, "count": 2},
    item={"id": 7, "name": "seven"},
)


def rendered(raw: Any, scope: Scope = SCOPE) -> Any:
    return render(parse_template(raw, roots=ROOTS), scope)


SINGLE_REFERENCES: list[tuple[Any, ...]] = [
    ("{payload.text}", "hello"),
    ("{payload.empty}", ""),
    ("{payload.int}", 3),
    ("{payload.zero}", 0),
    ("{payload.float}", 2.5),
    ("{payload.whole_float}", 3.0),
    ("{payload.large}", 10**20),
    ("{payload.yes}", True),
    ("{payload.no}", False),
    ("{payload.null}", None),
    ("{payload.list}", [1, "a", None, {"b": True}]),
    ("{payload.empty_list}", []),
    ("{payload.object}", {"b": 1, "a": [2, "é"]}),
    ("{payload.empty_object}", {}),
    ("{payload.deep.er.est}", "bottom"),
    ("{payload.content-type}", "text/html"),
    ("{payload.braces}", "{payload.text} {{x}}"),
    ("{context.web.url}", "https://example.org"),
    ("{context.count}", 2),
    ("{context}", {"web": {"url": "https://example.org"}, "count": 2}),
    ("{item.id}", 7),
    ("{item}", {"id": 7, "name": "seven"}),
]


def test_a_single_reference_keeps_the_type_of_its_value() -> None:
    """Braces inside the value are not interpreted."""

    def check(raw: str, value: Any) -> None:
        result = rendered(raw)
        assert (type(result), result) == (type(value), value)

    check_all(SINGLE_REFERENCES, check)


def test_a_single_reference_does_not_copy_its_value() -> None:
    """Large values are shared."""
    assert rendered("{payload.big}") is BIG
    assert rendered("{payload}") is SCOPE.payload


MIXED_TEXT: list[tuple[Any, ...]] = [
    ("Build: {payload.text}", "Build: hello"),
    ("{payload.text}!", "hello!"),
    (" {payload.text}", " hello"),
    ("{payload.text} ", "hello "),
    ("{payload.int}\n", "3\n"),
    ("<{payload.empty}>", "<>"),
    ("n={payload.int}", "n=3"),
    ("n={payload.negative}", "n=-7"),
    ("n={payload.zero}", "n=0"),
    ("n={payload.float}", "n=2.5"),
    ("n={payload.whole_float}", "n=3.0"),
    ("n={payload.large}", "n=100000000000000000000"),
    ("n={payload.million}", "n=1000000.0"),
    ("n={payload.tiny}", "n=1e-07"),
    ("ok={payload.yes}", "ok=true"),
    ("ok={payload.no}", "ok=false"),
    ("<{payload.null}>", "<>"),
    ("l={payload.list}", 'l=[1,"a",null,{"b":true}]'),
    ("l={payload.empty_list}", "l=[]"),
    ("o={payload.object}", 'o={"b":1,"a":[2,"é"]}'),
    ("o={payload.empty_object}", "o={}"),
    ("{payload.unicode}?", "größe 🙂?"),
    ("{payload.quotes}.", 'say "hi"\n.'),
    ("{payload.braces}.", "{payload.text} {{x}}."),
    ("{payload.int}{payload.int}", "33"),
    ("{payload.null}{payload.null}", ""),
    ("{payload.text}, {context.count} of {item.id}", "hello, 2 of 7"),
    ("i={item}", 'i={"id":7,"name":"seven"}'),
    ("c={context}", 'c={"web":{"url":"https://example.org"},"count":2}'),
    ("größe={payload.text}", "größe=hello"),
]


def test_a_reference_inside_text_is_formatted_as_text() -> None:
    """Strings as they are, null as empty, everything else as compact JSON."""

    def check(raw: str, value: str) -> None:
        assert rendered(raw) == value

    check_all(MIXED_TEXT, check)


DOUBLED_BRACES: list[tuple[Any, ...]] = [
    ("", ""),
    ("plain", "plain"),
    ("{{", "{"),
    ("}}", "}"),
    ("{{}}", "{}"),
    ("{{{{", "{{"),
    ("}}}}", "}}"),
    ("{{payload.text}}", "{payload.text}"),
    ("{{{payload.text}}}", "{hello}"),
    ("{{{{payload.text}}}}", "{{payload.text}}"),
    ("{{{payload.int}}}", "{3}"),
    ("{payload.text}}}", "hello}"),
    ("{{{payload.text}", "{hello"),
    ("{payload.text}{{", "hello{"),
    ('{{"text": "{payload.text}", "n": {payload.int}}}', '{"text": "hello", "n": 3}'),
    ("100 % $x \\n <b>", "100 % $x \\n <b>"),
    ("payload.text", "payload.text"),
    ("[payload.text]", "[payload.text]"),
]


def test_a_doubled_brace_is_a_literal_brace() -> None:
    """Scanned from the left. No other character is special."""

    def check(raw: str, value: str) -> None:
        assert rendered(raw) == value

    check_all(DOUBLED_BRACES, check)


NESTED_TEMPLATES: list[tuple[Any, ...]] = [
    (None, None),
    (True, True),
    (0, 0),
    (1.5, 1.5),
    ([], []),
    ({}, {}),
    ([1, None, False], [1, None, False]),
    ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
    ({"a": "{{x}}"}, {"a": "{x}"}),
    (["{payload.int}", "n={payload.int}"], [3, "n=3"]),
    ({"a": "{payload.list}"}, {"a": [1, "a", None, {"b": True}]}),
    ({"a": {"b": ["{item.id}", {"c": "{context.count}"}]}}, {"a": {"b": [7, {"c": 2}]}}),
    ({"{payload.text}": "{payload.int}"}, {"{payload.text}": 3}),
    ({"{": 1}, {"{": 1}),
    ([[["{payload.null}"]]], [[[None]]]),
    ({"a": 1, "b": "{payload.yes}", "c": None}, {"a": 1, "b": True, "c": None}),
]


def test_strings_inside_objects_and_lists_are_templates() -> None:
    """At any depth. Keys are literal."""

    def check(raw: Any, value: Any) -> None:
        assert strict_json.dumps(rendered(raw)) == strict_json.dumps(value)

    check_all(NESTED_TEMPLATES, check)


@pytest.mark.parametrize(
    ("item", "value"),
    [("a", "a"), (3, 3), (None, None), (["x"], ["x"]), ({"k": 1}, {"k": 1}), (False, False)],
)
def test_an_item_of_any_type_can_be_referenced(item: Any, value: Any) -> None:
    """Lists of plain values are common."""
    assert rendered("{item}", Scope({}, {}, item=item)) == value


PARSED_TEMPLATES: list[tuple[Any, ...]] = [
    ("words", Fixed("words")),
    ("{{words}}", Fixed("{words}")),
    ({"a": ["b", 1]}, Fixed({"a": ["b", 1]})),
    ("{payload.x}", Reference(Path("payload", ("x",)))),
    ("a{{{payload.x}", Text(("a{", Path("payload", ("x",))))),
    (["{item}", "a"], Items((Reference(Path("item")), Fixed("a")))),
    ({"a": {"b": 1}, "c": "{item}"}, Members((("a", Fixed({"b": 1})), ("c", Reference(Path("item")))))),
]


def test_parts_without_references_are_constants() -> None:
    """Rendering only computes the parts that depend on the run."""

    def check(raw: Any, template: Any) -> None:
        assert parse_template(raw, roots=ROOTS) == template

    check_all(PARSED_TEMPLATES, check)


INVALID_TEMPLATES: list[tuple[Any, ...]] = [
    ("{", f"the brace at character 1 is not closed; {TWICE}"),
    ("}", f"the brace at character 1 has no opening brace; {TWICE}"),
    ("{}", f"the brace at character 1 is followed by no path; {TWICE}"),
    ("hi {payload.text", f"the brace at character 4 is not closed; {TWICE}"),
    ("payload.text}", f"the brace at character 13 has no opening brace; {TWICE}"),
    ("{payload.text}}", f"the brace at character 15 has no opening brace; {TWICE}"),
    ("{{payload.text}", f"the brace at character 15 has no opening brace; {TWICE}"),
    ("{{{", f"the brace at character 3 is not closed; {TWICE}"),
    ("}}}", f"the brace at character 3 has no opening brace; {TWICE}"),
    ("{payload.{payload.x}}", f"the brace at character 1 is not closed; {TWICE}"),
    ('{"a": {"b": 1}}', f"the brace at character 1 is not closed; {TWICE}"),
    ('{"a": 1}', f"""'"a": 1' is not a path: names cannot contain '"'; {TWICE}"""),
    ("{text}", "'text' is not a path: it must start with payload, context or item (did you mean 'payload.text'?); "
     f"{TWICE}"),
    ("{payloads.x}", "'payloads.x' is not a path: it must start with payload, context or item (did you mean "
     f"'payload'?); {TWICE}"),
    ("{env.HOME}", f"'env.HOME' is not a path: it must start with payload, context or item; {TWICE}"),
    ("{config.x}", f"'config.x' is not available here: `config` is available only in the `if` of a step; {TWICE}"),
    ("{ payload.x }", f"' payload.x ' is not a path: names cannot contain whitespace; {TWICE}"),
    ("{payload.x | upper}", f"'payload.x | upper' is not a path: names cannot contain whitespace; {TWICE}"),
    ("{payload.items[0]}", "'payload.items[0]' is not a path: lists cannot be indexed; use `foreach`, or select "
     f"the element in the plugin; {TWICE}"),
    ("{payload.}", f"'payload.' is not a path: a name is missing next to a dot; {TWICE}"),
    ("{.x}", f"'.x' is not a path: a name is missing next to a dot; {TWICE}"),
    ("{\n}", rf"'\n' is not a path: names cannot contain whitespace; {TWICE}"),
]  # fmt: skip


def test_invalid_templates_are_rejected_with_a_message() -> None:
    """The message explains literal braces."""

    def check(raw: str, message: str) -> None:
        with pytest.raises(TemplateInvalid) as error:
            parse_template(raw, roots=ROOTS)
        assert [(complaint.path, complaint.message) for complaint in error.value.complaints] == [("", message)]

    check_all(INVALID_TEMPLATES, check)


def test_an_item_outside_of_foreach_is_rejected() -> None:
    """The caller passes the available roots."""
    with pytest.raises(TemplateInvalid, match=r"^'item\.x' is not available here: `item` exists only inside a step"):
        parse_template("{item.x}", roots=frozenset({"payload", "context"}))


def test_all_errors_in_a_with_are_reported_together() -> None:
    """Each with its path."""
    raw = {"a": "{", "b": {"c": ["fine", "{x}", {"d": "}"}]}, "e": "{payload.x}", "f": ["{}"]}
    with pytest.raises(TemplateInvalid) as error:
        parse_with(raw, roots=ROOTS)
    assert [complaint.path for complaint in error.value.complaints] == ["a", "b.c[1]", "b.c[2].d", "f[0]"]


@pytest.mark.parametrize(
    ("raw", "kind"), [(None, "null"), ("x", "text"), (["x"], "a list"), (3, "a number"), (True, "true or false")]
)
def test_a_with_that_is_not_a_mapping_is_rejected(raw: Any, kind: str) -> None:
    """The message names the actual type."""
    with pytest.raises(TemplateInvalid, match=f"^expected a mapping of payload key to value, got {kind}$"):
        parse_with(raw, roots=ROOTS)


ABSENT_REFERENCES: list[tuple[Any, ...]] = [
    ("{payload.txet}", "payload.txet is absent: payload has no 'txet' (did you mean 'text'?)"),
    ("a {payload.unheard_of} b", "payload.unheard_of is absent: payload has no 'unheard_of'"),
    (
        "{payload.deep.er.est.more}",
        "payload.deep.er.est.more is absent: payload.deep.er.est is text, not an object",
    ),
    ("{payload.list.0}", "payload.list.0 is absent: payload.list is a list, not an object"),
    ("{payload.null.x}", "payload.null.x is absent: payload.null is null, not an object"),
    ("{context.text}", "context.text is absent: context has no 'text'"),
    ("{item.url}", "item.url is absent: item has no 'url'"),
    ([{"a": "{payload.unheard_of}"}], "payload.unheard_of is absent: payload has no 'unheard_of'"),
]


def test_a_reference_to_an_absent_value_fails_with_the_path() -> None:
    """There is no default value."""

    def check(raw: Any, message: str) -> None:
        with pytest.raises(PathAbsent) as absent:
            rendered(raw)
        assert str(absent.value) == message
        assert message.startswith(f"{absent.value.path} is absent")

    check_all(ABSENT_REFERENCES, check)


def test_rendering_an_absent_item_fails() -> None:
    """The message mentions `foreach`."""
    with pytest.raises(PathAbsent, match=r"^item is absent: `item` exists only inside a step with `foreach`$"):
        rendered("{item}", Scope({}, {}))


def test_a_with_adds_and_replaces_top_level_keys() -> None:
    """Other keys stay, and the input is not modified."""
    payload = {"keep": 1, "replace": {"a": 1}}
    templates = parse_with({"replace": "{payload.keep}", "new": {"x": "{context.c}"}, "a.b": None}, roots=ROOTS)
    result = remap(templates, payload, Scope(payload, {"c": 5}))
    assert result == {"keep": 1, "replace": 1, "new": {"x": 5}, "a.b": None}
    assert payload == {"keep": 1, "replace": {"a": 1}}


def test_the_entries_of_a_with_do_not_see_each_other() -> None:
    """Two keys can swap their values."""
    payload = {"a": 1, "b": 2}
    templates = parse_with({"a": "{payload.b}", "b": "{payload.a}", "c": "{payload}"}, roots=ROOTS)
    assert remap(templates, payload, Scope(payload, {})) == {"a": 2, "b": 1, "c": {"a": 1, "b": 2}}


def test_a_with_that_reads_an_absent_value_names_its_key() -> None:
    """The message has the key and the path."""
    with pytest.raises(PathAbsent) as absent:
        remap(parse_with({"message": "{payload.txt}"}, roots=ROOTS), {}, Scope({"text": 1}, {}))
    assert str(absent.value) == "with 'message': payload.txt is absent: payload has no 'txt' (did you mean 'text'?)"
    assert absent.value.path == Path("payload", ("txt",))


def test_an_empty_with_returns_an_equal_payload() -> None:
    """Nothing is added or removed."""
    payload = {"a": 1}
    assert remap(parse_with({}, roots=ROOTS), payload, Scope(payload, {})) == payload


def test_the_paths_of_a_template_are_in_textual_order() -> None:
    """For the checks against plugin manifests."""
    raw = {"a": ["{payload.x} and {context.y}", 1, "no"], "b": {"c": "{item}", "d": "{payload}"}, "e": "{{payload.z}}"}
    found = paths_of(parse_template(raw, roots=ROOTS))
    assert [str(path) for path in found] == ["payload.x", "context.y", "item", "payload"]


@given(st.text(st.sampled_from("ab {}.é\n")))
def test_doubling_braces_escapes_any_text(text: str) -> None:
    """For random text."""
    assert rendered(text.replace("{", "{{").replace("}", "}}")) == text


def written(part: str | None) -> str:
    return "{payload.text}" if part is None else part.replace("{", "{{").replace("}", "}}")


@given(st.lists(st.none() | st.text(st.sampled_from("ab{} "), min_size=1), min_size=2))
def test_literal_text_and_references_can_alternate_in_any_order(parts: list[str | None]) -> None:
    """Also with braces next to references."""
    template = parse_template("".join(map(written, parts)), roots=ROOTS)
    assert render(template, SCOPE) == "".join("hello" if part is None else part for part in parts)
    assert len(paths_of(template)) == parts.count(None)


@given(st.lists(st.sampled_from(["{", "}", "{{", "}}", "payload", ".", "text", " ", "{payload.text}"])))
def test_any_text_is_either_parsed_or_rejected(parts: list[str]) -> None:
    """A rejection explains literal braces."""
    template, complaint = None, ""
    try:
        template = parse_template("".join(parts), roots=ROOTS)
    except TemplateInvalid as error:
        complaint = str(error)
    assert complaint.endswith(TWICE) if template is None else {path.root for path in paths_of(template)} <= {"payload"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_every_value_renders_as_itself_or_as_its_json_text(value: Any) -> None:
    """Alone as itself; inside text as JSON, except for strings and null."""
    scope = Scope({"x": value}, {})
    assert rendered("{payload.x}", scope) is value
    text = rendered("<{payload.x}>", scope)[1:-1]
    assert text == (value or "") if isinstance(value, str | None) else strict_json.loads(text) == value
