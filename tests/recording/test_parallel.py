"""Work spread over processes: the same results in the same order, errors unchanged, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grampus_uq.errors import ConfigurationError, DataError
from grampus_uq.recording.parallel import in_order

HERE = os.fspath(Path(__file__).parents[2])


def squared(number: int) -> int:
    return number * number


def slow_first(number: int) -> int:
    time.sleep(0.2 if number == 0 else 0.0)
    return number


def refused(number: int) -> int:
    if number >= 2:
        raise DataError("is wrong", path="x.jsonl", line=number, field="score")
    return number


def killed(number: int) -> int:
    os._exit(1)


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_parts_however_long_each_takes(workers: int) -> None:
    assert list(in_order(slow_first, range(5), workers=workers)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_in_order_comes_back_with_its_place(workers: int) -> None:
    found: list[int] = []
    with pytest.raises(DataError) as caught:
        found.extend(in_order(refused, range(6), workers=workers))
    assert (caught.value.path, caught.value.line, caught.value.field) == ("x.jsonl", 2, "score")
    assert str(caught.value) == "x.jsonl:2, field 'score': is wrong"


def test_parts_are_drawn_only_as_workers_become_free() -> None:
    drawn: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            drawn.append(number)
            yield number

    results = in_order(squared, numbers(), workers=2)
    assert next(results) == 0
    assert len(drawn) <= 5
    results.close()  # type: ignore[attr-defined]  # a generator, as the protocol's word for it has no close


def test_a_worker_that_is_killed_ends_the_work_with_a_reason_instead_of_waiting_for_ever() -> None:
    with pytest.raises(ConfigurationError, match="One was killed"):
        list(in_order(killed, range(3), workers=2))


@pytest.mark.parametrize("workers", [0, True])
def test_arguments_outside_their_domain_are_refused(workers: int) -> None:
    with pytest.raises(ConfigurationError):
        in_order(squared, [], workers=workers)


SLOW = """
import os, sys, time
from grampus_uq.recording.parallel import in_order
def work(number):
    os.write(1, b"working\\n")  # in one piece: the other worker writes at the same time
    time.sleep(0.5)
    return number
if __name__ == "__main__":
    try:
        for _ in in_order(work, range(1000), workers=2):
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(130)
"""


def _started(tmp_path: Path, text: str = SLOW) -> subprocess.Popen[str]:
    script = tmp_path / "slow.py"
    script.write_text(text)
    process = subprocess.Popen(
        [sys.executable, os.fspath(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": HERE},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


def _nobody_is_left(group: int) -> None:
    """The processes of a group end, within ten seconds."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a worker lives on")


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are POSIX's")
def test_ctrl_c_ends_all_workers_and_says_nothing_of_its_own(tmp_path: Path) -> None:
    process = _started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1]) == (130, "interrupted")
    assert err == ""
    _nobody_is_left(process.pid)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are POSIX's")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_waits_for_no_part_and_leaves_none_of_its_drafts(tmp_path: Path, times: int) -> None:
    slow = SLOW.replace("    time.sleep(0.5)\n", "    with whole_file(f'{os.getpid()}'):\n        time.sleep(600)\n")
    process = _started(
        tmp_path, slow.replace("import os", "from grampus_uq.recording.whole_file import whole_file\nimport os")
    )
    time.sleep(0.5)  # the other worker is at work too
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1], err) == (130, "interrupted", "")
    assert list(tmp_path.iterdir()) == [tmp_path / "slow.py"]
    _nobody_is_left(process.pid)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="process groups are POSIX's")
def test_workers_end_when_their_parent_was_killed(tmp_path: Path) -> None:
    process = _started(tmp_path)
    process.kill()
    process.communicate(timeout=60)  # returns when the last worker has let go of the pipe
    _nobody_is_left(process.pid)
