"""`ksieve bench gpu` and `ksieve bench floor`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ksieve.cli import files, terminal
from ksieve.cli.options import Dtype, choice
from ksieve.cli.selection import EXIT_REFUTED
from ksieve.errors import ArgumentError

Shapes = Annotated[
    str,
    typer.Option(
        "--shapes", metavar="LIST", help="operator (the paper's 20), decode, quick, or rows x width such as "
        "512x131072, separated by commas."
    ),
]  # fmt: skip
Only = Annotated[
    str | None, typer.Option("--only", metavar="TEXT", help="Of the shapes, those whose MxN contains TEXT.")
]
Lengths = Annotated[
    str | None,
    typer.Option(
        "--lengths", metavar="NAME", help="causal, ragged, full or uniform. What suits the shapes when omitted."
    ),
]
Element = Annotated[Dtype, choice("--dtype", Dtype, "Score dtype.")]
Rounds = Annotated[int, typer.Option("--rounds", metavar="INT", help="Timed rounds; medians are reported.")]
Seed = Annotated[int, typer.Option("--seed", metavar="INT", help="Seed of the scores.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="JSON file to write, or a folder for one named by the bench."),
]


def bench_gpu(
    shapes: Shapes = "operator",
    only: Only = None,
    k: Annotated[int, typer.Option("--k", metavar="K", help="Slots per row.")] = 2048,
    lengths: Lengths = None,
    dtype: Element = Dtype.float32,
    families: Annotated[
        str, typer.Option("--families", metavar="LIST", help="Also time these kernel families, separated by commas.")
    ] = "",
    policies: Annotated[
        str, typer.Option("--policies", metavar="LIST", help="Also time these sampling policies, separated by commas.")
    ] = "",
    variants: Annotated[
        str | None,
        typer.Option(
            "--variants",
            metavar="JSON",
            help="Also time these plans: a JSON list of objects with family, policy and numbers of a plan, or a file "
            "that holds one.",
        ),
    ] = None,
    rounds: Rounds = 7,
    torch_rounds: Annotated[
        int, typer.Option("--torch-rounds", metavar="INT", help="Timed rounds of torch.topk, which is slow; 0: none.")
    ] = 3,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Time selection on this GPU beside torch.topk and the plain-read floor, on the same tensors.

    CUDA-graph replays in rotated rounds on inputs that L2 does not hold; every answer is verified. torch.topk knows no
    lengths and reads whole rows.
    """
    from ksieve.bench import gpu

    text = variants
    if variants is not None and not variants.lstrip().startswith("["):
        text = Path(variants).read_text(encoding="utf-8")
    listed, kind = _shapes(shapes, only)
    extra = gpu.variants_of(_list(families), _list(policies), text)
    path = _target(out, "gpu", shapes, k)
    with terminal.progress("measuring", len(listed), unit="shapes", waiting="starting the GPU") as update:
        payload = gpu.run(
            listed, k, lengths=lengths or kind, dtype=dtype, variants=extra, rounds=rounds, torch_rounds=torch_rounds,
            seed=seed, progress=update, each=_teller(),
        )  # fmt: skip
    results = payload["results"]
    names = list(dict.fromkeys(name for shape in results["shapes"] for name in shape.get("selectors", {})))
    _head(payload)
    columns = ["rows x width", "floor", "TB/s", "family"]
    for name in names:
        columns += [name, "of floor"]
    terminal.table(columns, [_row(shape, names) for shape in results["shapes"]])
    terminal.say()
    for name, mean in results["of_floor"].items():
        terminal.say(
            f"{name}: geometric mean {mean['geometric_mean']:.3f} of the floor, least {mean['least']:.3f}, "
            f"{mean['shapes']} shapes"
        )
    terminal.say(f"microseconds, medians of {rounds} rounds; of floor: plain read / selector, 1 is the best possible")
    for shape in results["shapes"]:
        for name, facts in shape.get("selectors", {}).items():
            if facts.get("error"):
                terminal.note(f"{shape['rows']}x{shape['width']} {name}: {facts['error']}")
    _write(path, payload)
    if "ksieve" in results["inexact"] or any(s["selectors"]["ksieve"].get("error") for s in _measured(results)):
        raise typer.Exit(EXIT_REFUTED)


def bench_floor(
    shapes: Shapes = "operator",
    only: Only = None,
    lengths: Lengths = None,
    dtype: Element = Dtype.float32,
    rounds: Rounds = 7,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Time plain reads of the valid scores on this GPU: what no selector can beat.

    The floor of a shape is its best kernel.
    """
    from ksieve.bench import gpu

    listed, kind = _shapes(shapes, only)
    path = _target(out, "floor", shapes, None)
    with terminal.progress("measuring", len(listed), unit="shapes", waiting="starting the GPU") as update:
        payload = gpu.run_floor(
            listed, lengths=lengths or kind, dtype=dtype, rounds=rounds, seed=seed, progress=update, each=_teller()
        )  # fmt: skip
    measured = list(_measured(payload["results"]))
    names = list(measured[0]["reads"]) if measured else []
    _head(payload)
    terminal.table(
        ["rows x width", "floor", "TB/s", *names],
        [
            [_name(s), f"{s['floor_us']:.1f}", f"{s['floor_terabytes_per_second']:.2f}",
             *(_microseconds(s["reads"][n]) for n in names)]
            for s in measured
        ],
    )  # fmt: skip
    terminal.say(f"microseconds, medians of {rounds} rounds")
    _write(path, payload)


def _shapes(text: str, only: str | None) -> tuple[list[tuple[int, int]], str]:
    from ksieve.bench.gpu import SHAPES

    listed: list[tuple[int, int]] = []
    kind = "causal"
    for part in _list(text):
        if part in SHAPES:
            some, kind = SHAPES[part]
            listed += some
            continue
        rows, _, width = part.lower().partition("x")
        if not (rows.isdigit() and width.isdigit() and int(rows) and int(width)):
            raise ArgumentError("--shapes", repr(part), f"{', '.join(SHAPES)}, or rows x width such as 512x131072")
        listed.append((int(rows), int(width)))
    chosen = [shape for shape in listed if only is None or only in f"{shape[0]}x{shape[1]}"]
    if not chosen:
        raise ArgumentError("--shapes", repr(text) + (f" --only {only}" if only else ""), "at least one shape")
    return chosen, kind


def _teller() -> Callable[[dict[str, Any]], None] | None:
    """Where no progress bar is seen, a line per shape: what an interrupted run has measured is not lost."""
    if terminal.stderr().is_terminal:
        return None

    def tell(shape: dict[str, Any]) -> None:
        if "skipped" in shape:
            terminal.note(f"{_name(shape)}: skipped, {shape['skipped']}")
            return
        times = [f"floor {shape['floor_us']:.1f} us ({shape['floor_kernel']})"]
        for name, facts in shape["selectors"].items():
            of_floor = f" ({facts['of_floor']:.2f})" if "of_floor" in facts else ""
            times.append(f"{name} {facts.get('error') or _microseconds(facts) + of_floor}")
        terminal.note(f"{_name(shape)}: {', '.join(times)}")

    return tell


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _target(out: Path | None, bench: str, shapes: str, k: int | None) -> Path | None:
    if out is None:
        return None
    folder = out.is_dir()
    files.check_output("--out", None if folder else out, (".json",))
    tail = shapes if shapes.isalnum() else "shapes"
    return out / f"{bench}-{tail}{f'-k{k}' if k else ''}.json" if folder else out


def _write(path: Path | None, payload: dict[str, Any]) -> None:
    from ksieve.bench import record

    if path is not None:
        written = record.write_json(path.absolute(), payload)
        terminal.say(f"written: {written.relative_to(Path.cwd()) if written.is_relative_to(Path.cwd()) else written}")


def _head(payload: dict[str, Any]) -> None:
    gpu = payload["environment"].get("gpu") or {}
    devices, settings = gpu.get("devices") or [{}], payload["settings"]
    k = f", top {settings['k']:,}" if "k" in settings else ""
    terminal.say(
        f"{devices[0].get('name', 'GPU')}, {settings['dtype']}{k}, {settings['lengths']} lengths", style="bold"
    )
    terminal.say()


def _measured(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [shape for shape in results["shapes"] if "skipped" not in shape]


def _name(shape: dict[str, Any]) -> str:
    return f"{shape['rows']} x {shape['width']}"


def _microseconds(facts: dict[str, Any]) -> str:
    if "median_us" not in facts:
        return "failed"
    return f"{facts['median_us']:.1f}" + (" INEXACT" if facts.get("exact") is False else "")


def _row(shape: dict[str, Any], names: list[str]) -> list[str]:
    if "skipped" in shape:
        return [_name(shape), "skipped", "", shape["skipped"]] + [""] * (2 * len(names))
    line = [_name(shape), f"{shape['floor_us']:.1f}", f"{shape['floor_terabytes_per_second']:.2f}"]
    line.append(shape["selectors"].get("ksieve", {}).get("family", ""))
    for name in names:
        facts = shape["selectors"].get(name, {})
        share = facts.get("of_floor", math.nan)
        line += [_microseconds(facts) if facts else "", f"{share:.2f}" if math.isfinite(share) else ""]
    return line
