"""A worker of whichever release stands first on the path: begins sessions and resumes decided ones. A script.

    python rolling_worker.py STORE_URL FILE_OF_EFFECTS NAME SESSIONS [wider]

Ends on SIGTERM, after what it is doing. What its caller would have seen as an error is a line on standard error.
"""

import os
import signal
import sys

import anyio

from grampus_uq import AgentDefinition, AgentRunner, FunctionTools, UncertaintyMonitor, open_store, tool
from grampus_uq.errors import SessionConflictError, SessionError
from grampus_uq.records.values import ToolCall
from grampus_uq.records.vocabulary import Effect, Role
from grampus_uq.runtime.ledger import Ledger
from grampus_uq.testing import ScriptedModel, answer

URL, EFFECTS, NAME, SESSIONS = sys.argv[1:5]
AGENT = AgentDefinition(name="mailer", model="scripted", system_prompt="You send mail.")


def act(to):
    file = os.open(EFFECTS, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(file, f"{to}\n".encode())
    os.close(file)
    return "sent"


@tool(effect=Effect.IRREVERSIBLE)
def send_email(to: str) -> str:
    """Send a mail."""
    return act(to)


@tool(effect=Effect.IRREVERSIBLE, name="send_email")
def send_email_later(to: str, urgent: bool = False) -> str:
    """Send a mail, as the next release does."""
    return act(to)


def reply(messages, options):
    if "Reply with" in (messages[-1].content or "") and messages[0].content != AGENT.system_prompt:
        return '{"p_true": 0.6}'
    if any(message.role is Role.TOOL and message.content == "sent" for message in messages):
        return "Done."
    to = next(m.content for m in messages if m.role is Role.USER)
    return answer("I send it.", tool_calls=[ToolCall(id="a", name="send_email", arguments={"to": to})])


async def main():
    store, stopping = open_store(URL), []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    tools = FunctionTools(send_email_later if "wider" in sys.argv else send_email)
    runner = AgentRunner(ScriptedModel(reply), tools, uncertainty_monitor=UncertaintyMonitor(), store=store)
    ledger, begun = Ledger(store), 0
    while not stopping:
        try:
            if begun < int(SESSIONS):
                begun += 1
                await runner.run(AGENT, f"{NAME}-{begun}", session_id=f"{NAME}-{begun}")
            pending = await ledger.pending("mailer")
            decided = await ledger.decisions([request.id for one in pending for request in one.requests])
            for one in pending:
                if not stopping and any(decided[request.id] for request in one.requests):
                    await resume(runner, one.session_id)
        except Exception as error:  # noqa: BLE001 (whatever reaches a caller is counted)
            sys.stderr.write(f"{NAME}: {type(error).__name__}: {error}\n")
        await anyio.sleep(0.02)
    await store.aclose()


async def resume(runner, session):
    try:
        await runner.resume("mailer", session)
    except SessionConflictError:
        pass  # another worker was first
    except SessionError as error:
        if "has ended" not in str(error):
            raise


if __name__ == "__main__":
    anyio.run(main)
