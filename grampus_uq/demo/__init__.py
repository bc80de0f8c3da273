"""A monitored agent on real questions: it answers, it wants to publish, and the monitor lets it or holds it."""
