"""One module per step from schema to schema: `vNNN_name.py` with `upgrade(db, schema) -> Iterator[str]`.

All steps run in one transaction. A step yields the name of each part before it runs it. `v001` adopts a database of the
original and creates the newest schema; the later ones lead from N-1 to N.
"""
