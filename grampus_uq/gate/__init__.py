"""The gate: judges a proposed call, lets it wait, takes decisions on it, and sees that it runs once."""
