"""Every exception that ksieve raises on purpose.

All of them derive from `KsieveError`, so that one ``except`` clause catches these and no other exceptions.
"""

from __future__ import annotations

import reprlib
import sys
from typing import NoReturn

_SHOWN = 80
"""Largest number of characters of a value in a message."""


class KsieveError(Exception):
    """Base class of all errors raised by ksieve."""


class ArgumentError(KsieveError, ValueError):
    """A caller's argument cannot be used; raised before any kernel is launched or any output written.

    Parameters
    ----------
    argument : str
        Name of the argument, as the caller wrote it.
    got : object
        The value that was passed, or a str that describes it.
    takes : str
        The values that are accepted, or "nothing" and where. After a colon, what to do, if that is not the same.

    Attributes
    ----------
    message, remedy : str
        What is wrong, in a sentence; and what to do, or "".
    """

    def __init__(self, argument: str, got: object, takes: str) -> None:
        self.argument, self.got, self.takes = argument, got, takes
        self.remedy = takes.partition(": ")[2]
        none = takes.startswith("nothing")
        end = f", which is not taken{takes.removeprefix('nothing')}" if none else f"; takes {takes}"
        self.message = f"{argument}: got {got if isinstance(got, str) else shown(got)}{end}"
        super().__init__(self.message)

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[str, object, str]]:
        # Exception's default pickling would call __init__ with the joined message alone.
        return type(self), (self.argument, self.got, self.takes)


def refuse(argument: str, got: object, takes: str) -> NoReturn:
    """Raise `ArgumentError`. Dynamo does not trace its constructor; raised here, its message is shown unchanged."""
    raise ArgumentError(argument, got, takes)


class WorkspaceError(ArgumentError):
    """A workspace is too small, misaligned, on another device, or was made for another plan."""


class BackendError(KsieveError, RuntimeError):
    """A backend cannot run here: missing package, driver or hardware. The message names the remedy."""


def refuse_at_exit() -> None:
    """Raise `BackendError` while the interpreter shuts down, as in ``__del__``: modules can no longer be imported."""
    if sys.meta_path is None:
        raise BackendError("Python is shutting down and imports no module any more: call ksieve before that")


class FileFormatError(KsieveError, ValueError):
    """A file of scores or indices cannot be read; the message names the file and the fault."""


class VerificationError(KsieveError):
    """An answer is not exact. The message is the text of the verdict; `verdict` is the `Verdict`."""

    def __init__(self, message: str, verdict: object = None) -> None:
        self.verdict = verdict
        super().__init__(message)


class GradientWarning(UserWarning):
    """An array was given for values of scores that require grad: those carry none. Once per process."""


def kind_of(value: object) -> str:
    """Qualified name of a value's type, without ``builtins.``."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def shown(value: object) -> str:
    """Represent any value in at most 80 characters of ASCII.

    Python raises for ints of more than 4,300 digits, and an object's own ``repr`` may raise too.
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    try:
        text = str(value) if isinstance(value, (int, float)) else _names.repr(value)
        text = " ".join(text.split())
        text = text if text.isascii() and text.isprintable() else ascii(text)[1:-1]
    except Exception:
        text = kind_of(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


_names = reprlib.Repr()
_names.maxstring = _names.maxother = _SHOWN
