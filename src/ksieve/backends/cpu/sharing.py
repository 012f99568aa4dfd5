"""Rows of one call, shared between the calling thread and helper threads.

No helper reads or writes after `share` has returned or raised. The caller ends every call by acquiring a lock that
helpers hold while they work. The acquisition is one C call that no signal handler can interrupt. CPython runs no
handler between it and the preceding store, which ends the distribution of work. A helper that starts later finds no
work. A call waits for helpers that have started, never for others. Without a free helper, in a forked child, or where
no thread can start, the calling thread does all of the work.

Python threads run kernels that release the GIL. Numba's own threading layer aborts the process when two threads of a
server call at once, and hangs after a fork. A `ThreadPoolExecutor` refuses work once the main thread has ended, and an
interrupt inside `submit` leaves a job without a reference.
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
"""Portions of rows per thread: enough to balance ragged rows, few enough to keep the hand-over negligible."""

_MOST_WAITING = 256
"""Largest number of queued requests for helpers; further calls run on their own thread alone."""

# The C locks of `threading.Lock`: its own `acquire` runs signal handlers while it waits, and lets their exceptions
# through. Calls through `CDLL` release the GIL.
_api = ctypes.CDLL(None, handle=ctypes.pythonapi._handle)
_allocate, _acquire, _release = (
    _api.PyThread_allocate_lock, _api.PyThread_acquire_lock, _api.PyThread_release_lock,
)  # fmt: skip
_allocate.restype = ctypes.c_void_p
_acquire.argtypes, _acquire.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_int
_release.argtypes, _release.restype = (ctypes.c_void_p,), None

_spare: list[int] = []
"""Idle locks, for reuse. They are never freed: an interrupt inside the Python code that frees one could be lost."""


class _Job:
    """The rows of one call, until `work` is None.

    `work`: None once no more portions are to be taken. `idle`: lock that the helpers hold together while any of them
    works, and that the caller acquires at the end. Later calls reuse it: a late helper may hold it briefly, but finds
    no work. `error`: the first one raised in a helper.
    """

    __slots__ = ("begins", "error", "idle", "inside", "mutex", "portion", "rows", "work")

    def __init__(self, work: Work, rows: int, threads: int, least: int) -> None:
        self.work: Work | None = work
        self.rows = rows
        self.portion = max(1, rows // (threads * PORTIONS_PER_THREAD), min(least, rows // (2 * threads)))
        self.begins = itertools.count(0, self.portion)  # next() on it is atomic
        self.error: BaseException | None = None
        self.inside = 0
        self.mutex = _thread.allocate_lock()  # for helpers only: the caller could be interrupted while it holds it
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
    """Run ``work(begin, end)`` over all rows, in portions that the caller and idle helpers take.

    A portion has `least` rows or more, where there are two such portions for every thread.

    An exception in the caller or a helper stops every thread after its portion, and is raised here once all have
    stopped.
    """
    if threads <= 1 or sys.is_finalizing():
        work(0, rows)
        return
    job = _Job(work, rows, threads, least)
    try:
        _helpers.ask(job, threads - 1)
        job.run()
    finally:
        # No statement may stand between `finally` and this C call: see the module docstring.
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

    They are daemons: while the interpreter ends they wait without accessing any object. `_thread` starts one in a
    single C call; `threading.Thread.start` waits in Python, where an interrupt would leave it partly registered.
    """

    def __init__(self) -> None:
        self.count = 0
        self._asked: queue.SimpleQueue[_Job] = queue.SimpleQueue()  # may be used in a signal handler

    def ask(self, job: _Job, wanted: int) -> None:
        """Let up to `wanted` threads help with a job, fewer where no more can be started."""
        # No lock: an interrupt could leave it held. A race starts one thread too many, which is harmless.
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
        del job  # an idle helper must keep no arrays alive


_helpers = _Helpers()


def _forget() -> None:
    """Reset the state in a forked child, which inherits neither the threads nor the locks that they would release."""
    global _helpers
    _helpers = _Helpers()
    _spare.clear()


os.register_at_fork(after_in_child=_forget)
