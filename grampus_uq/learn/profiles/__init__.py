"""Whole profiles: fit everything that labels allow in one go, say what to expect, compare two on the same runs."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
