"""`python -m ductile`."""

from ductile.cli import main

main()
