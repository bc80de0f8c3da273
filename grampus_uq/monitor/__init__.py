"""Watched runs: the wiring that sessions share, and the session, the only mutable object."""
