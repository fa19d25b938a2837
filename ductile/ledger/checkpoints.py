"""From the log into the file: when that is due, and how it is done so that nobody's commit waits for the disk.

Runs on the one writing connection, in its thread; `commits` sends it there.
"""

import os
import sqlite3
from pathlib import Path

from ductile.failpoints import failpoint
from ductile.ledger import connections
from ductile.ledger.faults import breaks_the_ledger
from ductile.values import define

AFTER_ROWS = 1_000
AT_LATEST_AFTER_ROWS = 2_000
"""A small row in a commit of its own costs at most ten pages of log, of 2 KiB each: this keeps the log below 64 MiB."""


@define(eq=False)
class Checkpoints:
    """The checkpoints of one connection, which counts the rows that it has written since the last."""

    db: sqlite3.Connection
    path: Path
    _rows_at_last: int = 0

    def is_due(self, *, is_waited_for: bool) -> bool:
        """Whether it is time for the next: while nobody waits, or at the latest when the log has grown long."""
        rows = self.db.total_changes - self._rows_at_last
        return rows >= (AT_LATEST_AFTER_ROWS if is_waited_for else AFTER_ROWS)

    def log_is_long(self) -> bool:
        """A few large rows can make it so."""
        try:
            return os.stat(f"{self.path}-wal").st_size > connections.WAL_LIMIT_BYTES
        except OSError:  # whoever cannot see it will not be able to empty it either
            return False

    def make(self) -> None:
        """The log is in the file, as far as no reader needs it. Raises only what breaks the ledger."""
        self._rows_at_last = self.db.total_changes
        failpoint("checkpoint.before")
        try:
            ((_, log, moved),) = self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if log == moved:
                self._begin_the_log_anew()
        except sqlite3.Error as error:
            if breaks_the_ledger(error):
                raise
        failpoint("checkpoint.after")

    def _begin_the_log_anew(self) -> None:
        """The first commit after the log was emptied waits for the disk, whatever SQLite was told. So that the loop
        never makes it, it is made here, and changes nothing."""
        ((version,),) = self.db.execute("PRAGMA user_version").fetchall()
        try:
            self.db.execute("BEGIN IMMEDIATE")
            self.db.execute(f"PRAGMA user_version = {version}")
            self.db.execute("COMMIT")
        except sqlite3.Error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def make_the_last(self) -> None:
        """The log is in the file, and empty."""
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
