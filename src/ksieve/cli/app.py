"""The command tree, in the order that ``--help`` lists it, and what becomes of errors."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

from ksieve import __version__
from ksieve.cli import (
    ablation,
    bench,
    captures,
    chain,
    doctor,
    exits,
    gpu,
    kernels,
    measure,
    replay,
    selection,
    serving,
    study,
    terminal,
)
from ksieve.cli.options import flag

_SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

app = typer.Typer(
    name="ksieve",
    help="Exact Top-K selection over long, ragged score rows, at the speed of one read.",
    epilog="Exit codes: 0 done (verify: exact), 1 an answer was refuted, 2 the command could not run, 70 a fault of "
    "ksieve; 128 + n: ended by signal n.",
    **_SETTINGS,
)

bench_app = typer.Typer(help="Measure a backend beside other libraries, on the same rows.", **_SETTINGS)


def _print_version(wanted: bool) -> None:
    if wanted:
        terminal.say(f"ksieve {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, flag("--version", "Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, flag("--debug", "Show the Python traceback of an error.")] = False,
) -> None:
    exits.set_debug(debug)


_JSON = Annotated[bool, flag("--json", "Print the facts as one JSON object on stdout, and nothing else there.")]
_QUIET = Annotated[bool, flag("--quiet", "Print neither progress nor a summary, only errors.")]


def _add(
    group: typer.Typer,
    name: str,
    command: Callable[..., None],
    *examples: str,
    json: bool = True,
    quiet: bool = True,
) -> None:
    """Add a command with the examples that its ``--help`` ends with, and the options that say what it prints."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    # One line per paragraph: the terminal decides where to break it.
    help_text = escape("\n\n".join(" ".join(p.split()) for p in paragraphs))
    epilog = "\n\n".join(["[bold]Examples[/]", *(f"$ {line}" for line in examples)])
    group.command(name, help=help_text, epilog=epilog)(_with_mode(command, json=json, quiet=quiet))


def _with_mode(command: Callable[..., None], *, json: bool, quiet: bool) -> Callable[..., None]:
    """Give a command ``--json`` and ``--quiet``, which hold while it runs."""
    signature = inspect.signature(command, eval_str=True)
    added = {"_json": _JSON} if json else {}
    if quiet:
        added["_quiet"] = _QUIET
    extra = [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=a) for n, a in added.items()
    ]

    @functools.wraps(command)
    def run(*, _json: bool = False, _quiet: bool = False, **given: Any) -> None:
        terminal.mode.json, terminal.mode.quiet = _json, _quiet
        try:
            command(**given)
        finally:
            terminal.reset()

    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


_add(
    app,
    "demo",
    measure.demo,
    "ksieve demo",
    "ksieve demo --k 512 my_scores.safetensors",
)
_add(
    app,
    "doctor",
    doctor.doctor,
    "ksieve doctor",
    "ksieve doctor --json > machine.json",
)
_add(
    app,
    "select",
    selection.select,
    "ksieve select scores.safetensors --k 2048 --out indices.npy",
    "ksieve select scores.safetensors --k 512 --stats",
    "ksieve select scores.safetensors --k 2048 --policy direct --out indices.safetensors --stats-out stats.csv",
)
_add(
    app,
    "verify",
    selection.verify,
    "ksieve verify scores.safetensors indices.npy",
    "ksieve verify scores.safetensors other_library.npy --sentinel 2147483647",
    "ksieve verify scores.safetensors indices.npy && echo exact",
)
_add(
    app,
    "plan",
    selection.plan,
    "ksieve plan --rows 64 --width 128k --k 2048",
    "ksieve plan --rows 4096 --width 262144 --k 2048 --device h200",
    quiet=False,
)
_add(
    app,
    "synth",
    captures.synth,
    "ksieve synth endpoint_structured scores.safetensors --rows 64 --width 131072",
    "ksieve synth relu_plateau plateau.safetensors --rows 99 --width 65536 --lengths ragged",
)
_add(
    app,
    "info",
    captures.info,
    "ksieve info examples/indexer_capture.safetensors",
    quiet=False,
)
_add(
    app,
    "import",
    captures.import_,
    "ksieve import scores.npy scores.safetensors",
    "ksieve import scores.pt scores.safetensors --lengths lengths.npy",
    "ksieve import run.npz scores.safetensors --name logits",
    "ksieve import stack.safetensors scores.safetensors --name logits --index 3,0 --lengths causal",
)
_add(
    app,
    "study",
    study.study,
    "ksieve study scores.safetensors",
    "ksieve study early.safetensors late.safetensors --k 2048 --rows 0 --out study-of-two",
    json=False,
)
_add(
    app,
    "calibrate",
    study.calibrate,
    "ksieve calibrate scores.safetensors --out policy.json",
    "ksieve calibrate scores.safetensors --k 512 --cost cpu && ksieve select scores.safetensors --policy policy.json",
    json=False,
)
_add(
    app,
    "build",
    kernels.build,
    "ksieve build",
    "ksieve build --arch sm_90a --arch sm_100a --k 2048",
    "ksieve build --arch sm_80 --family persistent_exact --width 8192 --dtype bfloat16",
)
_add(
    app,
    "cache",
    kernels.cache,
    "ksieve cache",
    "ksieve cache --clear",
    quiet=False,
)

_add(
    app,
    "replay",
    replay.replay,
    "ksieve replay --example",
    "ksieve replay 430K --backend cuda --out benchmarks/results --figures docs/figures",
    "ksieve replay --prompt 100000 --step-tokens 8192 --decode-steps 100 --save trace.json",
    "ksieve replay recording.safetensors",
)

app.add_typer(bench_app, name="bench")
_add(
    bench_app,
    "cpu",
    measure.bench_cpu,
    "ksieve bench cpu --out benchmarks/results",
    "ksieve bench cpu --shape 16x131072 --rounds 3 --no-adversarial --no-starts",
    "ksieve bench cpu --source endpoint --source scores.safetensors --out result.json",
)
_add(
    bench_app,
    "gpu",
    gpu.bench_gpu,
    "ksieve bench gpu --shapes 512x131072,64x262144",
    "ksieve bench gpu --shapes decode --only x131072 --families split_sampled,cluster_exact",
    "ksieve bench gpu --shapes 512x131072 --torch-rounds 0 --variants "
    '\'[{"family":"persistent_sampled","ctas_per_sm":3}]\'',
)
_add(
    bench_app,
    "floor",
    gpu.bench_floor,
    "ksieve bench floor",
    "ksieve bench floor --shapes decode --out benchmarks/results",
)
_add(
    bench_app,
    "operator",
    gpu.bench_operator,
    "ksieve bench operator --out benchmarks/results --figures docs/figures",
    "ksieve bench operator --k 512 --peers none --torch-rounds 0",
    "ksieve bench operator --scores factors:indexer.safetensors --only x262144",
)
_add(
    bench_app,
    "decode",
    gpu.bench_decode,
    "ksieve bench decode --out benchmarks/results --figures docs/figures",
    "ksieve bench decode --only x131072 --peers sglang,flashinfer",
)
_add(
    bench_app,
    "short",
    gpu.bench_short,
    "ksieve bench short --out benchmarks/results",
    "ksieve bench short --only x16384 --k 512",
)
_add(
    bench_app,
    "trace",
    bench.bench_trace,
    "ksieve bench trace --out benchmarks/results",
    "ksieve bench trace --prompts 430K --scores factors:indexer.safetensors",
    "ksieve bench trace --prompts 100000,200000 --step-tokens 8192 --budget-bytes 1000000000",
)
_add(
    bench_app,
    "worst",
    bench.bench_worst,
    "ksieve bench worst --out benchmarks/results",
    "ksieve bench worst --shapes 1024x262144 --inputs relu_plateau,descending,stride_hole",
)
_add(
    bench_app,
    "planner",
    bench.bench_planner,
    "ksieve bench planner --out benchmarks/results",
    "ksieve bench planner --shapes 64x131072,256x131072",
)
_add(
    bench_app,
    "options",
    serving.bench_options,
    "ksieve bench options --out benchmarks/results",
    "ksieve bench options --shapes 64x65536,512x131072 --only 'page table; by value'",
)
_add(
    bench_app,
    "ablation",
    ablation.bench_ablation,
    "ksieve bench ablation --out benchmarks/results --figures docs/figures",
    "ksieve bench ablation --parts margin,rescue --requests 245K",
    "ksieve bench ablation --backend cpu --requests 65536 --step-tokens 128 --budget-bytes 33554432 --k 1024",
)
_add(
    bench_app,
    "chain",
    chain.bench_chain,
    "ksieve bench chain --out benchmarks/results --figures docs/figures",
    "ksieve bench chain --requests 100000 --heads 32 --peers none",
    "ksieve bench chain --producer deep_gemm",
)
_add(
    bench_app,
    "plot",
    bench.bench_plot,
    "ksieve bench plot benchmarks/results/gpu-operator-k2048.json --figures figures",
    json=False,
)


def main() -> NoReturn:
    """Run the command line and exit with a code of `ksieve.cli.exits.EXIT_CODES`."""
    exits.run(_invoke)


def _invoke() -> None:
    """Run the command that the arguments name; what it raises is raised here.

    Typer's own ``main`` is not taken: it exits with 1 where a pipe is closed or a file ends early.
    """
    terminal.reset()
    exits.set_debug(False)
    command: Any = typer.main.get_command(app)
    with exits.no_verdict():
        command._main_shell_completion({}, "ksieve")
        context = command.make_context("ksieve", sys.argv[1:])
    with context:
        command.invoke(context)
