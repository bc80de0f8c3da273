"""Readers of other libraries' data: messages, calls, usage, log-probabilities and responses, as objects or dicts.

Clients, importers and adapters read through this room, so that a shape has one meaning. Everything in here is pure,
bounded, and never raises on what a model, a tool or a framework handed over: what cannot be read is missing, with the
reason beside it, and whoever needs an error makes their own of that reason.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
