"""Watched runs: the wiring that sessions share, and the session, the only mutable object."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
