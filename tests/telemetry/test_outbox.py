"""The outbox: putting never waits, memory is bounded, every drop is counted, no thread and no item is left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq.errors import ConfigurationError
from grampus_uq.telemetry.outbox import Outbox


class Sink:
    """Takes batches; may be made to wait, or to raise."""

    def __init__(self):
        self.batches = []
        self.open = threading.Event()
        self.entered = threading.Event()
        self.open.set()
        self.error = None

    def __call__(self, batch):
        self.entered.set()
        assert self.open.wait(30)
        if self.error is not None:
            raise self.error
        self.batches.append(list(batch))

    @property
    def items(self):
        return [item for batch in self.batches for item in batch]


def threads_of(name):
    return [thread for thread in threading.enumerate() if thread.name == f"grampus-uq-{name}"]


def test_what_is_put_is_sent_once_and_in_order():
    sink = Sink()
    outbox = Outbox(sink, name="order", batch=7, delay_s=0.0)
    for number in range(100):
        outbox.put(number)
    assert outbox.flush(30)
    assert sink.items == list(range(100))
    assert max(map(len, sink.batches)) <= 7
    assert outbox.close(30)
    assert outbox.dropped == 0


def test_a_flush_does_not_wait_for_the_delay_and_a_full_batch_neither():
    sink = Sink()
    outbox = Outbox(sink, name="delay", batch=10, delay_s=1000.0)
    outbox.put(1)
    assert outbox.flush(30)
    sink.entered.clear()
    for number in range(10):
        outbox.put(number)
    assert sink.entered.wait(30)
    outbox.put("last")
    assert outbox.close(30)
    assert sink.items == [1, *range(10), "last"]


def test_a_full_queue_drops_the_oldest_and_counts_it_and_an_urgent_one_last():
    sink = Sink()
    sink.open.clear()
    outbox = Outbox(sink, name="full", capacity=4, batch=1, delay_s=0.0)
    outbox.put("in the hands of send")
    assert sink.entered.wait(30)
    outbox.put("alarm 1", urgent=True)
    for number in range(10):
        outbox.put(number)
    outbox.put("alarm 2", urgent=True)
    assert (outbox.waiting, outbox.dropped) == (4, 8)
    sink.open.set()
    assert outbox.close(30)
    assert sorted(map(str, sink.items[1:])) == ["8", "9", "alarm 1", "alarm 2"]
    assert outbox.dropped == 8


def test_when_all_are_urgent_the_oldest_of_them_goes():
    sink = Sink()
    sink.open.clear()
    outbox = Outbox(sink, name="urgent", capacity=2, batch=1, delay_s=0.0)
    outbox.put(0)
    assert sink.entered.wait(30)
    for number in range(1, 5):
        outbox.put(number, urgent=True)
    sink.open.set()
    assert outbox.close(30)
    assert (sink.items, outbox.dropped) == ([0, 3, 4], 2)


def test_a_send_that_raises_counts_its_batch_and_the_next_one_still_goes(caplog):
    sink = Sink()
    outbox = Outbox(sink, name="raises", batch=2, delay_s=0.0)
    sink.error = ValueError("the secret of the request")
    outbox.put(1)
    assert outbox.flush(30)
    sink.error = None
    outbox.put(2)
    assert outbox.close(30)
    assert (sink.items, outbox.dropped) == ([2], 1)
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_a_send_that_hangs_keeps_nobody_beyond_the_deadline_and_what_is_left_is_counted():
    sink = Sink()
    sink.open.clear()
    outbox = Outbox(sink, name="hangs", capacity=100, batch=1, delay_s=0.0)
    for number in range(11):
        outbox.put(number)
    assert sink.entered.wait(30)
    started = time.monotonic()
    assert not outbox.flush(0.05)
    assert not outbox.close(0.05)
    assert time.monotonic() - started < 20.0  # a hang would last thirty
    assert outbox.dropped == 10
    sink.open.set()
    outbox.put("too late")
    assert outbox.dropped == 11
    for thread in threads_of("hangs"):
        thread.join(30)
    assert sink.items == [0]


def test_the_thread_is_there_only_while_it_is_needed():
    sink = Sink()
    outbox = Outbox(sink, name="threads")
    assert threads_of("threads") == []
    outbox.put(1)
    assert len(threads_of("threads")) == 1
    assert outbox.close(30)
    assert threads_of("threads") == []
    assert outbox.close(30)  # again


def test_where_no_thread_can_be_started_the_next_item_tries_again():
    sink = Sink()
    outbox = Outbox(sink, name="starved", delay_s=0.0)
    before = threading.stack_size(2**46)
    try:
        outbox.put(1)
        assert not outbox.flush(30)
    finally:
        threading.stack_size(before)
    outbox.put(2)
    assert outbox.close(30)
    assert sink.items == [1, 2]


def test_an_outbox_that_nobody_holds_is_freed():
    outbox = Outbox(Sink(), name="freed")
    gone = weakref.ref(outbox)
    del outbox
    gc.collect()
    assert gone() is None


def test_threads_that_put_at_once_lose_nothing_that_is_not_counted():
    sink = Sink()
    outbox = Outbox(sink, name="many", capacity=50, batch=10, delay_s=0.0)

    def put():
        for number in range(500):
            outbox.put(number)

    threads = [threading.Thread(target=put) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert outbox.close(30)
    assert len(sink.items) + outbox.dropped == 4000


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 8))
def test_sent_and_dropped_always_add_up_to_what_was_put_and_no_urgent_one_goes_before_another(acts, capacity):
    sink = Sink()
    outbox = Outbox(sink, name="law", capacity=capacity, batch=1, delay_s=0.0)
    sink.open.clear()
    outbox.put((-1, True), urgent=True)
    assert sink.entered.wait(30)
    for number, urgent in enumerate(acts):
        outbox.put((number, urgent), urgent=urgent)
        assert outbox.waiting <= capacity
    sink.open.set()
    assert outbox.close(30)
    kept = sink.items[1:]
    assert len(kept) + outbox.dropped == len(acts)
    n_urgent = sum(acts)
    assert sum(urgent for _, urgent in kept) == min(n_urgent, capacity)


@pytest.mark.parametrize("wrong", [{"capacity": 1, "batch": 2}, {"batch": 0}, {"delay_s": -1.0}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigurationError):
        Outbox(Sink(), name="wrong", **wrong)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_sends_its_own_items_and_leaves_its_parents_to_the_parent():
    program = """
        import os, sys, threading
        from grampus_uq.telemetry.outbox import Outbox

        held = threading.Event()
        def send(batch):
            held.wait(10)
            os.write(1, f"{'child' if os.getpid() != parent else 'parent'}:{list(batch)}\\n".encode())

        parent = os.getpid()
        outbox = Outbox(send, name="fork", delay_s=1000.0)
        outbox.put("p")
        child = os.fork()
        held.set()
        outbox.put("c" if child == 0 else "q")
        assert outbox.close(20)
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == ["child:['c']", "parent:['p', 'q']"]


@pytest.mark.slow
def test_a_process_that_ends_sends_what_waits_and_one_whose_backend_hangs_still_ends():
    program = """
        import sys, time
        from grampus_uq.telemetry.outbox import Outbox
        sent = Outbox(lambda batch: print(list(batch), flush=True), name="sent", delay_s=1000.0)
        sent.put(1)
        if sys.argv[1] == "hangs":
            stuck = Outbox(lambda batch: time.sleep(1000), name="stuck", delay_s=0.0)
            stuck.put(2)
    """
    for how in ("ends", "hangs"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), how], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (0, "[1]\n"), done.stderr
