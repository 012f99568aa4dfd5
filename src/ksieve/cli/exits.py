"""Exit codes of the command line, and the one function that turns exceptions and signals into them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import typer

from ksieve.cli import terminal
from ksieve.core.errors import KsieveError


class Exit(IntEnum):
    """Exit codes, as docs/reference/cli.md describes them. Those above 128 are 128 plus the signal's number."""

    DONE = 0
    REFUTED = 1
    ERROR = 2
    INTERNAL = 70
    HANGUP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

_debug = False


def set_debug(wanted: bool) -> None:
    """Show tracebacks of errors from now on, or only with ``KSIEVE_DEBUG``."""
    global _debug
    _debug = wanted


def run(command: Callable[[], Any]) -> NoReturn:
    """Run a command and exit with a code of `Exit`; an exception becomes one message on stderr."""
    _tolerate_streams()
    with _signals(), terminal.logged(), warnings.catch_warnings():
        warnings.showwarning = _show_warning
        code = _run(command)
        code = _flush(code)
    sys.exit(code)


def _run(command: Callable[[], Any]) -> int:
    try:
        command()
    except typer.Exit as ended:
        return ended.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _say(terminal.note, "interrupted")
        return Exit.INTERRUPTED
    except SystemExit as ended:
        return _code_of(ended)
    except BrokenPipeError:
        _trace()
        return Exit.BROKEN_PIPE
    except _UsageError as error:
        _show_usage(error)
        return Exit.ERROR
    except Exception as error:
        message = _message(error)
        if message is None:
            return _internal(error)
        _trace()
        _say(terminal.complain, message)
        return Exit.ERROR
    return Exit.DONE


@contextlib.contextmanager
def no_verdict() -> Iterator[None]:
    """Turn an exit with 1 into an error, where no answer is checked: as in the completion of an unknown shell."""
    try:
        yield
    except typer.Exit as ended:
        raise typer.Exit(Exit.ERROR if ended.exit_code == Exit.REFUTED else ended.exit_code) from None
    except SystemExit as ended:
        if ended.code == Exit.REFUTED and not isinstance(ended.__context__, BrokenPipeError):
            raise SystemExit(Exit.ERROR) from None
        raise


def judge(answers: Iterable[bool | None]) -> None:
    """Exit by the verdicts on answers: `Exit.REFUTED` if one is False, `Exit.ERROR` if one is missing (None)."""
    found = list(answers)
    if any(answer is False for answer in found):
        terminal.complain("an answer is not exact: see above")
        raise typer.Exit(Exit.REFUTED)
    if any(answer is not True for answer in found):
        terminal.complain("an answer is missing: something failed, see above")
        raise typer.Exit(Exit.ERROR)


def _message(error: Exception) -> str | None:
    """Message of an error that the user can correct; None for a bug in ksieve."""
    if isinstance(error, KsieveError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"no such file: {_text(error.filename)}"
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return reason if error.filename is None else f"{_text(error.filename)}: {reason}"
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("ksieve"):
        return f"the Python package {error.name} is not installed"
    return None


def _internal(error: BaseException) -> int:
    _trace()
    said = str(error).strip()
    what = type(error).__name__ + (f": {said}" if said else "")
    remedy = "" if _wants_trace() else "; KSIEVE_DEBUG=1 shows where"
    _say(
        terminal.complain,
        f"internal error: {what}\nThis is a fault of ksieve: please report it with the command and what "
        f"`ksieve doctor --json` prints{remedy}",
    )
    return Exit.INTERNAL


def _code_of(ended: SystemExit) -> int:
    """Code of an exit raised below the command line, where 1 and a text mean no verdict."""
    if isinstance(ended.__context__, BrokenPipeError):  # rich leaves so when help is piped into a closed pipe
        return Exit.BROKEN_PIPE
    if ended.code is None:
        return Exit.DONE
    if isinstance(ended.code, int) and ended.code != Exit.REFUTED:
        return ended.code
    return _internal(ended)


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


def _wants_trace() -> bool:
    return _debug or os.environ.get("KSIEVE_DEBUG", "0") not in ("", "0")


def _trace() -> None:
    if _wants_trace():
        _say(terminal.raw_error, traceback.format_exc())


def _say(printer: Callable[[str], None], text: str) -> None:
    """Print on stderr; a failure to write does not change the exit code."""
    with contextlib.suppress(OSError, ValueError):
        printer(text)


def _text(name: Any) -> str:
    return os.fsdecode(name) if isinstance(name, (bytes, str)) else str(name)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _say(terminal.note, f"warning: {message}")


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
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            stream.flush()
        except OSError as error:
            if name == "stdout" and code in (Exit.DONE, Exit.REFUTED):
                code = Exit.BROKEN_PIPE if isinstance(error, BrokenPipeError) else Exit.ERROR
                if code == Exit.ERROR:
                    _say(terminal.complain, f"standard output: {error.strerror}")
            _discard(stream)
        except ValueError:  # closed by a test or an embedding program
            pass
    return code


def _discard(stream: Any) -> None:
    """Redirect a stream's descriptor to the null device, so that its flush at interpreter exit succeeds."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the command, so that unfinished files are removed.

    A signal that the caller ignores (``nohup``) or handles stays so. Repetitions are ignored during the clean-up:
    ``timeout`` sends SIGTERM to the process and to its group.
    """
    wanted = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}
    if threading.current_thread() is not threading.main_thread():
        wanted = set()
    wanted = {number for number in wanted if signal.getsignal(number) is signal.SIG_DFL}

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
