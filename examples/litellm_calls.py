"""Plain litellm calls, watched: the calls of one order are one session, and it is asked before money moves.

python examples/litellm_calls.py                                          # litellm's own mock, no network
python examples/litellm_calls.py --model gpt-4o-mini                      # any model name of litellm
python examples/litellm_calls.py --model openai/NAME --api-base URL       # any OpenAI-compatible server
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm looks prices up on the network otherwise

import litellm

from grampus_uq import UncertaintyMonitor, UncertaintyPolicy
from grampus_uq.integrations.litellm import UncertaintyCallback

ASK = 'Answer in one sentence, and end with {"confidence": p}, p being the probability that you are right.'
SCRIPTED = ('The order never arrived. {"confidence": 0.9}', 'So 40 EUR are due. {"confidence": 0.6}')
QUESTIONS = ("Order A-17 was sent three weeks ago. Did it arrive?", "How much money is due to the customer?")


def main(model: str | None, api_base: str | None) -> None:
    """Two calls of one session, then the question whether a refund may be made."""
    policy = UncertaintyPolicy(irreversible_tool_names=["refund"])
    callback = UncertaintyCallback(UncertaintyMonitor(policy=policy))
    litellm.callbacks.append(callback)
    for question, answer in zip(QUESTIONS, SCRIPTED, strict=True):
        given: dict[str, Any] = {"model": model, "api_base": api_base}
        if model is None:
            given = {"model": "gpt-4o-mini", "mock_response": answer}
        messages = [{"role": "system", "content": ASK}, {"role": "user", "content": question}]
        said = litellm.completion(messages=messages, metadata={"session_id": "order-A-17"}, **given)
        print(said.choices[0].message.content)
        callback.wait_for(said)  # litellm reports a call a moment after it returned
    belief = callback.belief("order-A-17")
    verdict = callback.would_allow("order-A-17", "refund")
    if belief is not None:
        print(f"{belief.total_steps} steps, confidence {belief.cumulative_confidence:.2f}, {belief.overall_level}")
    if verdict is None or not verdict.allowed:
        print(f"no refund without a human: {verdict.reason if verdict else 'nothing is known of this session'}")
    else:
        print("refund it")
    callback.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--api-base")
    options = parser.parse_args()
    main(options.model, options.api_base)
