"""Handlers that XLA calls: frames are read as they are, and whatever happens in Python becomes an error of XLA."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from ksieve.core.errors import ArgumentError, BackendError
from ksieve.frontends.jax import ffi as jax_ffi
from ksieve.frontends.jax.ffi import Handler, XlaError
from xla_frames import FakeXla


def test_the_version_is_that_of_xla():
    xla, handler = FakeXla(), Handler(lambda frame: pytest.fail("a query is no execution"))
    assert xla.query(handler) == (None, (0, 4))
    xla.api.version.major = 1
    assert xla.query(handler) == (1, (0, 0))
    xla.api.version.major, xla.api.struct_size = 0, 100
    assert xla.query(handler) == (2, (0, 0))
    assert [code for _, code in xla.errors] == [13, 13] and "FFI has version 1.4" in xla.errors[0][0]


@pytest.mark.parametrize(
    ("raised", "message", "code"),
    [
        (ArgumentError("k", 0, "more"), "k: got 0; takes more", 3),
        (BackendError("no GPU"), "no GPU", 13),
        (ZeroDivisionError("a\0b"), "ZeroDivisionError: a?b", 13),
        (KeyboardInterrupt(), "the call of ksieve was interrupted (KeyboardInterrupt)", 1),
        (SystemExit(3), "the call of ksieve was interrupted (SystemExit)", 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_exception_becomes_an_error(raised, message, code):
    def run(frame):
        raise raised

    xla = FakeXla()
    assert xla.call(Handler(run), [], [], "") == 1 and xla.errors == [(message, code)]


def test_an_error_of_xla_goes_back_to_it():
    xla = FakeXla()
    xla.refused = 4711
    assert xla.call(Handler(lambda frame: frame.stream()), [], [], "") == 4711
    assert xla.call(Handler(lambda frame: frame.device()), [], [], "") == 4711
    assert xla.errors == [] and XlaError(4711).address == 4711


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_cannot_catch_is_an_error(monkeypatch):
    """It arrives before the first instruction of the callback, or behind its last: ctypes then returns garbage."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    serve = jax_ffi.serve

    def interrupted(address, run):
        if late:
            serve(address, run)
        raise KeyboardInterrupt

    monkeypatch.setattr(jax_ffi, "serve", interrupted)
    xla, served = FakeXla(), []
    handler = Handler(served.append)
    late = False
    assert xla.call(handler, [], [], "") == 1 and served == []
    assert xla.errors == [(jax_ffi._INTERRUPTED.decode(), 1)]
    late = True
    assert xla.call(handler, [], [], "") is None and len(served) == 1


def test_a_closed_handler_waits_and_then_refuses():
    entered, leave, xla, results = threading.Event(), threading.Event(), FakeXla(), []

    def run(frame):
        entered.set()
        assert leave.wait(30)

    handler = Handler(run)
    inside = threading.Thread(target=lambda: results.append(xla.call(handler, [], [], "")))
    inside.start()
    assert entered.wait(30)
    closing = threading.Thread(target=handler.close)
    closing.start()
    while not handler._gate.closed:
        time.sleep(0.001)
    assert xla.call(handler, [], [], "") == 1 and "exiting" in xla.errors[0][0]
    assert closing.is_alive()
    leave.set()
    closing.join(30)
    inside.join(30)
    assert not closing.is_alive() and results == [None]
