"""Exit codes of the command line, and the one function that turns exceptions and signals into them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import typer

from ksieve.cli import terminal
from ksieve.core.errors import KsieveError


class Exit(IntEnum):
    """Exit codes, as the page of the command line describes them. Those above 128 are 128 plus the signal's number."""

    DONE = 0
    REFUTED = 1
    ERROR = 2
    INTERNAL = 70
    HANGUP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def run(command: Callable[[], Any]) -> NoReturn:
    """Run a command and exit with a code of `Exit`; an exception becomes one message on stderr."""
    _tolerate_streams()
    with _signals(), terminal.logged(), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _say(terminal.note, f"warning: {message}")
        code = _run(command)
        code = _flush(code)
    sys.exit(code)


def _run(command: Callable[[], Any]) -> int:
    try:
        command()
    except typer.Exit as ended:  # typer's own 1, as of a completion for an unknown shell, is no verdict
        return ended.exit_code if ended.exit_code != Exit.REFUTED or isinstance(ended.exit_code, Exit) else Exit.ERROR
    except (KeyboardInterrupt, typer.Abort):
        _say(terminal.note, "interrupted")
        return Exit.INTERRUPTED
    except SystemExit as ended:
        if isinstance(ended.code, str):
            _say(terminal.complain, ended.code)
        code = ended.code or Exit.DONE
        return code if isinstance(code, int) and code != Exit.REFUTED else Exit.ERROR
    except BrokenPipeError:
        _trace()
        return Exit.BROKEN_PIPE
    except _UsageError as error:
        _show_usage(error)
        return Exit.ERROR
    except Exception as error:
        _trace()
        message = _message(error)
        _say(terminal.complain, _internal(error) if message is None else message)
        return Exit.INTERNAL if message is None else Exit.ERROR
    return Exit.DONE


def _message(error: Exception) -> str | None:
    """Message of an error that the user can correct; None for a bug in ksieve."""
    if isinstance(error, KsieveError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    if isinstance(error, OSError):
        why, name = error.strerror or str(error), error.filename
        return why if name is None else f"{os.fsdecode(name) if isinstance(name, bytes) else name}: {why}"
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("ksieve"):
        return f"the Python package {error.name} is not installed"
    return None


def _internal(error: Exception) -> str:
    said = str(error).strip()
    what = type(error).__name__ + (f": {said}" if said else "")
    return (
        f"internal error: {what}\nThis is a fault of ksieve: please report it with the command and what "
        "`ksieve doctor --json` prints; KSIEVE_DEBUG=1 shows where"
    )


def _show_usage(error: Any) -> None:
    """Print the fault of the arguments; for a command without arguments, its help."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        with contextlib.suppress(BrokenPipeError):
            error.show()
        return
    hint = f"\nSee {context.command_path} --help" if context is not None else ""
    message = error.format_message().replace(": Value error, ", ": ")  # words of pydantic, through which typer reads
    _say(terminal.complain, f"{message}{hint}")


def _trace() -> None:
    if os.environ.get("KSIEVE_DEBUG", "0") not in ("", "0"):
        _say(terminal.raw_error, traceback.format_exc())


def _say(printer: Callable[[str], None], text: str) -> None:
    """Print on stderr; a failure to write does not change the exit code."""
    with contextlib.suppress(OSError, ValueError):
        printer(text)


def _tolerate_streams() -> None:
    """Escape characters that the locale cannot encode, and replace a closed stream by the null device."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (for the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _flush(code: int) -> int:
    """Flush stdout while a failure can still be reported; at interpreter exit it would give exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            if stream is sys.stdout and code in (Exit.DONE, Exit.REFUTED):
                code = Exit.BROKEN_PIPE if isinstance(error, BrokenPipeError) else Exit.ERROR
                if code == Exit.ERROR:
                    _say(terminal.complain, f"standard output: {error.strerror}")
            # To the null device, so that the flush at interpreter exit succeeds.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the command, so that unfinished files are removed.

    A signal that the caller ignores (``nohup``) or handles stays so. Repetitions are ignored during the clean-up:
    ``timeout`` sends SIGTERM to the process and to its group.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    wanted = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]

    def leave(number: int, _: Any) -> NoReturn:
        for each in wanted:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in wanted:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_DFL)
