"""Mathematics: numbers in, numbers out; no steps, no agents, no I/O.

An argument outside its stated domain (shape, range, NaN) raises ConfigurationError: its name, the rule, the value.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
