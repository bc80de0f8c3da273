"""Readers of other libraries' data: messages, calls, usage, log-probabilities and responses, as objects or dicts.

Clients, importers and adapters read through this room, so that a shape has one meaning. Everything in here is pure,
bounded, and never raises on what a model, a tool or a framework handed over: what cannot be read is missing, with the
reason beside it, and whoever needs an error makes their own of that reason.
"""

from grampus_uq.wire.calls import UNPARSED, Arguments, ReadCall, is_unparsed, read_arguments, read_call
from grampus_uq.wire.fields import field, text_field
from grampus_uq.wire.logprobs import NO_TOKENS, TokenStream, read_logprobs
from grampus_uq.wire.lone_surrogates import replace_lone_surrogates
from grampus_uq.wire.messages import ReadMessages, observed_text, read_messages, text_of
from grampus_uq.wire.responses import ReadResponse, read_choices, read_response
from grampus_uq.wire.usage import read_usage

__all__ = [
    "NO_TOKENS",
    "UNPARSED",
    "Arguments",
    "ReadCall",
    "ReadMessages",
    "ReadResponse",
    "TokenStream",
    "field",
    "is_unparsed",
    "observed_text",
    "read_arguments",
    "read_call",
    "read_choices",
    "read_logprobs",
    "read_messages",
    "read_response",
    "read_usage",
    "replace_lone_surrogates",
    "text_field",
    "text_of",
]
