"""Randomised exploration: some runs go on past a stop of a reversible step, so that a profile can be refitted."""

from __future__ import annotations

from dataclasses import dataclass

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.eprocess_thresholds import tie_uniform


@dataclass(frozen=True, slots=True)
class Exploration:
    """The probability that a run continues where a reversible step would have been stopped.

    The draw depends on the run's id and `seed` alone. Recordings keep it with its probability: an acting profile can be
    refitted honestly on such runs. An irreversible call is never explored. Raises ConfigurationError for a `rate`
    outside [0, 1].
    """

    rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ConfigurationError.of("rate", "Exploration", "a probability in [0, 1]", self.rate)

    def draws(self, session_id: str) -> bool:
        """Return True if the run of this id explores."""
        return self.rate > 0.0 and tie_uniform(session_id, f"let through {self.seed}") < self.rate
