"""Odd arrays in every array argument: an exact answer, or an error that names the argument; nothing raw or written."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from ksieve.core.errors import ArgumentError

torch = pytest.importorskip("torch")
from flat_calls import ask, verified  # noqa: E402
from odd import REFUSED, SAME  # noqa: E402

ROWS, WIDTH, K = 4, 64, 8
SCORES = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
GOOD = {
    "scores": SCORES,
    "lengths": np.full(ROWS, 50, np.int32),
    "k": np.array([1, 2, 3, 8], np.int32),
    "out": np.full((ROWS, K), -7, np.int32),
    "num_rows": np.array([3], np.int32),
    "starts": np.array([0, 1, 2, 3], np.int32),
    "ends": np.full(ROWS, 50, np.int32),
    "page_table": np.arange(ROWS * WIDTH, dtype=np.int32).reshape(ROWS, WIDTH),
    "offsets": np.arange(ROWS, dtype=np.int32),
    "row_to_request": np.arange(ROWS, dtype=np.int32)[::-1].copy(),
    "values": np.full((ROWS, K), -7, np.float32),
    "raw": np.full((ROWS, K), -7, np.int32),
}
OUTPUTS = ("out", "values", "raw")
WHOLE = {"matrix", "function subclass", "parameter", "tensor of read-only", "numpy subclass", "read-only"}
STRIDED = {"wide", "reversed", "broadcast", "expanded"}
SINGLE = {"scalar array", "scalar tensor"} | STRIDED


def call(name, value, library):
    """Call with one argument replaced; the outputs given beside it are returned too."""
    convert = (lambda x: torch.from_numpy(x.copy())) if library == "torch" else np.copy
    given = {"scores": convert(SCORES), "k": K, "sorted": True}
    if name == "row_to_request":
        given["page_table"] = convert(GOOD["page_table"])
    if name == "k":
        given["max_k"] = K
    beside = {o: convert(GOOD[o]) for o in OUTPUTS if o != name}
    given |= {name: value}
    return given, beside


def takes(name, odd):
    """Whether an argument takes an array of this kind."""
    if name in OUTPUTS:
        return odd in WHOLE - {"read-only"}
    if name == "num_rows":
        return odd in SINGLE | WHOLE - {"matrix"}
    if odd in STRIDED:
        return GOOD[name].ndim == 1  # numbers of the rows have any stride
    return odd in WHOLE and (odd != "matrix" or GOOD[name].ndim == 2)


def plain(array):
    return np.asarray(array.detach()) if isinstance(array, torch.Tensor) else np.asarray(array)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", GOOD)
def test_an_odd_array_gives_the_exact_answer_or_is_named(name, library):
    wrong = []
    for odd, make in (SAME | REFUSED).items():
        value = make(GOOD[name].copy())
        given, beside = call(name, value, library)
        try:
            ask(**given, **beside)
        except ArgumentError as error:
            untouched = all((plain(array) == -7).all() for array in beside.values())
            # Scores of another leading shape are good ones, to which the outputs do not belong.
            named = error.argument in (name, "max_k") or (name, odd, error.argument) == ("scores", "five axes", "out")
            if takes(name, odd) or not named or not untouched:
                wrong.append((odd, "refused", str(error)))
        except Exception as error:
            wrong.append((odd, type(error).__name__, str(error)))
        else:
            # Strides may change which numbers an array holds: the answer is that of its contiguous copy.
            whole = np.ascontiguousarray(plain(value)) if odd in STRIDED and takes(name, odd) else GOOD[name].copy()
            given, wanted = call(name, whole, library)
            ask(**given, **wanted)
            same = all(np.array_equal(plain(beside[o]), plain(wanted[o])) for o in beside)
            if not takes(name, odd) or not same:
                wrong.append((odd, "taken", same))
    assert not wrong


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", ["scores", "lengths", "indices", "starts", "ends", "k", "num_rows"])
def test_verify_is_exact_on_odd_arrays_or_names_them(name, library):
    indices = np.argsort(-SCORES, axis=1)[:, :K].astype(np.int32)
    good = {"scores": SCORES, "lengths": np.full(ROWS, WIDTH, np.int32), "indices": indices}
    if name in ("starts", "ends", "k", "num_rows"):
        part = {"starts": np.zeros(ROWS), "ends": np.full(ROWS, WIDTH), "k": np.full(ROWS, K), "num_rows": [ROWS]}
        good[name] = np.array(part[name], np.int32)
    if name == "ends":
        del good["lengths"]
    wrong = []
    for odd, make in (SAME | REFUSED).items():
        given = {n: torch.from_numpy(x.copy()) if library == "torch" else x for n, x in good.items()}
        given[name] = make(good[name].copy())
        try:
            verdict = verified(**given)
        except ArgumentError as error:
            # Scores of another leading shape are good ones, to which the indices do not belong.
            if error.argument != name and (name, error.argument) != ("scores", "indices"):
                wrong.append((odd, "refused", str(error)))
        except Exception as error:
            wrong.append((odd, type(error).__name__, str(error)))
        else:
            # Of other numbers than the answer's, such as reversed ones, a verdict is right in saying so.
            if not verdict and odd in WHOLE:
                wrong.append((odd, "judged", str(verdict)))
    assert not wrong


TRANSFORMS = ("vmap", "grad", "functionalize")


def inside(transform, tensor, program):
    """Run a program on a tensor inside a transform; its result outside, of a batch of two its first element."""
    if transform == "grad" and not tensor.is_floating_point():
        pytest.skip("integers have no gradient")
    kept = []

    def transformed(x):
        kept[:] = program(x)
        return (x.sum(), tuple(kept)) if transform == "grad" else tuple(kept)

    if transform == "grad":
        return torch.func.grad(transformed, has_aux=True)(tensor)[1]
    if transform == "vmap":
        return [x[0] for x in torch.vmap(transformed)(torch.stack([tensor] * 2))]
    return torch.func.functionalize(transformed)(tensor)


@pytest.mark.parametrize("name", [name for name in GOOD if name not in OUTPUTS])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_tensors_inside_a_transform_give_the_exact_answer(name, transform):
    tensor = torch.from_numpy(GOOD[name].copy())
    given, _ = call(name, tensor, "torch")
    given |= {"values": True, "raw": True}
    found = inside(transform, tensor, lambda x: ask(**given | {name: x}))
    for a, b in zip(found, ask(**given), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_outputs_inside_a_transform_are_refused(name, transform):
    tensor = torch.from_numpy(GOOD[name].copy())
    given, beside = call(name, tensor, "torch")

    def program(x):
        with pytest.raises(ArgumentError, match=r"^(out|values|raw): .*torch\.func"):
            ask(**given | {name: x}, **beside)
        return (x,)

    inside(transform, tensor, program)
    assert all((array == -7).all() for array in beside.values())


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_tensors_inside_a_transform_are_named_by_verify(transform):
    indices = torch.from_numpy(np.argsort(-SCORES, axis=1)[:, :K].astype(np.int32))

    def program(x):
        with pytest.raises(ArgumentError, match=r"^scores: .*torch\.func"):
            ksieve.verify(x, None, indices)
        return (x,)

    inside(transform, torch.from_numpy(SCORES.copy()), program)


def test_more_rows_than_kernels_count_are_refused_before_memory_is_asked_for():
    with pytest.raises(ArgumentError, match=r"^scores: got rows 8589934592; takes at most 2147483647.*int32"):
        ksieve.topk(np.zeros((2**33, 0), np.float32), k=1)


def test_a_read_only_cuda_array_is_no_output():
    from ksieve.core.problem import inspect, is_writable

    for flag in (False, True):
        facts = {"shape": (4, 8), "typestr": "<i4", "data": (4096, flag), "version": 3}
        array = type("Array", (), {"__cuda_array_interface__": facts})()
        assert is_writable(array, inspect(array, "out")) is not flag


def test_a_workspace_of_any_kind_is_refused_on_the_cpu():
    for odd, make in (SAME | REFUSED).items():
        value = make(np.zeros(8, np.int32))
        with pytest.raises(ArgumentError, match=r"^workspace: .*not taken on the CPU"):
            ksieve.topk(SCORES, k=K, workspace=value)
        assert odd
