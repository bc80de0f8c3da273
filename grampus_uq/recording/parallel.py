"""Maps a function over parts of the offline work, in this process or in several; results in order, always.

The result does not depend on how many workers there are: parts are cut before, each is worked on alone, and what comes
back is handed on in the order of the parts. At most a few parts a worker are under way, so a slow consumer holds back
the workers instead of filling the memory.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

from grampus_uq.errors import ConfigurationError, GrampusError

Part = TypeVar("Part")
Result = TypeVar("Result")

_AHEAD: Final = 2  # parts a worker: one under way, one waiting


def cores() -> int:
    """The number of cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def in_order(work: Callable[[Part], Result], parts: Iterable[Part], *, workers: int = 1) -> Iterator[Result]:
    """Yield `work(part)` for each part, in the order of the parts.

    `work`, a function of a module or a `functools.partial` of one, is sent to other processes by name. `parts` are
    small descriptions, such as names of files, drawn as workers become free. With one worker everything happens in this
    process; more are spawned: nothing is inherited but the arguments. Raises what `work` raised, the first in the order
    of parts, and `ConfigurationError` for fewer workers than 1, or one that was killed.
    """
    if type(workers) is not int or workers < 1:
        raise ConfigurationError.of("workers", "in_order", "a whole number of at least 1", workers)
    return map(work, parts) if workers == 1 else _in_processes(work, parts, workers)


def _in_processes(work: Callable[[Part], Result], parts: Iterable[Part], workers: int) -> Iterator[Result]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    pending: deque[Future[Result | GrampusError]] = deque()
    try:
        for part in parts:
            with _interrupts_held():  # a worker is spawned here, and Ctrl-C is this process's to deal with
                pending.append(pool.submit(_guarded, work, part))
            if len(pending) >= _AHEAD * workers:
                yield _unwrapped(pending.popleft().result())
        while pending:
            yield _unwrapped(pending.popleft().result())
    except BrokenProcessPool as error:
        way_out = "One was killed, perhaps for lack of memory: use fewer workers."
        raise ConfigurationError.of("workers", "in_order", "processes that keep running", workers, way_out) from error
    except (KeyboardInterrupt, GeneratorExit):  # nobody waits for what is under way
        for process in (pool._processes or {}).values():
            process.terminate()
        raise
    finally:
        with _interrupts_held():  # a pool that is left in the middle of its end waits for ever
            pool.shutdown(wait=True, cancel_futures=True)


def _guarded(work: Callable[[Part], Result], part: Part) -> Result | GrampusError:
    """An error goes back as a value, so that the pool does not wrap it."""
    try:
        return work(part)
    except GrampusError as error:
        return error
    except SystemExit:  # told to end: `work` has cleaned up, and the pool would go on with the next part
        os._exit(1)


def _unwrapped(found: Result | GrampusError) -> Result:
    if isinstance(found, GrampusError):
        raise found
    return found


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back for a moment; a process that is started now never sees it, this one does right after."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """In a worker: leave Ctrl-C to the parent, and end when it says so or was killed; it would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True, name="grampus-parent").start()


def _exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
