"""Running agents: the runner, stores, graphs with waiting nodes, audit, rollback, and the watch over a guarantee."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
