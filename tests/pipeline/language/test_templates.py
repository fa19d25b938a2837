"""Templates: what `with` makes of the values of a run, and every mistake an author can make."""

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

ROOTS = frozenset({"payload", "context", "item"})
TWICE = "a brace that is meant as text is written twice"
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


@pytest.mark.parametrize(
    ("raw", "value"),
    [
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
    ],
)
def test_a_reference_alone_keeps_the_type_of_its_value(raw: str, value: Any) -> None:
    """Numbers stay numbers, null stays null, and braces in a value mean nothing."""
    result = rendered(raw)
    assert (type(result), result) == (type(value), value)


def test_a_reference_alone_is_the_value_and_no_copy() -> None:
    """A big value costs nothing."""
    assert rendered("{payload.big}") is BIG
    assert rendered("{payload}") is SCOPE.payload


@pytest.mark.parametrize(
    ("raw", "value"),
    [
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
    ],
)
def test_among_words_a_reference_becomes_text(raw: str, value: str) -> None:
    """Text as it is, null as nothing, everything else as compact JSON; always text."""
    assert rendered(raw) == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
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
    ],
)
def test_a_doubled_brace_is_a_brace(raw: str, value: str) -> None:
    """Read from the left; nothing else in a text has a meaning of its own."""
    assert rendered(raw) == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
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
    ],
)
def test_texts_inside_objects_and_lists_are_templates_too(raw: Any, value: Any) -> None:
    """At any depth; names of members are as they are written."""
    assert strict_json.dumps(rendered(raw)) == strict_json.dumps(value)


@pytest.mark.parametrize(
    ("item", "value"),
    [("a", "a"), (3, 3), (None, None), (["x"], ["x"]), ({"k": 1}, {"k": 1}), (False, False)],
)
def test_an_item_of_any_kind_can_be_referred_to(item: Any, value: Any) -> None:
    """A list of plain texts is the most common list."""
    assert rendered("{item}", Scope({}, {}, item=item)) == value


@pytest.mark.parametrize(
    ("raw", "template"),
    [
        ("words", Fixed("words")),
        ("{{words}}", Fixed("{words}")),
        ({"a": ["b", 1]}, Fixed({"a": ["b", 1]})),
        ("{payload.x}", Reference(Path("payload", ("x",)))),
        ("a{{{payload.x}", Text(("a{", Path("payload", ("x",))))),
        (["{item}", "a"], Items((Reference(Path("item")), Fixed("a")))),
        ({"a": {"b": 1}, "c": "{item}"}, Members((("a", Fixed({"b": 1})), ("c", Reference(Path("item")))))),
    ],
)
def test_what_refers_to_nothing_is_settled_at_load(raw: Any, template: Any) -> None:
    """Rendering costs only what depends on the run."""
    assert parse_template(raw, roots=ROOTS) == template


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("{", f"the brace at character 1 is never closed; {TWICE}"),
        ("}", f"the brace at character 1 closes nothing; {TWICE}"),
        ("{}", f"the brace at character 1 has no path in it; {TWICE}"),
        ("hi {payload.text", f"the brace at character 4 is never closed; {TWICE}"),
        ("payload.text}", f"the brace at character 13 closes nothing; {TWICE}"),
        ("{payload.text}}", f"the brace at character 15 closes nothing; {TWICE}"),
        ("{{payload.text}", f"the brace at character 15 closes nothing; {TWICE}"),
        ("{{{", f"the brace at character 3 is never closed; {TWICE}"),
        ("}}}", f"the brace at character 3 closes nothing; {TWICE}"),
        ("{payload.{payload.x}}", f"the brace at character 1 is never closed; {TWICE}"),
        ('{"a": {"b": 1}}', f"the brace at character 1 is never closed; {TWICE}"),
        ('{"a": 1}', f"""'"a": 1' is not a path: '"' cannot be part of a name; {TWICE}"""),
        ("{text}", "'text' is not a path: it must begin with payload, context or item (did you mean 'payload.text'?); "
         f"{TWICE}"),
        ("{payloads.x}", "'payloads.x' is not a path: it must begin with payload, context or item (did you mean "
         f"'payload'?); {TWICE}"),
        ("{env.HOME}", f"'env.HOME' is not a path: it must begin with payload, context or item; {TWICE}"),
        ("{config.x}", f"'config.x' cannot be read here: `config` can be read only in the `if` of a step; {TWICE}"),
        ("{ payload.x }", f"' payload.x ' is not a path: a blank cannot be part of a name; {TWICE}"),
        ("{payload.x | upper}", f"'payload.x | upper' is not a path: a blank cannot be part of a name; {TWICE}"),
        ("{payload.items[0]}", "'payload.items[0]' is not a path: lists cannot be indexed; use `foreach`, or let the "
         f"plugin choose; {TWICE}"),
        ("{payload.}", f"'payload.' is not a path: a name is missing beside a dot; {TWICE}"),
        ("{.x}", f"'.x' is not a path: a name is missing beside a dot; {TWICE}"),
        ("{\n}", rf"'\n' is not a path: a blank cannot be part of a name; {TWICE}"),
    ],
)  # fmt: skip
def test_a_malformed_text_is_refused_at_load(raw: str, message: str) -> None:
    """With what is wrong and how a literal brace is written."""
    with pytest.raises(TemplateInvalid) as refused:
        parse_template(raw, roots=ROOTS)
    assert [(complaint.path, complaint.message) for complaint in refused.value.complaints] == [("", message)]


def test_outside_of_foreach_an_item_is_refused_at_load() -> None:
    """The roots that are in reach are the caller's to say."""
    with pytest.raises(TemplateInvalid, match=r"^'item\.x' cannot be read here: `item` exists only inside a step"):
        parse_template("{item.x}", roots=frozenset({"payload", "context"}))


def test_every_mistake_in_a_with_is_told_at_once_with_its_place() -> None:
    """One round of repairs, not four."""
    raw = {"a": "{", "b": {"c": ["fine", "{x}", {"d": "}"}]}, "e": "{payload.x}", "f": ["{}"]}
    with pytest.raises(TemplateInvalid) as refused:
        parse_with(raw, roots=ROOTS)
    assert [complaint.path for complaint in refused.value.complaints] == ["a", "b.c[1]", "b.c[2].d", "f[0]"]


@pytest.mark.parametrize(
    ("raw", "kind"), [(None, "null"), ("x", "text"), (["x"], "a list"), (3, "a number"), (True, "true or false")]
)
def test_a_with_that_is_no_mapping_is_refused(raw: Any, kind: str) -> None:
    """It names payload keys, so it needs names."""
    with pytest.raises(TemplateInvalid, match=f"^expected payload keys with their values, got {kind}$"):
        parse_with(raw, roots=ROOTS)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
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
    ],
)
def test_a_reference_to_nothing_fails_with_the_path(raw: Any, message: str) -> None:
    """Neither null nor an empty text is made up for it."""
    with pytest.raises(PathAbsent) as absent:
        rendered(raw)
    assert str(absent.value) == message
    assert message.startswith(f"{absent.value.path} is absent")


def test_an_item_that_is_not_there_fails() -> None:
    """A template that was read for a foreach cannot be rendered outside of it."""
    with pytest.raises(PathAbsent, match=r"^item is absent: `item` exists only inside a step with `foreach`$"):
        rendered("{item}", Scope({}, {}))


def test_a_with_adds_and_replaces_top_level_keys() -> None:
    """The rest of the payload stays, and what was given is not changed."""
    payload = {"keep": 1, "replace": {"a": 1}}
    templates = parse_with({"replace": "{payload.keep}", "new": {"x": "{context.c}"}, "a.b": None}, roots=ROOTS)
    result = remap(templates, payload, Scope(payload, {"c": 5}))
    assert result == {"keep": 1, "replace": 1, "new": {"x": 5}, "a.b": None}
    assert payload == {"keep": 1, "replace": {"a": 1}}


def test_the_entries_of_a_with_read_one_snapshot() -> None:
    """Two keys can change places: no entry sees what another made."""
    payload = {"a": 1, "b": 2}
    templates = parse_with({"a": "{payload.b}", "b": "{payload.a}", "c": "{payload}"}, roots=ROOTS)
    assert remap(templates, payload, Scope(payload, {})) == {"a": 2, "b": 1, "c": {"a": 1, "b": 2}}


def test_a_with_that_refers_to_nothing_fails_with_its_key() -> None:
    """The operator sees which entry to repair."""
    with pytest.raises(PathAbsent) as absent:
        remap(parse_with({"message": "{payload.txt}"}, roots=ROOTS), {}, Scope({"text": 1}, {}))
    assert str(absent.value) == "with 'message': payload.txt is absent: payload has no 'txt' (did you mean 'text'?)"
    assert absent.value.path == Path("payload", ("txt",))


def test_an_empty_with_leaves_the_payload_as_it_is() -> None:
    """But is a payload of its own."""
    payload = {"a": 1}
    assert remap(parse_with({}, roots=ROOTS), payload, Scope(payload, {})) == payload


def test_the_paths_of_a_template_are_told_in_the_order_of_the_text() -> None:
    """For those who check them against what plugins emit."""
    raw = {"a": ["{payload.x} and {context.y}", 1, "no"], "b": {"c": "{item}", "d": "{payload}"}, "e": "{{payload.z}}"}
    found = paths_of(parse_template(raw, roots=ROOTS))
    assert [str(path) for path in found] == ["payload.x", "context.y", "item", "payload"]


@given(st.text(st.sampled_from("ab {}.é\n")))
def test_any_text_can_be_written_as_a_template(text: str) -> None:
    """Doubling its braces is enough."""
    assert rendered(text.replace("{", "{{").replace("}", "}}")) == text


def written(part: str | None) -> str:
    return "{payload.text}" if part is None else part.replace("{", "{{").replace("}", "}}")


@given(st.lists(st.none() | st.text(st.sampled_from("ab{} "), min_size=1), min_size=2))
def test_words_and_references_follow_each_other_in_any_order(parts: list[str | None]) -> None:
    """Wherever a brace stands beside a reference, each is what it was meant to be."""
    template = parse_template("".join(map(written, parts)), roots=ROOTS)
    assert render(template, SCOPE) == "".join("hello" if part is None else part for part in parts)
    assert len(paths_of(template)) == parts.count(None)


@given(st.lists(st.sampled_from(["{", "}", "{{", "}}", "payload", ".", "text", " ", "{payload.text}"])))
def test_whatever_is_written_as_a_template_is_read_or_refused(parts: list[str]) -> None:
    """Nothing an author writes gives anything but a template or a complaint that says how braces are written."""
    template, complaint = None, ""
    try:
        template = parse_template("".join(parts), roots=ROOTS)
    except TemplateInvalid as refused:
        complaint = str(refused)
    assert complaint.endswith(TWICE) if template is None else {path.root for path in paths_of(template)} <= {"payload"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_every_value_renders_alone_as_itself_and_among_words_as_text(value: Any) -> None:
    """What is among words can be read back as JSON, unless it was text or null already."""
    scope = Scope({"x": value}, {})
    assert rendered("{payload.x}", scope) is value
    text = rendered("<{payload.x}>", scope)[1:-1]
    assert text == (value or "") if isinstance(value, str | None) else strict_json.loads(text) == value
