"""The servers of the store tests, for adapters that share one with a store."""

from tests.runtime.conftest import postgres_url

__all__ = ["postgres_url"]
