"""Every exception that ksieve raises on purpose.

All of them derive from `KsieveError`, so that one ``except`` clause catches what this package means to
say and nothing else.
"""

from __future__ import annotations

import reprlib

_SHOWN = 80
"""Most characters of a value in a message."""


class KsieveError(Exception):
    """Base class of all errors raised by ksieve."""


class ArgumentError(KsieveError, ValueError):
    """A caller's argument cannot be used; raised before any kernel is launched or any output written.

    Parameters
    ----------
    argument : str
        Name of the offending argument, as the caller wrote it.
    got : object
        What was passed, in words or as a value.
    takes : str
        What would have been accepted.
    """

    def __init__(self, argument: str, got: object, takes: str) -> None:
        self.argument = argument
        self.got = got
        self.takes = takes
        super().__init__(f"{argument}: got {got if isinstance(got, str) else shown(got)}; takes {takes}")

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[str, object, str]]:
        # Exception's default pickling would replay __init__ with the joined message alone.
        return type(self), (self.argument, self.got, self.takes)


class WorkspaceError(ArgumentError):
    """A workspace is too small, misaligned, on another device, or was made for another plan."""


class BackendError(KsieveError, RuntimeError):
    """A backend cannot run here: missing package, driver or hardware. The message names the remedy."""


class CaptureFormatError(KsieveError, ValueError):
    """A file is not a readable score capture; the message names the file and what is wrong with it."""


class VerificationError(KsieveError):
    """An answer is not exact; the message is the verdict's text and `verdict` the verdict itself."""

    def __init__(self, message: str, verdict: object = None) -> None:
        self.verdict = verdict
        super().__init__(message)


class GradientWarning(UserWarning):
    """Scores that require grad were selected with their values, through which no gradient flows; said once."""


def kind_of(value: object) -> str:
    """Name the type of a value, as one would import it."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def shown(value: object) -> str:
    """Say what was passed, in at most 80 characters of ASCII, whatever it is.

    Python itself refuses to print ints of 4,300 digits and more, and an object's own ``repr`` may raise.
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
