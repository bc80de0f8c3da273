"""The values that travel: steps, readings, calls, verdicts, events; their vocabulary; what users may supply."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
