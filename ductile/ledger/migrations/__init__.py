"""One module per step from schema to schema: `vNNN_name.py` with `upgrade(db, schema) -> Iterator[str]`.

A step runs inside one transaction and yields the name of each part it is about to do. `v001` adopts a database of the
original and always leads to the newest schema; the later ones lead from N-1 to N.
"""
