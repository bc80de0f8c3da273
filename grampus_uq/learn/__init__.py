"""Learning from recorded runs: fit profiles, score forecasts, attribute failures."""
