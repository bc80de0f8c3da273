"""Mathematics: numbers in, numbers out; no steps, no agents, no I/O.

What users give and what is stored is checked where it comes in: public functions, constructors and levels raise
ConfigurationError with name, rule and value. Arrays that the package makes are trusted.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
