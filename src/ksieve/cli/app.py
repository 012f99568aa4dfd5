"""The command line: the library's commands, and those that other distributions add (`ksieve.cli.further`)."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from ksieve._version import __version__
from ksieve.cli import doctor, exits, further, kernels, screen, selection, terminal, tune
from ksieve.cli.options import as_written, flag, written_names
from ksieve.core.errors import ArgumentError, FileFormatError

SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(
    name="ksieve",
    cls=further.Commands,
    help="Exact Top-K selection over long, ragged score rows, in about one read of the scores. They are read from "
    ".npy and .safetensors files.",
    epilog="Exit codes: 0 done (verify: exact), 1 an answer is not exact, 2 the command could not run, 70 a bug in "
    "ksieve; 128 + n: ended by signal n.",
    **SETTINGS,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        terminal.say(f"ksieve {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, flag("--version", "Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


_JSON = Annotated[bool, flag("--json", "Print one JSON object, and nothing else, on stdout.")]
_QUIET = Annotated[bool, flag("--quiet", "Print only errors: no progress and no summary.")]
_ALL = Annotated[
    bool, flag("--help-all", "Every option, sentence and example.", callback=screen.show_all, is_eager=True)
]


def add(
    group: typer.Typer,
    name: str,
    command: Callable[..., None],
    *examples: str,
    json: bool = True,
    quiet: bool = True,
) -> None:
    """Add a command, its examples, and the options ``--json``, ``--quiet`` and ``--help-all``.

    ``--help`` shows the first example, which works when it is pasted into an empty folder.
    """
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    # One line per paragraph: the terminal decides where to break it.
    help_text = "\n\n".join(" ".join(p.split()) for p in paragraphs)
    group.command(name, cls=screen.Command, help=help_text, epilog="\n\n".join(examples))(
        _with_mode(command, json=json, quiet=quiet)
    )


def _with_mode(command: Callable[..., None], *, json: bool, quiet: bool) -> Callable[..., None]:
    """Add the options of `add` to a command; those of output apply while it runs.

    An error of the library then names the command's option in place of the library's argument.
    """
    signature = inspect.signature(command, eval_str=True)
    output = ({"_json": _JSON} if json else {}) | ({"_quiet": _QUIET} if quiet else {})
    wanted = {"_context": typer.Context, **output, "_all": _ALL}
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in wanted.items()
    ]

    @functools.wraps(command)
    def run(*, _context: typer.Context, _all: bool, _json: bool = False, _quiet: bool = False, **given: Any) -> None:
        terminal.mode.json, terminal.mode.quiet = _json, _quiet
        try:
            command(**given)
        except (ArgumentError, FileFormatError) as error:
            raise as_written(error, written_names(_context.command)) from error
        finally:
            terminal.reset()

    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


SAVE = """python -c "import numpy as n; n.save('s', n.float32(n.random.rand(8, 999)))\""""
"""Makes the file that an example reads."""

for name, command, *examples in (
    ("doctor", doctor.doctor, "ksieve doctor", "ksieve doctor --for vllm", "ksieve doctor --json > machine.json"),
    (
        "select", selection.select,
        f"{SAVE}\nksieve select s.npy --k 64 --out indices.npy",
        "ksieve select scores.npy --k 2048 --lengths lengths.npy --out indices.npy",
        "ksieve select scores.safetensors --k 512 --stats",
        "ksieve select first.safetensors --next second.safetensors --k 2048 --out indices.npy",
        "ksieve select scores.safetensors --k 2048 --policy direct --out indices.safetensors --stats-out stats.csv",
        "torchrun --nproc-per-node 2 -m ksieve select scores.npy --k 2048 --out indices.npy",
    ),
    (
        "verify", selection.verify,
        f"{SAVE}\nksieve select s.npy --k 64 --out i.npy && ksieve verify s.npy i.npy",
        "ksieve verify scores.npy indices.npy --lengths lengths.npy",
        "ksieve verify first.safetensors indices.npy --next second.safetensors",
        "ksieve verify scores.safetensors other_library.npy --sentinel 2147483647",
        "ksieve verify scores.npy indices.npy && echo exact",
    ),
    (
        "plan", selection.plan,
        "ksieve plan --rows 64 --width 128k --k 2048 --device h200",
        "ksieve plan --rows 4096 --width 262144 --k 2048 --device h100 --json",
    ),
    (
        "build", kernels.build,
        "ksieve build --device h200 --rows 64 --width 128k --k 2048",
        "ksieve build",
        "ksieve build --device h100 --device b200 --k 2048",
        "ksieve build --for vllm --k 2048 --max-rows 8192 --max-width 160k",
        "ksieve build --device a100 --family stream_unsampled --width 8192 --dtype bfloat16",
        "ksieve build --device sm_90a --device sm_100a --bundle kernels.zip",
    ),
    ("cache", kernels.cache, "ksieve cache", "ksieve cache --clear"),
    (
        "tune", tune.tune,
        "ksieve tune --quick",
        "ksieve tune --quick --shapes 64x131072,8x1048576 --k 512",
        "ksieve tune",
    ),
):  # fmt: skip
    add(app, name, command, *examples, quiet=name not in ("plan", "cache"))


def main() -> NoReturn:
    """Run the command line and exit with a code of `ksieve.cli.exits.Exit`."""
    exits.run(_invoke)


def _invoke() -> None:
    """Run the command that the arguments name, and let its exceptions through.

    Typer's own ``main`` is not used: it exits with 1 if a pipe is closed or a file ends early.
    """
    terminal.reset()
    command: Any = typer.main.get_command(app)
    command._main_shell_completion({}, "ksieve")
    with command.make_context("ksieve", sys.argv[1:]) as context:
        command.invoke(context)
