"""A call, parsed once: the checked problem, the arrays, and their descriptions.

`parse` inspects each array once. Backends and observers read addresses, shapes and strides from the `Call`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ksieve.core import arguments, problem, table
from ksieve.core.arrays import ArrayInfo, as_numpy, inspect, is_array, plain_tensor
from ksieve.core.errors import ArgumentError, kind_of, refuse, shown
from ksieve.core.leading import of_rows, of_segments
from ksieve.core.options import Options
from ksieve.core.problem import MAX_K, Problem, Shape, check_k, is_int

NUMBERS = ("k", *table.names(lambda option: option.shape in ("rows", "requests")))
"""Arrays of one number for each row, or request."""
OUTPUTS = ("out", *table.OUTPUTS)


@dataclass(frozen=True, slots=True)
class Call:
    """One checked call.

    `leading`: shape of the scores but for their last dimension; the rows are those of all leading dimensions, in C
    order. `live`: `num_rows` where it is an int, clamped to [0, rows]; else all rows. `described`: description of each
    array that was given, by the name of its argument; all are on the scores' device. Scores and outputs are described
    as the matrix of their rows, and arrays of one number a row as vectors. Two leading strides take one dimension more
    (`ksieve.core.leading`). "ends" is stored as "lengths" (`Options.windows` states which of the two it is). "k" is
    present for an array k. `arrays`: the arrays themselves, by the same names.
    """

    problem: Problem
    leading: Shape
    live: int
    described: Mapping[str, ArrayInfo]
    arrays: Mapping[str, Any]

    @property
    def scores(self) -> ArrayInfo:
        """Description of the scores."""
        return self.described["scores"]

    @property
    def shape(self) -> Shape:
        """Shape of the result."""
        return (*self.leading, self.problem.columns)

    @property
    def strided(self) -> bool:
        """Whether any array has leading strides that kernels take only in a specialisation of their own."""
        return any(len(info.shape) > (1 if name in NUMBERS else 2) for name, info in self.described.items())

    def host(self, name: str) -> NDArray[Any]:
        """View an array on the host as it is described."""
        array, info = as_numpy(self.arrays[name]), self.described[name]
        if array.shape == info.shape:
            return array
        return np.lib.stride_tricks.as_strided(array, info.shape, [s * info.itemsize for s in info.strides])

    def address(self, name: str) -> int:
        """Address of an array; 0 if it was not given."""
        info = self.described.get(name)
        return info.pointer if info is not None else 0


def parse(
    scores: Any,
    lengths: Any,
    k: Any,
    *,
    out: Any = None,
    num_rows: Any = None,
    given: Mapping[str, Any] | None = None,
    planned: Problem | None = None,
    options: Options | None = None,
) -> Call:
    """Check the arguments of one selection.

    `scores`, `lengths`, `k`, `out`, `num_rows`: as given to `ksieve.topk`. `given`: its options by their names in the
    table (`ksieve.core.groups.flat`). `planned`: problem of the call's plan; it supplies k and the options that the
    call omits. `options`: in place of those that result, where a traced program has found them before; `given` then
    holds arrays alone. Raises `ArgumentError`, whose message names the argument, the value that it got and the values
    that it takes.
    """
    whole = inspect(scores, "scores")
    arrays: dict[str, Any] = {"scores": plain_tensor(scores) if whole.library == "torch" else scores}
    if k is None and is_int(lengths):
        takes = f"an int32 array (did you mean k={shown(lengths)}? k is the third argument, or a keyword)"
        raise ArgumentError("lengths", kind_of(lengths), takes)
    given = given or {}
    ks = k if is_array(k, least=0 if len(whole.shape) == 1 else 1) else None  # of one row its shape is ()
    slots = slots_of(k, ks is not None, given.get("max_k"), planned)
    indptr = given.get("indptr")
    if indptr is None:
        info, leading = of_rows(whole, "scores"), whole.shape[:-1]
    else:
        info = of_segments(whole, inspect(indptr, "indptr"))
        leading = info.shape[:1]
    # Of segments each has a width that is checked, but not all together.
    dtype = problem.check_scores(info if indptr is None else info._replace(shape=(*leading, 0)), strided=True)
    rows, width = problem.rows_of(info), info.shape[-1]
    inputs = {} if lengths is None else {"lengths": lengths}
    outputs = {} if out is None else {"out": out}
    for name, array in given.items():
        if array is not None and name in table.INPUTS:
            inputs[name] = array
        elif array is not None and name in table.OUTPUTS and not isinstance(array, bool):
            outputs[name] = array
    its = {name: inspect(array, name) for name, array in (inputs | outputs).items()}
    bounds = its.get("lengths") or its.get("ends")
    found = arguments.resolve(
        given, options or (planned.options if planned else None), per_row_k=ks is not None,
        lengths=lengths is not None, length_dtype=bounds.dtype if bounds else None,
        out_dtype=its["out"].dtype if out is not None else None,
    )  # fmt: skip
    if options is not None and (differing := arguments.difference(found, options)):
        raise ArgumentError("options", *differing)
    options = found
    if rows % options.next_n:
        raise ArgumentError("next_n", options.next_n, f"a divisor of the scores' {rows} rows")
    problem.check_entries(options, slots, width)
    described: dict[str, ArrayInfo] = {"scores": info}

    def take(name: str, array: Any, info: ArrayInfo) -> None:
        described[name], arrays[name] = info, array

    requests = problem.request_shapes(leading, rows, options.next_n)
    shapes = {"rows": (leading,), "bounds": ((rows + 1,),), "requests": requests}
    for name, array in inputs.items():
        option, own = table.BY_NAME[name], its[name]
        if option.shape == "table":
            take(name, array, problem.check_table(own, info.device))
        elif option.shape in shapes:
            shape, strided = shapes[option.shape], option.shape != "bounds"
            own = problem.check_vector(own, name, shape, info.device, option.dtypes, strided=strided)
            take("lengths" if name == "ends" else name, array, own)
        else:
            take(name, array, problem.check_positions(own, name, info, leading))
    live = problem.live_rows(num_rows, rows)
    for name, array, shape in (("k", ks, (leading,)), ("num_rows", num_rows if live is None else None, ((1,), ()))):
        if array is not None:
            problem.check_number(array, name)
            take(name, array, problem.check_vector(inspect(array, name), name, shape, info.device, strided=True))
    pitch = problem.row_pitch(info)
    if indptr is not None:
        width, pitch = problem.segment_width(width, options), width
    asked = Problem(rows, width, pitch, slots, dtype, info.device, options)
    whole_shape = (*leading, asked.columns)
    for name, array in outputs.items():
        if name == "counts":
            take(name, array, problem.check_counts(array, its[name], leading, described))
            continue
        output_dtype = info.dtype if name == "values" else options.index_dtype
        take(name, array, problem.check_output(name, array, its[name], output_dtype, whole_shape, described))
    return Call(asked, leading, rows if live is None else live, described, arrays)


def slots_of(
    k: Any, per_row: bool, max_k: Any, planned: Problem | None, check: Callable[[Any, str, int], int] = check_k
) -> int:
    """Slots of a row: k, or max_k for an array k, or the plan's k. PyTorch traces it."""
    name, given = ("max_k", max_k) if per_row else ("k", k)
    if max_k is not None and not per_row:
        refuse("max_k", max_k, "nothing unless k is an array")
    if given is None:
        if planned is None:
            refuse(name, None, f"an int from 0 to {MAX_K}")
        return planned.k
    slots = check(given, name, 0)
    if planned is not None and slots != planned.k:
        refuse(name, slots, f"{planned.k}, the plan's k, or nothing")
    return slots
