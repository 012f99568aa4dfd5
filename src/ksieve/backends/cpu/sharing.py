"""Rows of one call, shared between the calling thread and helper threads.

Whatever is raised, no helper reads or writes once `share` is over. The caller ends every call by taking a lock that
helpers hold while they work, in one C call that no signal handler can interrupt; between that call and the store before
it, which ends the hand-out, CPython runs no handler either. A helper that comes later finds no work. A call waits for
helpers that have begun, never for one that has not: without a free helper, in a forked child, or where no thread can be
started, the calling thread does all of the work.

Python threads around kernels that release the GIL, not Numba's own threading layer: that one aborts the process when
two threads of a server call at once, and hangs after a fork. Not a `ThreadPoolExecutor` either: it refuses work once
the main thread has ended, and an interrupt inside `submit` leaves work behind that its caller knows nothing of.
"""

from __future__ import annotations

import _thread
import ctypes
import itertools
import os
import queue
import sys
from collections.abc import Callable

Work = Callable[[int, int], None]
"""Works on rows [begin, end). Refers to every array that it uses, so that none is freed while a thread runs it."""

PORTIONS_PER_THREAD = 16
"""Portions of rows handed out per thread: ragged rows stay balanced, the hand-over stays negligible."""

_MOST_WAITING = 256
"""Requests for help that wait for helpers; further calls work alone."""

# The locks behind `threading.Lock`, whose own `acquire` runs signal handlers while it waits, and raises what they
# raise. Calls through `CDLL` release the GIL.
_api = ctypes.CDLL(None, handle=ctypes.pythonapi._handle)
_allocate, _acquire, _release = (
    _api.PyThread_allocate_lock, _api.PyThread_acquire_lock, _api.PyThread_release_lock,
)  # fmt: skip
_allocate.restype = ctypes.c_void_p
_acquire.argtypes, _acquire.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_int
_release.argtypes, _release.restype = (ctypes.c_void_p,), None

_spare: list[int] = []
"""Locks that no call uses. They are used again, never freed: Python code that frees one could swallow an interrupt."""


class _Job:
    """The rows of one call, until `work` is None.

    Attributes
    ----------
    work : callable or None
        None once no more portions are to be taken.
    idle : int
        Lock held by the helpers together while one of them is inside, and by the caller in the end. Later calls use
        it again: a helper that comes too late may take it for a moment, but finds no work.
    error : BaseException or None
        The first one raised in a helper.
    """

    __slots__ = ("begins", "error", "idle", "inside", "mutex", "portion", "rows", "work")

    def __init__(self, work: Work, rows: int, threads: int, least: int) -> None:
        self.work: Work | None = work
        self.rows = rows
        self.portion = max(1, rows // (threads * PORTIONS_PER_THREAD), min(least, rows // (2 * threads)))
        self.begins = itertools.count(0, self.portion)  # next() on it is atomic
        self.error: BaseException | None = None
        self.inside = 0
        self.mutex = _thread.allocate_lock()  # of helpers alone: the caller could be interrupted while it has it
        try:
            self.idle: int = _spare.pop()
        except IndexError:
            self.idle = _allocate()
            if not self.idle:
                raise MemoryError from None

    def run(self) -> None:
        """Take portions until none is left or the call is over."""
        while (work := self.work) is not None and (begin := next(self.begins)) < self.rows:
            work(begin, min(begin + self.portion, self.rows))

    def help(self) -> None:
        """`run`, in a helper, unless the call is over."""
        if self.work is None:
            return
        with self.mutex:
            if self.inside == 0 and not _acquire(self.idle, 0):
                return
            self.inside += 1
        try:
            self.run()
        except BaseException as error:
            self.work = None
            if self.error is None:
                self.error = error
        finally:
            with self.mutex:
                self.inside -= 1
                if self.inside == 0:
                    _release(self.idle)


def share(work: Work, rows: int, threads: int, least: int = 1) -> None:
    """Run ``work(begin, end)`` over all rows, in portions that idle threads take; the caller is one of them.

    A portion has `least` rows or more, where there are two such portions for every thread.

    What is raised in the caller or in a helper stops the others after their portions and is raised here when none of
    them is at work any more.
    """
    if threads <= 1 or sys.is_finalizing():
        work(0, rows)
        return
    job = _Job(work, rows, threads, least)
    try:
        _helpers.ask(job, threads - 1)
        job.run()
    finally:
        # Nothing may come between `finally` and the end of this C call: see above.
        job.work = None
        _acquire(job.idle, 1)
    _release(job.idle)
    _spare.append(job.idle)
    if job.error is not None:
        error, job.error = job.error, None
        try:
            raise error
        finally:
            del error  # it refers to this frame


class _Helpers:
    """Threads kept between calls.

    Started as daemons, which wait without touching anything while the interpreter ends. `_thread` starts one in a
    single C call; `threading.Thread.start` waits for it in Python, where an interrupt leaves it half known.
    """

    def __init__(self) -> None:
        self.count = 0
        self._asked: queue.SimpleQueue[_Job] = queue.SimpleQueue()  # may be used in a signal handler

    def ask(self, job: _Job, wanted: int) -> None:
        """Let up to `wanted` threads help with a job, fewer where no more can be started."""
        # No lock, which an interrupt could leave taken: a race starts one thread too many, which does no harm.
        while self.count < wanted:
            self.count += 1
            try:
                _thread.start_new_thread(_serve, (self._asked,))
            except (RuntimeError, MemoryError):  # too many threads, or the interpreter is ending
                self.count -= 1
                break
        for _ in range(min(wanted, self.count, _MOST_WAITING - self._asked.qsize())):
            self._asked.put(job)


def _serve(asked: queue.SimpleQueue[_Job]) -> None:
    while True:
        job = asked.get()
        job.help()
        del job  # nothing is kept alive while there is nothing to do


_helpers = _Helpers()


def _forget() -> None:
    """A forked child inherits none of the threads, nor what they would release."""
    global _helpers
    _helpers = _Helpers()
    _spare.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
