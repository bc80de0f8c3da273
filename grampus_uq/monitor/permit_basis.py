"""What a permit earns its answers by: who judged the run, and the score of the proposed call."""

from __future__ import annotations

from grampus_uq.core.state import SessionState
from grampus_uq.core.turn_evidence import doubt_about, placed
from grampus_uq.records.call_parts import CALL_RULE
from grampus_uq.records.values import ToolCall, canonical_json, sha256_of
from grampus_uq.records.vocabulary import UncertaintySource


def judge_of(
    profile: str | None,
    model: str,
    prompt_hash: str | None,
    tools_hash: str | None,
    agent_version: str = "",
    stream: str = "",
) -> str:
    """A fingerprint of what judges a run: the profile's, model, prompt and tools, and what their owner calls them.

    With the stream "call_probability" also of how that is computed: what another rule has earned is not evidence.
    """
    rule = CALL_RULE if stream == UncertaintySource.CALL_PROBABILITY else ()
    text = canonical_json([profile or "", model, prompt_hash, tools_hash, agent_version, *rule])
    return sha256_of(text)[:32]


def score_of(state: SessionState, stream: str, call: ToolCall, step_id: str) -> float | None:
    """A state's belief about a proposed call, in [0, 1], higher is better; None where nothing was read.

    "confidence": the least of the run's and that of the turn that proposes the call, and where more was read than what
    the model states, of the same without it; "p_success": the calibrated chance of that turn; "call_probability": that
    of the call itself.
    """
    turn = placed(state.turns, call, step_id)[1]
    if stream == "p_success":
        return turn.at_worst
    if stream == "call_probability":
        doubt = doubt_about(state.turns, turn, call)
        return None if doubt is None else doubt.probability
    beliefs, alone = [state.cumulative, turn.belief_at_worst], state.unaided
    if not state.only_stated:
        beliefs += [turn.unaided, None if alone is None else alone.cumulative]
    return min(b for b in beliefs if b is not None) if state.has_reading else None
