"""A monitored agent answers questions and asks to publish each answer; the monitor clears or pauses the call."""
