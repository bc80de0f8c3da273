"""Models behind one protocol: any OpenAI-compatible server, any model that litellm knows, and one that runs right here.

Each name is imported when it is first used, and each client loads its own library on its first call, so that
`import grampus_uq.models` costs nothing.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
