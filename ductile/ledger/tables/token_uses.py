"""When each token was last used, by its name. Written from time to time, never for every request."""

from collections.abc import Mapping
from datetime import datetime

from ductile.core.clock import from_text, to_text
from ductile.ledger.storage.db import Db

PUT = """
    INSERT INTO token_uses (name, last_used_at) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET last_used_at = excluded.last_used_at
"""


def put_all(db: Db, uses: Mapping[str, datetime]) -> None:
    db.executemany(PUT, [(name, to_text(used_at)) for name, used_at in uses.items()])


ALL = "SELECT name, last_used_at FROM token_uses"


def all_uses(db: Db) -> dict[str, datetime]:
    return {name: from_text(used_at) for name, used_at in db.execute(ALL)}
