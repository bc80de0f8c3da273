"""Coherence gaps: does what came back fit what the agent did or said? (TRACER, eq. 13-15)"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from grampus_uq.signals.embedding import semantic_distance

__all__ = ["agent_coherence_gap", "user_coordination_gap"]

Vector = npt.NDArray[np.float64]


def agent_coherence_gap(action: Vector, observation: Vector | None) -> float | None:
    """Give D_o^A = 1 - cos(z(x_t), z(o_t)) between an agent's turn and the observations of its calls (eq. 14).

    Returns a number in [0, 2], higher is worse, 1 when either vector is zero; None while there is no observation.

    What it measures depends on the embedder: between a call and a well-fitting answer the distance is rarely small, so
    only its differences say anything.
    """
    return None if observation is None else semantic_distance(action, observation)


def user_coordination_gap(agent: Vector | None, user: Vector) -> float | None:
    """Give D_o^U = 1 - cos(z(x_{t-1}), z(x_t)) between a user's turn and the agent's turn right before it (eq. 15).

    Returns a number in [0, 2], higher is worse, 1 when either vector is zero; None when the agent did not act right
    before. Closing turns (`signals.text.is_closing`) are not given to it.
    """
    return None if agent is None else semantic_distance(agent, user)
