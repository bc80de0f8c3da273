"""Signals: each file is one way to sense how likely a step is right. The names here are imported on first use."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
