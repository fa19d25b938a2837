"""Ductile: an automation runtime with a durable queue, plugins as processes, and a ledger that can say why."""

__version__ = "0.1.0"
