"""Translate errors of the YAML parser into messages that say what to change, at the position to change.

Knows the messages of libyaml; unknown ones are passed through. Imported by `strict_yaml` only after an error.
"""

from typing import Any

import yaml

from ductile.core.errors import Mark, Unreadable

NO_DIRECTIVES = "'%' begins a directive, and directives are not supported; remove the line"
_NO_TAGS = "'!' begins a tag, and tags are not supported; put quotes around text that begins with it"
_NO_TABS = "a tab cannot indent; use spaces"
_CHECK = "check the indentation, and the quotes before this place"

_AT_PROBLEM = {
    "mapping values are not allowed in this context": (
        "unexpected ':'; check the indentation, and put quotes around a value that contains ': '"
    ),
    "found unexpected ':'": "unexpected ':'; inside [ ] and { } put a space after it, or quotes around the text",
    "mapping keys are not allowed in this context": "unexpected '?'; put quotes around text that begins with '? '",
    "block sequence entries are not allowed in this context": (
        "unexpected '- '; begin a list on a line of its own, and put quotes around text that begins with '- '"
    ),
    "did not find expected key": f"expected a key here; {_CHECK}",
    "did not find expected '-' indicator": (
        "expected '- ' here, as in the list that begins on line LINE; check the indentation"
    ),
    "did not find expected ',' or ']'": "expected ',' or ']' here, in the list that begins on line LINE",
    "did not find expected ',' or '}'": "expected ',' or '}' here, in the mapping that begins on line LINE",
    "did not find expected node content": "expected a value here",
    "did not find expected <document start>": f"expected nothing more here; {_CHECK}",
    "did not find expected comment or line break": (
        "expected the end of the line here; the text of a block begins on the next line"
    ),
    "found an indentation indicator equal to 0": "the indentation of a block is 1 to 9, or left out",
    "found unknown escape character": (
        "unknown escape in double quotes; write \\\\ for a backslash, or use single quotes"
    ),
    "did not find expected hexdecimal number": "\\x takes two hexadecimal digits, \\u four and \\U eight",
    "found invalid Unicode character escape code": (
        "half of a surrogate pair is not a character; write the character itself, or \\U with eight digits"
    ),
    "found a tab character where an indentation space is expected": _NO_TABS,
    "found a tab character that violates indentation": _NO_TABS,
}
_AT_START = {
    "could not find expected ':'": "expected ':' after this key; check the indentation, and the line before",
    "found unexpected end of stream": "this quote is never closed",
    "found unexpected document indicator": "this quote is not closed before the document ends",
    "did not find expected alphabetic or numeric character": (
        "'*' begins an alias and '&' an anchor; put quotes around text that begins with one of them"
    ),
}
_NEVER_CLOSED = {
    "did not find expected ',' or ']'": "this '[' is never closed",
    "did not find expected ',' or '}'": "this '{' is never closed",
}


def explain_error(error: yaml.MarkedYAMLError, text: str, source: str) -> Unreadable:
    """Translate a parser error about `text` into an `Unreadable`."""
    problem, context = error.problem or "not YAML", error.context or ""
    stopped: Any = error.problem_mark or error.context_mark
    began: Any = error.context_mark or stopped
    start, here = (Mark(source, mark.line + 1, mark.column + 1) for mark in (began, stopped))
    if context.endswith("directive"):
        return Unreadable(NO_DIRECTIVES, start)
    if context.endswith("tag") or "tag handle" in problem:
        return Unreadable(_NO_TAGS, start)
    if problem in _AT_START:
        return Unreadable(_AT_START[problem], start)
    if problem in _NEVER_CLOSED and not text[stopped.index :].strip():
        return Unreadable(_NEVER_CLOSED[problem], start)
    if problem == "did not find expected node content" and not text[stopped.index :].strip():
        return Unreadable("the text ends where a value is expected; look for a '[' or '{' that is never closed", here)
    if "\t" in (indentation := _indentation(text, stopped.index)):
        return Unreadable(_NO_TABS, Mark(source, here.line, indentation.index("\t") + 1))
    if problem == "found character that cannot start any token":
        return Unreadable(f"text cannot begin with {text[stopped.index]!r}; put quotes around it", here)
    return Unreadable(_AT_PROBLEM.get(problem, problem).replace("LINE", str(start.line)), here)


def _indentation(text: str, index: int) -> str:
    """Return the leading whitespace of the line of `index`, up to `index`."""
    begins = max(text.rfind("\n", 0, index), text.rfind("\r", 0, index)) + 1
    line = text[begins : index + 1]
    return line[: len(line) - len(line.lstrip(" \t"))]
