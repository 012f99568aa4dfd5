"""`ksieve bench` of shapes on a GPU: gpu, operator, decode, short and floor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ksieve.cli import exits, files, terminal
from ksieve.cli.options import Dtype
from ksieve.cli.sizes import parse_shape
from ksieve.core.errors import ArgumentError
from ksieve.core.paths import read_utf8
from ksieve_lab.cli import checks
from ksieve_lab.cli.options import (
    Element,
    Families,
    Figures,
    K,
    Lengths,
    Only,
    Out,
    Peers,
    Policies,
    Rounds,
    Scores,
    Seed,
    Shapes,
    TorchRounds,
    Variants,
)


def bench_gpu(
    shapes: Shapes = "operator",
    only: Only = None,
    k: K = 2048,
    lengths: Lengths = None,
    dtype: Element = Dtype.float32,
    scores: Scores = "endpoint",
    families: Families = "",
    policies: Policies = "",
    variants: Variants = None,
    peers: Peers = "all",
    rounds: Rounds = 7,
    torch_rounds: TorchRounds = 3,
    seed: Seed = 0,
    out: Out = None,
    figures: Figures = None,
) -> None:
    """Time selection on this GPU, other libraries, and a plain read, on the same tensors.

    CUDA-graph replays in rotated rounds on inputs that are not in L2; every answer is verified. Libraries that are not
    installed are listed and left out. torch.topk takes no lengths and reads whole rows.
    """
    _measure(
        "gpu", shapes, only, k, lengths, dtype, scores, families, policies, variants, peers, rounds, torch_rounds,
        seed, out, figures,
    )  # fmt: skip


def _named(name: str, doc: str, *, torch_default: int = 1) -> Callable[..., None]:
    """Make a command for a named list of shapes."""

    def command(
        only: Only = None,
        k: K = 2048,
        lengths: Lengths = None,
        dtype: Element = Dtype.float32,
        scores: Scores = "endpoint",
        families: Families = "",
        policies: Policies = "",
        variants: Variants = None,
        peers: Peers = "all",
        rounds: Rounds = 7,
        torch_rounds: TorchRounds = torch_default,
        seed: Seed = 0,
        out: Out = None,
        figures: Figures = None,
    ) -> None:
        _measure(
            name, name, only, k, lengths, dtype, scores, families, policies, variants, peers, rounds, torch_rounds,
            seed, out, figures,
        )  # fmt: skip

    command.__doc__ = doc
    return command


bench_operator = _named(
    "operator",
    """Time the paper's operator matrix: 512 to 8,192 rows of 128K to 1M scores, the last rows of a prefill.

    Everything else is as in bench gpu.
    """,
)
bench_decode = _named(
    "decode",
    """Time decode batches: 1 to 256 rows of 8K to 1M scores, 80 to 100 % of them valid.

    Inputs rotate so that none is in L2. Everything else is as in bench gpu.
    """,
)
bench_short = _named(
    "short",
    """Time short rows: 64 to 8,192 rows of 2,049 to 65,536 scores, 80 to 100 % of them valid.

    Everything else is as in bench gpu.
    """,
)


def _measure(
    bench: str,
    shapes: str,
    only: str | None,
    k: int,
    lengths: str | None,
    dtype: Dtype,
    scores: str,
    families: str,
    policies: str,
    variants: str | None,
    peers: str,
    rounds: int,
    torch_rounds: int,
    seed: int,
    out: str | None,
    figures: Path | None,
) -> None:
    from ksieve_lab.bench import gpu
    from ksieve_lab.bench.variants import variants_of

    text = variants
    if variants is not None and not variants.lstrip().startswith("["):
        # Characters that are no UTF-8 make it no JSON, which is an error that names the option.
        try:
            text = read_utf8(variants, errors="replace")
        except ValueError as error:
            raise ArgumentError("--variants", variants, f"a JSON list of objects, or a file of one ({error})") from None
    listed, kind = shapes_of(shapes, only)
    extra = variants_of(checks.listed(families), checks.listed(policies), text)
    tail = (shapes if shapes.isalnum() else "shapes") + (f"-{scores.partition(':')[0]}" if scores != "endpoint" else "")
    path = target(out, f"gpu-{tail}-k{k}", scores)
    ready(figures)
    with terminal.progress("compiling", unit="kernels", waiting="starting the GPU") as update:
        gpu.prepare(listed, k, dtype=dtype, variants=extra, progress=update)
    with terminal.progress("measuring", len(listed), unit="shapes") as update:
        payload = gpu.run(
            listed, k, lengths=lengths or kind, dtype=dtype, source=scores, variants=extra, peer_names=peers_of(peers),
            rounds=rounds, torch_rounds=torch_rounds, seed=seed, name=bench, progress=update, each=teller(),
        )  # fmt: skip
    results = payload["results"]
    names = list(dict.fromkeys(name for shape in results["shapes"] for name in shape.get("selectors", {})))
    head(payload)
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
    beside = results["over_best_peer"]
    if beside:
        terminal.say(
            f"ksieve over the fastest exact peer: geometric mean {beside['geometric_mean']:.2f}x, least "
            f"{beside['least']:.2f}x, {beside['shapes']} shapes"
        )
    terminal.say(f"microseconds, medians of {rounds} rounds; of floor: plain read / selector, 1 is the best possible")
    _published(payload)
    remarks(results["shapes"])
    skipped(results)
    finish(path, payload, figures)
    failed = [None for s in measured(results) if s["selectors"]["ksieve"].get("error")]
    exits.judge(["ksieve" not in results["inexact"], *failed])


def bench_floor(
    shapes: Shapes = "operator",
    only: Only = None,
    lengths: Lengths = None,
    dtype: Element = Dtype.float32,
    rounds: Rounds = 7,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Time plain reads of the valid scores on this GPU, a lower bound for every selector.

    The floor of a shape is its best kernel.
    """
    from ksieve_lab.bench import gpu

    listed, kind = shapes_of(shapes, only)
    path = target(out, f"floor-{shapes if shapes.isalnum() else 'shapes'}")
    with terminal.progress("measuring", len(listed), unit="shapes", waiting="starting the GPU") as update:
        payload = gpu.run_floor(
            listed, lengths=lengths or kind, dtype=dtype, rounds=rounds, seed=seed, progress=update, each=teller()
        )  # fmt: skip
    found = list(measured(payload["results"]))
    names = list(found[0]["reads"]) if found else []
    head(payload)
    terminal.table(
        ["rows x width", "floor", "TB/s", *names],
        [
            [shape_name(s), f"{s['floor_us']:.1f}", f"{s['floor_terabytes_per_second']:.2f}",
             *(microseconds(s["reads"][n]) for n in names)]
            for s in found
        ],
    )  # fmt: skip
    terminal.say(f"microseconds, medians of {rounds} rounds")
    finish(path, payload, None)


# ---- output of every GPU bench command --------------------------------------------------------------------


def shapes_of(text: str, only: str | None) -> tuple[list[tuple[int, int]], str]:
    """Shapes of a ``--shapes`` list, and the lengths that suit them."""
    from ksieve_lab.bench.shape_lists import SHAPES

    listed: list[tuple[int, int]] = []
    kind = "causal"
    for part in checks.listed(text):
        if part in SHAPES:
            some, kind = SHAPES[part]
            listed += some
            continue
        takes = f"{', '.join(SHAPES)}, or rows x width such as 512x131072 or 512x128k"
        listed.append(parse_shape("--shapes", part, takes))
    chosen = [shape for shape in listed if only is None or only in f"{shape[0]}x{shape[1]}"]
    if not chosen:
        raise ArgumentError("--shapes", repr(text) + (f" --only {only}" if only else ""), "at least one shape")
    return chosen, kind


def peers_of(text: str) -> list[str] | None:
    """Names of a ``--peers`` list; None for all."""
    return None if text == "all" else [] if text == "none" else checks.listed(text)


def teller() -> Callable[[dict[str, Any]], None] | None:
    """Print a line per case where there is no progress bar, so that an interrupted run shows its measurements."""
    if terminal.stderr().is_terminal:
        return None

    def tell(case: dict[str, Any]) -> None:
        name = " ".join(filter(None, (case.get("trace"), case.get("family"), shape_name(case))))
        if "skipped" in case:
            terminal.note(f"{name}: skipped, {case['skipped']}")
            return
        times = [f"floor {case['floor_us']:.1f} us ({case['floor_kernel']})"] if "floor_us" in case else []
        for selector, facts in case["selectors"].items():
            of_floor = f" ({facts['of_floor']:.2f})" if "of_floor" in facts else ""
            why = facts.get("error") or facts.get("unsupported")
            times.append(f"{selector} {why or microseconds(facts) + of_floor}")
        terminal.note(f"{name}: {', '.join(times)}")

    return tell


def target(out: str | Path | None, stem: str, scores: str | None = None) -> Path | None:
    """File to write: the one asked for, or one named `stem` in the folder asked for; not the one with the scores."""
    path = files.optional_target("--out", out, f"{stem}.json", (".json",))
    files.keep_apart({"--out": path}, {"--scores": scores and scores.removeprefix("factors:")})
    return path


def ready(figures: Path | None) -> None:
    """Refuse to measure for a figure that cannot be drawn or written afterwards."""
    if figures is not None:
        files.check_folder("--figures", figures)
        from ksieve_lab.report.figures import require_matplotlib

        require_matplotlib()


def finish(path: Path | None, payload: dict[str, Any], figures: Path | None) -> None:
    """Write the result file and draw the figures that were asked for, and say where they are."""
    from ksieve_lab.bench import record

    if path is not None:
        terminal.say(f"written: {_short(record.write_json(path.absolute(), payload))}")
    if figures is not None:
        from ksieve_lab.report.figures import draw

        stem = path.stem if path is not None else payload["bench"]
        for drawn in draw(payload, figures.absolute(), stem):
            terminal.say(f"drawn: {_short(drawn)}")
    terminal.result(lambda: payload)


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def head(payload: dict[str, Any]) -> None:
    """Print the device, dtype, k and lengths of a measurement."""
    from ksieve_lab.bench.scores import lengths_text

    gpu = payload["environment"].get("gpu") or {}
    devices, settings = gpu.get("devices") or [{}], payload["settings"]
    k = f", top {settings['k']:,}" if "k" in settings else ""
    lengths = lengths_text(settings["lengths"])
    terminal.say(f"{devices[0].get('name', 'GPU')}, {settings['dtype']}{k}, {lengths}", style="bold")
    terminal.say()


def remarks(cases: Sequence[dict[str, Any]]) -> None:
    """Print why selectors have no time."""
    told: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for name, facts in case.get("selectors", {}).items():
            why = facts.get("error") or facts.get("unsupported")
            if why:
                told.setdefault((name, why), []).append(f"{case['rows']}x{case['width']}")
    for (name, why), where in told.items():
        some = ", ".join(dict.fromkeys(where[:4])) + (f" and {len(where) - 4} more" if len(where) > 4 else "")
        terminal.note(f"{some} {name}: {why}")


def skipped(results: dict[str, Any]) -> None:
    """Print which libraries were left out, and why."""
    reasons: dict[str, list[str]] = {}
    for name, reason in results.get("peers_skipped", {}).items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        terminal.note(f"not compared: {', '.join(names)} ({reason})")


def measured(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Shapes that were not skipped."""
    return [shape for shape in results["shapes"] if "skipped" not in shape]


def shape_name(shape: dict[str, Any]) -> str:
    """Write a shape."""
    return f"{shape['rows']} x {shape['width']}"


def microseconds(facts: dict[str, Any]) -> str:
    """Write a time, or why there is none."""
    if "median_us" not in facts:
        return "-" if "unsupported" in facts else "failed"
    return f"{facts['median_us']:.1f}" + (" INEXACT" if facts.get("exact") is False else "")


def _row(shape: dict[str, Any], names: list[str]) -> list[str]:
    if "skipped" in shape:
        return [shape_name(shape), "skipped", "", shape["skipped"]] + [""] * (2 * len(names))
    line = [shape_name(shape), f"{shape['floor_us']:.1f}", f"{shape['floor_terabytes_per_second']:.2f}"]
    line.append(shape["selectors"].get("ksieve", {}).get("family", ""))
    for name in names:
        facts = shape["selectors"].get(name, {})
        share = facts.get("of_floor", math.nan)
        line += [microseconds(facts) if facts else "", f"{share:.2f}" if math.isfinite(share) else ""]
    return line


def _published(payload: dict[str, Any]) -> None:
    """Print published times of the same shapes, where there are any, apart from the measured ones."""
    from ksieve_lab.bench import anchors

    found = anchors.published(anchors.load(), payload)
    if not found:
        return
    names = list(dict.fromkeys(name for times in found.values() for name in times))
    own = {f"{s['rows']}x{s['width']}": s for s in measured(payload["results"])}
    terminal.say()
    terminal.say(f"Microseconds {anchors.LABEL}", style="bold")
    rows = []
    for shape, times in found.items():
        mine = own.get(shape, {}).get("selectors", {}).get("ksieve", {})
        rows.append([
            shape.replace("x", " x "), microseconds(mine) if mine else "",
            *(f"{times[name]:.1f}" if name in times else "" for name in names),
        ])  # fmt: skip
    terminal.table(["rows x width", "ksieve, here", *names], rows)
