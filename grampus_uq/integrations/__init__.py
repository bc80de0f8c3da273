"""Adapters to agent frameworks, one module each, imported by name; the names here are what an adapter is built from."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
