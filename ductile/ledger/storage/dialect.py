"""The words of SQL that SQLite has and PostgreSQL has not, as text for statements.

Everything else in `ledger` that reads or writes jobs is written in the subset that both understand. Modules about the
file itself (`store`, `examine`, `migrate`, `copying`, `sizes`, `soundness`) and full-text search are SQLite's own.
"""


def using(index: str) -> str:
    """Force the index: without statistics the planner may choose another one."""
    return f"INDEXED BY {index}"


def elements(document: str, path: str) -> str:
    """Return a table of the members of the list at `path` of a JSON document, with the columns key, value and type."""
    return f"json_each({document}, '{path}')"


def members(parameter: str) -> str:
    """Return the values of a JSON list that is a parameter, as a subquery."""
    return f"(SELECT value FROM json_each({parameter}))"


def is_json(column: str) -> str:
    return f"json_valid({column})"


def contains(column: str) -> str:
    """Return the condition that a text contains a parameter."""
    return f"instr({column}, ?) > 0"


def greatest(first: str, second: str) -> str:
    return f"MAX({first}, {second})"


def as_bytes(column: str) -> str:
    """Return a text as its bytes: text that is not valid UTF-8 can be read only in this way."""
    return f"CAST({column} AS BLOB)"
