"""Runs from elsewhere: what others recorded, as the values of this package. One file a format, one run at a time.

Every importer names what it refuses by path, line and field, reads plain or gzipped files in bounded memory, and keeps
what only an evaluator knows (outcomes, labels) apart from what a monitor could have seen.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
