"""The values that travel: steps, readings, calls, verdicts, events; their vocabulary; what users may supply."""
