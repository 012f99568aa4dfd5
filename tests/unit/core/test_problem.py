"""Argument checking: every array kind described, every bad argument refused with a message that helps."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import ksieve
from flat_calls import ask, plan_of
from ksieve.core.arrays import _DLTensor
from ksieve.core.call import parse
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError, KsieveError
from ksieve.core.problem import ArrayInfo, Device, inspect

ROWS, WIDTH, K = 4, 50, 5
SCORES = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
LENGTHS = np.array([50, 3, 0, 20], dtype=np.int32)


class FakeCuda:
    """An array on a GPU as CuPy shows one, in memory that is never touched."""

    def __init__(self, shape, typestr="<f4", strides=None, pointer=0x7F00_0000_0000, device=0):
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (pointer, False), "strides": strides, "version": 3,
        }  # fmt: skip
        self.device_index = device

    def __dlpack_device__(self):
        return 2, self.device_index


class FakeDlpack:
    """An array that speaks DLPack alone, as JAX's bfloat16 arrays do."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.device[0] == 2:
            assert options == {"stream": -1}, "describing an array must not synchronise a stream"
            return self.array.__dlpack__()
        return self.array.__dlpack__(**options)


# ---- descriptions ------------------------------------------------------------------------------------------


def test_numpy_description(tmp_path):
    x = np.zeros((ROWS, WIDTH + 6), dtype=np.float16)[:, 2 : 2 + WIDTH]
    info = inspect(x, "scores")
    assert info == ArrayInfo("numpy", Device("cpu"), x.ctypes.data, (ROWS, WIDTH), (WIDTH + 6, 1), "float16", 2)
    begin, end = info.span
    assert end - begin == 2 * ((ROWS - 1) * (WIDTH + 6) + WIDTH)
    np.save(tmp_path / "scores.npy", SCORES)
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")
    assert inspect(mapped, "scores").library == "numpy"
    np.testing.assert_array_equal(ksieve.topk(mapped, k=K), ksieve.topk(SCORES, k=K))


def test_cuda_array_interface_description():
    info = inspect(FakeCuda((3, 8), "<f2", pointer=4096, device=1), "scores")
    assert info == ArrayInfo("other", Device("cuda", 1), 4096, (3, 8), (8, 1), "float16", 2)
    asked = parse(FakeCuda((3, 8), strides=(48, 4)), FakeCuda((3,), "<i4"), 2).problem
    assert (asked.rows, asked.width, asked.pitch, str(asked.device)) == (3, 8, 12, "cuda:0")


def test_dlpack_on_the_host():
    info = inspect(FakeDlpack(SCORES), "scores")
    assert (info.library, info.device, info.pointer) == ("other", Device("cpu"), SCORES.ctypes.data)
    found = ksieve.select(FakeDlpack(SCORES), FakeDlpack(LENGTHS), k=K, values=True)
    want = ksieve.select(SCORES, LENGTHS, K, values=True)
    np.testing.assert_array_equal(found.indices, want.indices)
    np.testing.assert_array_equal(found.values, want.values)


def test_dlpack_on_a_gpu_is_described_from_its_capsule():
    x = np.zeros((3, 12), dtype=np.float16)[:, 1:9]
    info = inspect(FakeDlpack(x, (2, 1)), "scores")
    assert info == ArrayInfo("other", Device("cuda", 1), x.ctypes.data, (3, 8), (12, 1), "float16", 2)
    for dtype in ("int32", "uint16", "float64", "bool"):
        assert inspect(FakeDlpack(np.zeros(3, dtype=dtype), (2, 0)), "x").dtype == dtype


def test_bfloat16_dlpack_on_a_gpu():
    held = pytest.importorskip("torch").zeros((2, 3)).bfloat16()
    info = inspect(FakeDlpack(held, (2, 0)), "scores")
    assert (info.dtype, info.itemsize, info.pointer) == ("bfloat16", 2, held.data_ptr())


def test_dlpack_byte_offset():
    """Producers may point before the array and give the distance; none of those installed here does."""
    shape = (ctypes.c_int64 * 2)(3, 8)
    tensor = _DLTensor(0x7000, 2, 0, 2, 2, 32, 1, shape, None, 0x60)
    managed = ctypes.create_string_buffer(bytes(tensor) + bytes(16))  # no context, no deleter
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

    class Offset(FakeDlpack):
        def __dlpack__(self, stream=None):
            return new(ctypes.addressof(managed), b"dltensor", None)

    info = inspect(Offset(None, (2, 0)), "scores")
    assert info == ArrayInfo("other", Device("cuda", 0), 0x7060, (3, 8), (8, 1), "float32", 4)


# ---- refusals ----------------------------------------------------------------------------------------------


def planned(**changes):
    return plan_of(**{"rows": 8, "width": 64, "k": K} | changes)


OUT = np.zeros((ROWS, K), np.int32)
GPU = {"scores": FakeCuda((ROWS, WIDTH)), "lengths": FakeCuda((ROWS,), "<i4")}
ODD = 0x1001
CONTIGUOUS = "takes last stride 1 (rows contiguous): np.ascontiguousarray(scores)"
REFUSED = [
    *(
        ({"scores": SCORES.astype(dtype)}, f"scores: got dtype {got}; takes dtype float32, float16, bfloat16{remedy}")
        for dtype, got, remedy in (
            (np.float64, "float64", ": scores.astype(np.float32) rounds to one"),
            (np.int32, "int32", ": scores.astype(np.float32) rounds to one"),
            (np.int16, "int16", ""),
            (">f4", ">f4 (foreign byte order)", ": scores.astype(np.float32)"),
            (">f2", ">f2 (foreign byte order)", ": scores.astype(np.float16)"),
            (">i4", ">i4 (foreign byte order)", ""),
        )
    ),
    ({"scores": SCORES[:, ::2]}, f"scores: got last stride 2; {CONTIGUOUS}"),
    ({"scores": SCORES[:, ::-1]}, f"scores: got last stride -1; {CONTIGUOUS}"),
    ({"scores": SCORES.T}, f"scores: got last stride {WIDTH}; {CONTIGUOUS}"),
    (
        {"scores": [[1.0, 2.0]]},
        "scores: got list; takes a NumPy, PyTorch, CuPy or JAX array: np.array(scores) first",
    ),
    ({"scores": None}, "scores: got NoneType; takes a NumPy, PyTorch, CuPy or JAX array"),
    (
        {"scores": np.ma.masked_less(SCORES, 0)},
        "scores: got a masked array, whose mask would be ignored; takes a plain array",
    ),
    (
        {"scores": FakeDlpack(SCORES, (10, 0))},
        "scores: got an array on DLPack device 10:0; takes an array on cpu or cuda",
    ),
    (
        {"scores": FakeCuda((1, 1 << 31))},
        "scores: got width 2147483648; takes at most 2147483647, which kernels count in int32, as indices are",
    ),
    (
        {"scores": FakeCuda((3, 8), strides=(50, 4))},
        "scores: got shape (3, 8) with strides that are no multiple of 4 bytes; takes strides of whole elements: "
        "np.ascontiguousarray(scores)",
    ),
    *(
        (GPU | {name: array}, f"{name}: got address 0x1001; takes an address that is a multiple of {size} bytes")
        for name, array, size in (
            ("scores", FakeCuda((ROWS, WIDTH), "<f2", pointer=ODD), 2),
            ("lengths", FakeCuda((ROWS,), "<i4", pointer=ODD), 4),
            ("out", FakeCuda((ROWS, K), "<i4", pointer=ODD), 4),
        )
    ),
    (
        {"lengths": LENGTHS.astype(">i4")},
        "lengths: got dtype >i4 (foreign byte order); takes dtype int32 or int64: lengths.astype(np.int32)",
    ),
    ({"lengths": np.array(5, np.int32)}, "lengths: got shape (); takes shape (4,)"),
    ({"lengths": GPU["lengths"]}, "lengths: got device cuda:0; takes the scores' device, cpu"),
    ({"out": OUT.astype(np.uint32)}, "out: got dtype uint32; takes dtype int32 or int64"),
    ({"out": OUT.astype(np.float32)}, "out: got dtype float32; takes dtype int32 or int64"),
    ({"out": np.zeros((ROWS, K + 1), np.int32)}, "out: got shape (4, 6); takes shape (4, 5)"),
    (
        {"out": np.zeros((ROWS, 2 * K), np.int32)[:, ::2]},
        "out: got strides (10, 2); takes contiguous rows that do not overlap",
    ),
    (
        {"out": np.lib.stride_tricks.as_strided(OUT, strides=(0, 4))},
        "out: got strides (0, 1); takes contiguous rows that do not overlap",
    ),
    ({"out": FakeCuda((ROWS, K), "<i4")}, "out: got device cuda:0; takes the scores' device, cpu"),
    *(
        ({"scores": GPU["scores"], name: array}, f"{name}: got device {device}; takes the scores' device, cuda:0")
        for name, array, device in (
            ("lengths", LENGTHS, "cpu"),
            ("num_rows", np.zeros(1, np.int32), "cpu"),
            ("out", OUT, "cpu"),
            ("lengths", FakeCuda((ROWS,), "<i4", device=1), "cuda:1"),
        )
    ),
    ({"plan": planned(rows=3)}, "plan: got rows 4; takes at most the planned 3"),
    ({"plan": planned(width=49)}, "plan: got width 50; takes at most the planned 49"),
    ({"plan": planned(dtype="float16")}, "plan: got scores of dtype float32; takes dtype float16"),
    ({"plan": planned(), "k": 6}, "k: got 6; takes 5, the plan's k, or nothing"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message.partition(";")[0] for _, message in REFUSED])
def test_what_a_call_refuses(call, message):
    with pytest.raises(ArgumentError) as error:
        ask(**{"scores": SCORES, "k": K} | call)
    assert str(error.value) == message
    assert isinstance(error.value, (ValueError, KsieveError))
    assert error.value.argument == message.split(":")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pitch": 63}, "pitch: got 63; takes an int of at least 64"),
        ({"k": 0}, "k: got 0; takes an int from 1 to 1048576: ksieve.topk(..., k=0) needs no plan"),
        ({"device": "tpu"}, "device: got 'tpu'; takes cpu, cuda, cuda:<ordinal> or one of " + ", ".join(DEVICES)),
        ({"device": 3}, "device: got 3; takes 'cpu', 'cuda' or 'cuda:<ordinal>'"),
        ({"device": "cuda:x"}, "device: got 'cuda:x'; takes 'cpu', 'cuda' or 'cuda:<ordinal>'"),
        ({"family": "resident_block"}, "family: got 'resident_block'; takes 'cpu' on a CPU device"),
    ],
)
def test_what_a_plan_refuses(options, message):
    with pytest.raises(ArgumentError) as error:
        planned(**options)
    assert str(error.value) == message


def test_a_plan_is_made_for_a_gpu_by_name():
    shape = {"rows": 64, "width": 131_072, "k": 2048}
    for name, device in DEVICES.items():
        assert plan_of(**shape, device=name) == plan_of(**shape, device=device)
        assert f'"{name}"' in ksieve.plan.__doc__
    assert plan_of(**shape, device="H200").device.name == "NVIDIA H200"


def test_plans_for_a_cpu_sample_wide_rows_alone():
    for width, policy in ((131_072, "paper-128"), (65_536, "paper-64"), (8192, None)):
        chosen = ksieve.plan(rows=64, width=width, k=2048).policy
        assert (chosen and chosen.name) == policy
    assert ksieve.plan(rows=64, width=131_072, k=2048, policy="direct").policy is None
