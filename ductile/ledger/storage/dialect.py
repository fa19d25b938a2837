"""SQL expressions that SQLite has and PostgreSQL does not, as text for statements.

Other statements that read or write jobs use the subset that both share. The modules about the database file
(`storage/`, `reports.disk_usage`) and full-text search are written for SQLite only.
"""


def using(index: str) -> str:
    """Force the index: without statistics the planner may choose another one."""
    return f"INDEXED BY {index}"


def elements(document: str, path: str) -> str:
    """Return a table of the elements of the JSON array at `path`, with the columns key, value and type."""
    return f"json_each({document}, '{path}')"


def members(parameter: str) -> str:
    """Return a subquery of the values of a parameter that is a JSON array."""
    return f"(SELECT value FROM json_each({parameter}))"


def is_json(column: str) -> str:
    return f"json_valid({column})"


def contains(column: str) -> str:
    """Return the condition that the column contains a parameter."""
    return f"instr({column}, ?) > 0"


def greatest(first: str, second: str) -> str:
    return f"MAX({first}, {second})"


def as_bytes(column: str) -> str:
    """Return the bytes of a text. Text that is not valid UTF-8 cannot be read otherwise."""
    return f"CAST({column} AS BLOB)"
