"""Ductile: a durable job runtime. Plugins run as processes, and a ledger records why each job ran or did not."""

__version__ = "0.1.0"
