"""Every promise that the product prints, simulated through the public path: recordings in, fit, sessions live."""
