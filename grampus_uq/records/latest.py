"""A mapping that stays bounded: it forgets what was set longest ago."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Latest(OrderedDict[Key, Value]):
    """The `most` entries that were set last, the oldest first; one that is set again is the newest.

    Setting raises nothing, also where several threads do, and at no moment is an entry that is set again not there.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        with contextlib.suppress(KeyError):  # another thread has set so many since
            self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
