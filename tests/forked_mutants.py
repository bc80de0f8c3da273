"""Tries mutants, each in a fork of one process that has collected the tests: `tests.mutation` starts it in its copy.

Standard input is a JSON object: what pytest is given (`tests`), mutmut's names of the mutants (`names`), and after how
many seconds of the processor's time one is late, beside three times what its tests took (`late_s`); what only waits,
pytest stops. Standard output has the status of each: "killed" where a test failed, "survived", "timeout", "no tests",
or "lost" where the process ended without a failed test. A first fork runs the code as it is, which must pass, and tells
which tests reach which function and what each costs. A mutant is judged by those that reach its function, the quickest
first, and those earlier that killed others of the function.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from mutmut.mutation import trampoline

# pytest's own tracebacks parse the file with all of its mutants, which takes longer than all the rest. A search of
# every order would take minutes for each mutant.
ARGUMENTS = ["-n", "0", "-p", "no:cacheprovider", "--tb", "native", "-q", "--ignore-glob", "*/test_every_order.py"]
TIMES = 3
WAITED = "from pytest-timeout"


def forked(work: Callable[[], str]) -> tuple[str, int]:
    """What `work` says in a fork of this process, "" where it raises, and the status with which the fork ended."""
    with tempfile.TemporaryFile("w+") as said:  # a pipe would wait for whatever the fork has started
        child = os.fork()
        if not child:
            try:
                said.write(work())
                said.flush()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return said.read(), status


class Judge:
    """Runs the mutants in the place of the tests that were collected."""

    def __init__(self, names: Sequence[str], late_s: int) -> None:
        self.names, self.late_s = names, late_s
        self.status: dict[str, str] = {}
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what failed first."""
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid}\n{report.longreprtext}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Try every mutant; where tests could not be collected pytest says so."""
        if session.testsfailed:
            return None
        said, _ = forked(lambda: self.as_it_is(session.items))
        failed, reached = json.loads(said or '["the tests ended their process", {}]')
        if failed:
            pytest.exit(f"The code as it is fails: {failed}", returncode=1)
        gc.freeze()
        orders: dict[str, list[int]] = {}
        for name in self.names:
            function = name.partition("__mutmut_")[0]
            costs = sorted(reached.get(function, ()))
            order = orders.setdefault(function, [place for _, place in costs])
            limit = self.late_s + int(TIMES * sum(cost for cost, _ in costs))
            items = [session.items[place] for place in order]
            self.status[name], by = self.judged(name, items, limit) if items else ("no tests", 0)
            order.insert(by // 2, order.pop(by)) if items else None
        return True

    def as_it_is(self, items: Sequence[pytest.Item]) -> str:
        """What failed of the code as it is, and for each function the cost in seconds and the place of its tests."""
        hits, reached = set[str](), defaultdict[str, list[tuple[float, int]]](list)
        os.environ["MUTANT_UNDER_TEST"] = "stats"
        trampoline.record_trampoline_hit = lambda name, caller=None: hits.add(name)
        for place, (item, after) in enumerate(pairwise([*items, None])):
            hits.clear()
            began = time.process_time()
            run(item, after)
            for name in hits:
                reached[name].append((time.process_time() - began, place))
        return json.dumps([self.failed, reached])

    def judged(self, name: str, items: Sequence[pytest.Item], limit_s: int) -> tuple[str, int]:
        """The status of one mutant under the tests that reach it, and the place of the one that failed."""

        def judge() -> str:
            trampoline.set_mutant_under_test(name)
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            for place, (item, after) in enumerate(pairwise([*items, None])):
                run(item, after)
                if self.failed:
                    with contextlib.suppress(BaseException):
                        item.session._setupstate.teardown_exact(None)
                    return json.dumps(["timeout" if WAITED in self.failed else "killed", place])
            return json.dumps(["survived", 0])

        said, status = forked(judge)
        late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        found, place = json.loads(said or '["lost", 0]')
        return "timeout" if late else found, place


def run(item: Any, after: Any) -> None:
    """Run one test as pytest does."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def main() -> int:
    """Exit status 0 where every mutant was tried."""
    asked = json.load(sys.stdin)
    result = os.dup(1)
    os.dup2(2, 1)
    judge = Judge(asked["names"], asked["late_s"])
    status = pytest.main([*ARGUMENTS, *asked["tests"]], plugins=[judge])
    with open(result, "w") as out:
        json.dump(judge.status, out)
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
