"""Adapters to agent frameworks, one module each; import the one whose framework is installed."""
