"""Learning from labelled runs: what turns recordings and outcomes into the frozen parts of a profile."""
