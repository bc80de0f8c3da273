"""One step, pure: the belief, the alarm, the decision. No I/O, no clock, no `await`."""
