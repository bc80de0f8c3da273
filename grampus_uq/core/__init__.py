"""One step, pure: the belief, the alarm, the decision. No I/O, no clock, no `await`."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
