"""`ksieve select`, `verify` and `plan`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from ksieve import api
from ksieve.cli import files, terminal
from ksieve.cli.exits import Exit
from ksieve.cli.options import (
    NAMES,
    Backend,
    BackendName,
    PolicyName,
    StoredK,
    choice,
    count,
    flag,
    keywords,
    of_table,
    option,
    output,
    refuse,
    words,
)
from ksieve.core.arguments import resolve
from ksieve.core.device import DEVICES
from ksieve.core.dtypes import Dtype
from ksieve.core.errors import ArgumentError
from ksieve.core.groups import GROUPS, flat
from ksieve.core.problem import MAX_K, check_k
from ksieve.core.stats import Stats
from ksieve.core.text import seconds_text
from ksieve.files import split
from ksieve.files.scores import JoinedColumns, Scores
from ksieve.files.stream import BLOCK_BYTES
from ksieve.planning.explain import considered
from ksieve.planning.plan import facts_of

ScorePath = Annotated[
    Path, typer.Argument(metavar="SCORES", help="Matrix of scores (rows, width): .npy, or .safetensors.")
]
Further = Annotated[
    list[Path] | None, option("--next", "FILE", "Another file, with the next columns of the same rows; again for more.")
]
TensorName = Annotated[
    str | None,
    option("--tensor", "NAME", 'Tensor of scores, if SCORES holds several. Default: "scores", or the only matrix.'),
]

_BOUNDS = ("RowBounds", "Segments")
"""Groups that `select` does not take: its rows begin with the matrix, and a file is one."""


@of_table(lambda each: each.name == "lengths" or (each.judged and each.where not in _BOUNDS and not each.shape))
def select(
    scores: ScorePath,
    k: StoredK = None,
    tensor: TensorName = None,
    further: Further = None,
    out: Annotated[str | None, output("File for the indices, .npy or .safetensors. Default: none is written.")] = None,
    stats: Annotated[bool, flag("--stats", "Print the routes of the rows, and the scores read.")] = False,
    stats_out: Annotated[
        str | None, output("Write one line of statistics per row, .csv or .npy.", "--stats-out")
    ] = None,
    backend: BackendName = Backend.auto,
    policy: PolicyName = None,
    **options: Any,
) -> None:
    """Select the K largest scores of every row of a file, exactly.

    The file is mapped and read in blocks of rows, and wide rows in tiles of columns, so it may be larger than memory.
    Scores are float32, float16 or bfloat16. Rows are full, unless the tensor "lengths" of SCORES or --lengths says how
    long they are. Indices are int32 of shape (rows, K), by default in no particular order within a row; unused slots of
    a row shorter than K hold -1.

    Rows may lie in several files: with --next, positions count through all of them, one after another.

    Under torchrun the processes share the blocks, on one machine or several that see the file. The first one prints,
    and writes the file that one process writes.
    """
    lengths = options.pop("lengths")
    target = files.optional_target("--out", out, f"{scores.stem}-indices.npy", files.INDEX_SUFFIXES)
    stats_target = files.optional_target("--stats-out", stats_out, f"{scores.stem}-stats.csv", (".csv", ".npy"))
    outputs = {"--out": target, "--stats-out": stats_target}
    paths = [scores, *(further or ())]
    names = ("SCORES", *(f"--next {path}" for path in paths[1:]))
    files.keep_apart(outputs, dict(zip(names, paths, strict=True)) | {"--lengths": lengths, "--policy": policy})
    asked = keywords(options)
    wanted = asked | {"backend": backend.value, "policy": policy, "return_stats": stats or stats_target is not None}
    with files.open_parts(paths, tensor, lengths) as parts, split.ranks() as (rank, world):
        in_rows = len(parts) == 1 and 4 * parts[0].width <= BLOCK_BYTES
        source = parts[0] if in_rows else JoinedColumns(parts)
        slots = suggested_k(source, k)
        if not in_rows:
            refuse(
                {"stats": stats, "stats_out": stats_out, "policy": policy},
                f"nothing with --next or rows of more than {BLOCK_BYTES // 4:,} scores: these are read by tiles",
            )
        if rank:
            split.select(source, slots, lambda begin, indices: None, rank=rank, world=world, **wanted)
            return
        with (
            files.index_writer(target, source.rows, resolve(flat(asked), None).columns(slots)) as write,
            terminal.progress("selecting", source.rows, waiting="loading the kernels") as update,
        ):
            result = split.select(source, slots, write, rank=rank, world=world, progress=update, **wanted)
        assert result is not None  # on the first rank
        if result.stats is not None:
            valid = np.clip(source.lengths.astype(np.int64), 0, source.width)
        shape = {"rows": source.rows, "width": source.width, "dtype": source.dtype, "k": slots}
    terminal.say(
        f"selected k={slots} of {source.rows:,} rows x {source.width:,} on {result.plan.device.name}: selection "
        f"{seconds_text(result.select_seconds)}, reading {seconds_text(result.read_seconds)}"
    )
    if target is not None:
        terminal.say(f"indices: {target}")
    if result.stats is not None:
        if stats:
            terminal.say()
            print_stats(result.stats, valid)
        if stats_target is not None:
            files.write_stats(stats_target, result.stats)
            terminal.say(f"statistics: {stats_target}")
    terminal.result(
        lambda: {
            "scores": str(scores),
            "next": [str(path) for path in paths[1:]],
            **shape,
            "plan": asdict(result.plan),
            "select_seconds": result.select_seconds,
            "read_seconds": result.read_seconds,
            "indices": None if target is None else str(target),
            "statistics": None if stats_target is None else str(stats_target),
            "routes": None if result.stats is None else routes(result.stats, valid),
        }
    )


def suggested_k(source: Scores | JoinedColumns, k: int | None) -> int:
    """Return k, or if it is None the K that the scores are meant for."""
    if k is None and source.k is None:
        raise ArgumentError("--k", "nothing", f"an int from 1 to {MAX_K}: {source.path} stores none")
    return check_k(source.k if k is None else k)


def routes(stats: Stats, valid: NDArray[np.int64]) -> dict[str, dict[str, float]]:
    """Return rows and row scans (scores read over valid scores) per route, and for all rows as "all"."""
    reads = stats.score_reads(valid)
    found: dict[str, dict[str, float]] = {}
    for route, number in stats.route_counts().items():
        at = stats.route == route
        scans = float(reads[at].sum() / max(valid[at].sum(), 1))
        found[route.name.lower()] = {"rows": number, "row_scans": scans}
    found["all"] = {"rows": len(stats), "row_scans": float(reads.sum() / max(valid.sum(), 1))}
    return found


def print_stats(stats: Stats, valid: NDArray[np.int64]) -> None:
    """Print rows, share and row scans per route, then for all rows."""
    rows = []
    for route, found in routes(stats, valid).items():
        share = found["rows"] / len(stats) if route != "all" else 1
        rows.append((route.replace("_", " "), f"{found['rows']:,}", f"{share:.1%}", f"{found['row_scans']:.3f}"))
    terminal.table(("route", "rows", "share", "row scans"), rows)


@of_table(lambda each: each.judged and each.where != "Segments")
def verify(
    scores: ScorePath,
    indices: Annotated[
        Path,
        typer.Argument(
            metavar="INDICES",
            help="Index array of shape (rows, k), int32 or int64: .npy, .npz, .safetensors or a torch file.",
        ),
    ],
    k: Annotated[int | None, count("--k", "K", "Required columns of INDICES. Default: as many as it has.")] = None,
    tensor: TensorName = None,
    further: Further = None,
    sentinel: Annotated[int, option("--sentinel", "INT", "Value of unused slots.")] = -1,
    name: Annotated[str | None, option("--name", "NAME", "Array to read if INDICES holds several.")] = None,
    **options: Any,
) -> None:
    """Check that an index array, from any library, is an exact Top-K answer for a file of scores.

    Every row is checked, for the k of --k, else for as many slots as INDICES has columns, with the options of the call
    that it answers. Exit code 0: exact. 1: not exact, and the first wrong row is explained.

    For an answer of ksieve select --next pass the same files in the same order. Where a row ends inside of one and
    goes on in the next, a wrong row is explained with positions among its valid scores alone.
    """
    from ksieve.checking.verify import verify as check

    answer = files.load_indices(indices, name)
    if answer.ndim == 2 and not answer.shape[1]:
        raise ArgumentError("INDICES", f"{indices}: shape {answer.shape}", "an array with a column for each slot")
    shared = options.pop("lengths") if further else None
    asked = keywords(options)
    if further and any(keyword in GROUPS for keyword in asked):
        raise ArgumentError("--next", "windows, blocks or positions with it", "scores within --lengths alone")
    with (
        files.open_parts([scores, *(further or ())], tensor, shared) as parts,
        terminal.progress("verifying", parts[0].rows) as update,
    ):
        source = JoinedColumns(parts) if further else parts[0]
        if isinstance(source, JoinedColumns) and answer.ndim == 2 and len(answer) == source.rows:
            answer = source.packed(answer)
        verdict = check(source, indices=answer, k=k, sentinel=sentinel, progress=update, **asked)
    terminal.result(lambda: verdict.as_dict() | {"k_from": "columns" if k is None else "--k", "file_k": source.k})
    terminal.say(str(verdict))
    origin = f"from the columns of {indices}" if k is None else "as --k requires"
    meant = "" if source.k in (None, verdict.k) else f"; {source.path} is meant for k={source.k}"
    terminal.say(f"k={verdict.k}: {origin}{meant}")
    if not verdict.ok:
        raise typer.Exit(Exit.REFUTED)


@of_table(lambda each: True, stated=True)
def plan(
    rows: Annotated[int, count("--rows", "M", "Largest number of rows of a call.")],
    width: Annotated[int, count("--width", "N", "Largest number of scores per row.")],
    k: Annotated[int | None, count("--k", "K", "Slots per row, 1 to 1048576.")] = None,
    pitch: Annotated[int | None, count("--pitch", "P", "Scores from one row to the next. Default: the width.")] = None,
    dtype: Annotated[Dtype, choice("--dtype", Dtype, "Score dtype.")] = Dtype.float32,
    device: Annotated[
        str,
        option("--device", "NAME", f"{NAMES}.", autocompletion=words("cpu", "cuda", *DEVICES)),
    ] = "cpu",
    family: Annotated[
        str | None, option("--family", "NAME", "Force a kernel family. Default: the planner's choice.")
    ] = None,
    policy: PolicyName = None,
    explain: Annotated[
        bool, flag("--explain", "Also list the other kernel families of a GPU, and why not those.")
    ] = False,
    **options: Any,
) -> None:
    """Print the plan for a shape: kernel family, time on a GPU, launch geometry, workspace size, and the reason."""
    chosen = api.plan(
        rows=rows, width=width, k=k, pitch=pitch, dtype=dtype.value, device=device, family=family, policy=policy,
        **keywords(options),
    )  # fmt: skip
    others = considered(chosen.problem, chosen.device) if explain else []
    costs = {"cost": None if chosen.cost is None else asdict(chosen.cost)}
    more = {"considered": list(map(asdict, others))} if explain else {}
    terminal.result(lambda: asdict(chosen) | costs | more)
    title, facts = facts_of(chosen)
    terminal.say(title)
    terminal.facts(facts, indent=2)
    if explain:
        terminal.say()
        terminal.table(
            ["family", "threads x CTAs", "waves", "reads", "verdict"],
            [
                [o.family, o.launch, f"{o.waves:.2f}" if o.launch else "", f"{o.reads:.3f}" if o.launch else "",
                 "chosen" if o is others[0] else o.verdict]
                for o in others
            ],
            texts=["verdict"],
        )  # fmt: skip
