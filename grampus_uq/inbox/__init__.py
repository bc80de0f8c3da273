"""The inbox: pages on which people see what waits, and decide it with a passkey."""
