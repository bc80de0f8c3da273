"""Turns events into spans and metrics; each public name is loaded when it is first used: their SDKs import slowly."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
