"""Threads of one call on the CPU: whatever is raised, nothing is read or written once the call is over."""

from __future__ import annotations

import _thread
import dis
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import ksieve
from flat_calls import ask, plan_of
from ksieve.backends.cpu import kernels, sharing
from ksieve.core.options import Options


def run_script(text):
    """Run a script in a process of its own, with 2 threads a call; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=240,
        env={**os.environ, "NUMBA_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def inputs(rows=64, width=4096, k=16, threads=2, **options):
    """Scores, a plan of some threads, and the answer in ascending order."""
    scores = np.random.default_rng(rows + k).random((rows, width), np.float32)
    plan = replace(plan_of(rows=rows, width=width, k=k, options=Options(**options)), threads=threads)
    return scores, plan, np.sort(np.argpartition(-scores, k, axis=1)[:, :k].astype(np.int32), axis=1)


def exact(answer, want):
    return np.array_equal(np.sort(answer, axis=1), want)


# ---- an interrupt, and an error of one thread


class Gated:
    """Stands for `select_rows`: the caller waits until a helper is inside, then raises; the helper leaves later."""

    def __init__(self, error):
        self.caller, self.error, self.real = _thread.get_ident(), error, kernels.select_rows._call
        self.inside, self.go, self.left = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, *args):
        if _thread.get_ident() == self.caller:
            assert self.inside.wait(60)
            threading.Timer(0.05, self.go.set).start()
            raise self.error
        self.inside.set()
        assert self.go.wait(60)
        self.real(*args)
        self.left.set()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit, RuntimeError])
@pytest.mark.parametrize("options", [{}, {"sorted": True}])
def test_an_error_waits_for_helpers_that_have_begun(monkeypatch, error, options):
    scores, plan, want = inputs(order="value" if options else "any")
    assert exact(ksieve.topk(scores, plan=plan), want)
    gated = Gated(error())
    monkeypatch.setattr(kernels.select_rows, "_call", gated)
    with pytest.raises(error):
        ask(scores, plan=plan, **options)
    assert gated.left.is_set()
    monkeypatch.undo()
    assert exact(ksieve.topk(scores, plan=plan), want)


def test_an_error_of_one_helper_stops_the_others(monkeypatch):
    scores, plan, want = inputs(rows=640, threads=3)
    assert exact(ksieve.topk(scores, plan=plan), want)
    caller, real, raised, portions = _thread.get_ident(), kernels.select_rows._call, threading.Event(), []

    def select_rows(*args):
        portions.append(args[5])
        if _thread.get_ident() != caller:
            raised.set()
            raise MemoryError("in a helper")
        # Portions are few once the error is known; it is within moments.
        assert raised.wait(60)
        time.sleep(0.02)
        real(*args)

    monkeypatch.setattr(kernels.select_rows, "_call", select_rows)
    with pytest.raises(MemoryError, match="in a helper"):
        ksieve.topk(scores, plan=plan)
    assert len(portions) < 8, portions
    monkeypatch.undo()
    assert exact(ksieve.topk(scores, plan=plan), want)


def points_of_interrupts(code):
    """Offsets of the bytecodes before which CPython runs signal handlers: after calls, at loops and entries."""
    previous, points = None, set()
    for one in dis.get_instructions(code):
        if one.opname in ("RESUME", "JUMP_BACKWARD") or (previous or "").startswith("CALL"):
            points.add(one.offset)
        previous = one.opname
    return points


@pytest.mark.extended
def test_an_interrupt_at_any_bytecode():
    """An interrupt at each point where CPython could raise one in the caller's code, one after another."""
    caller, inside, seen = _thread.get_ident(), [], set()
    helping = threading.Event()

    def work(begin, end):
        if _thread.get_ident() == caller:
            helping.wait(0.05)  # so that there is a helper to wait for; it need not come
            return
        inside.append(begin)
        helping.set()
        time.sleep(0.002)
        inside.pop()

    points = {}

    def attempt(number):
        count = 0

        def trace(frame, event, arg):
            nonlocal count
            if frame.f_code.co_filename != sharing.__file__:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            code = frame.f_code
            allowed = points.setdefault(code, points_of_interrupts(code))
            if event == "opcode" and frame.f_lasti in allowed and code.co_name != "__del__":
                if count == number:
                    seen.add((code.co_name, frame.f_lasti))
                    raise KeyboardInterrupt
                count += 1
            return trace

        helping.clear()
        sys.settrace(trace)
        try:
            sharing.share(work, 12, 3)
        finally:
            sys.settrace(None)

    for number in range(500):
        try:
            attempt(number)
        except KeyboardInterrupt:
            assert not inside, sorted(seen)
        else:
            break
    assert {name for name, _ in seen} >= {"share", "run", "ask"}
    assert number > 20


def test_a_signal_handler_may_call_within_a_call():
    scores, plan, want = inputs(rows=2000)
    found = []

    def handler(*_):
        found.append(exact(ksieve.topk(scores[:64], plan=plan), want[:64]))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for late in np.linspace(1e-4, 5e-3, 12):
            signal.setitimer(signal.ITIMER_REAL, late)
            assert exact(ksieve.topk(scores, plan=plan), want)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert found and all(found)


# ---- no helpers


@pytest.mark.extended
@pytest.mark.parametrize("options", ["", "sorted=True"])
@pytest.mark.parametrize("before", [True, False])
def test_calls_after_the_main_thread_has_ended(before, options):
    """In a thread, and at the exit of the process, also of one that never called before."""
    script = f"""
        import atexit, threading
        import numpy as np
        import ksieve
        scores = np.random.default_rng(0).random((64, 4096), np.float32)
        want = np.sort(np.argpartition(-scores, 16, axis=1)[:, :16], axis=1)
        def check(name):
            assert np.array_equal(np.sort(ksieve.topk(scores, k=16, {options}), axis=1), want)
            print(name)
        def later():
            threading.main_thread().join()
            check("thread")
        if {before}:
            check("main")
            threading.Thread(target=later).start()
        atexit.register(check, "atexit")
    """
    assert run_script(script).split() == ["main", "thread", "atexit"][0 if before else 2 :]


def test_a_machine_that_starts_no_more_threads(monkeypatch):
    """Threads that were started help, none more are counted, and later calls try again."""
    started, real = [], _thread.start_new_thread

    def start(*args):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(1)
        return real(*args)

    monkeypatch.setattr(sharing, "_helpers", sharing._Helpers())
    monkeypatch.setattr(_thread, "start_new_thread", start)
    monkeypatch.setattr(threading, "_start_new_thread", start, raising=False)
    scores, plan, want = inputs(threads=13)
    for _ in range(3):
        assert exact(ksieve.topk(scores, plan=plan), want)
    assert len(started) == sharing._helpers.count == 2
    monkeypatch.setattr(_thread, "start_new_thread", real)
    assert exact(ksieve.topk(scores, plan=plan), want)
    assert sharing._helpers.count == 12


@pytest.mark.extended
def test_a_process_may_end_within_the_calls_of_daemon_threads():
    script = """
        import threading, time
        import numpy as np
        import ksieve
        scores = np.random.default_rng(0).random((400, 65536), np.float32)
        ready = threading.Barrier(3)
        def forever():
            ksieve.topk(scores, k=64)
            ready.wait()
            while True:
                ksieve.topk(scores, k=64)
        for _ in range(2):
            threading.Thread(target=forever, daemon=True).start()
        ready.wait()
        time.sleep(0.02)
    """
    for _ in range(8):
        assert run_script(script) == ""
