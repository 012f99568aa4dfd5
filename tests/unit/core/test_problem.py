"""Argument checking: every array kind described, every bad argument refused with a message that helps."""

from __future__ import annotations

import numpy as np
import pytest

import ksieve
from ksieve.core.call import parse
from ksieve.core.errors import ArgumentError, KsieveError
from ksieve.core.problem import ArrayInfo, Device, inspect
from ksieve.planning.devices import DEVICES

ROWS, WIDTH, K = 4, 50, 5


def scores(dtype=np.float32):
    return np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(dtype)


def lengths():
    return np.array([50, 3, 0, 20], dtype=np.int32)


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


def refuse(message, *args, **options):
    """Call topk and expect exactly this message, before anything else happened."""
    with pytest.raises(ArgumentError) as error:
        ksieve.topk(*args, **options)
    assert str(error.value) == message
    assert isinstance(error.value, (ValueError, KsieveError))
    assert error.value.argument == message.split(":")[0]


# ---- descriptions ------------------------------------------------------------------------------------------


def test_numpy_description():
    x = np.zeros((ROWS, WIDTH + 6), dtype=np.float16)[:, 2 : 2 + WIDTH]
    info = inspect(x, "scores")
    assert info == ArrayInfo("numpy", Device("cpu"), x.ctypes.data, (ROWS, WIDTH), (WIDTH + 6, 1), "float16", 2)
    begin, end = info.span
    assert end - begin == 2 * ((ROWS - 1) * (WIDTH + 6) + WIDTH)


def test_memory_mapped_and_subclassed_arrays(tmp_path):
    path = tmp_path / "scores.npy"
    np.save(path, scores())
    mapped = np.load(path, mmap_mode="r")
    assert inspect(mapped, "scores").library == "numpy"
    np.testing.assert_array_equal(ksieve.topk(mapped, k=K), ksieve.topk(scores(), k=K))

    class Labelled(np.ndarray):
        pass

    assert parse(scores().view(Labelled), None, K).problem.dtype == "float32"


def test_cuda_array_interface_description():
    info = inspect(FakeCuda((3, 8), "<f2", pointer=4096, device=1), "scores")
    assert info == ArrayInfo("other", Device("cuda", 1), 4096, (3, 8), (8, 1), "float16", 2)
    pitched = inspect(FakeCuda((3, 8), "<f4", strides=(48, 4)), "scores")
    assert pitched.strides == (12, 1)
    assert str(pitched.device) == "cuda:0"
    asked = parse(FakeCuda((3, 8), strides=(48, 4)), FakeCuda((3,), "<i4"), 2).problem
    assert (asked.rows, asked.width, asked.pitch, asked.device.kind) == (3, 8, 12, "cuda")


def test_cuda_interface_with_a_stride_between_elements_is_refused():
    with pytest.raises(
        ArgumentError,
        match=r"scores: got shape .* with strides that are no multiple of 4 bytes; takes strides of whole elements",
    ):
        parse(FakeCuda((3, 8), "<f4", strides=(50, 4)), None, 2)


def test_dlpack_on_the_host():
    x = scores()
    info = inspect(FakeDlpack(x), "scores")
    assert (info.library, info.device, info.pointer) == ("other", Device("cpu"), x.ctypes.data)
    np.testing.assert_array_equal(ksieve.topk(FakeDlpack(x), FakeDlpack(lengths()), k=K), ksieve.topk(x, lengths(), K))


def test_dlpack_on_a_gpu_is_described_from_its_capsule():
    x = np.zeros((3, 12), dtype=np.float16)[:, 1:9]
    info = inspect(FakeDlpack(x, (2, 1)), "scores")
    assert info == ArrayInfo("other", Device("cuda", 1), x.ctypes.data, (3, 8), (12, 1), "float16", 2)
    for dtype in ("int32", "uint16", "float64", "bool"):
        assert inspect(FakeDlpack(np.zeros(3, dtype=dtype), (2, 0)), "x").dtype == dtype


def test_dlpack_byte_offset():
    """Producers may point before the array and give the distance; none of those installed here does."""
    import ctypes

    from ksieve.core.dlpack import _DLTensor

    shape = (ctypes.c_int64 * 2)(3, 8)
    tensor = _DLTensor(0x7000, 2, 0, 2, 2, 32, 1, shape, None, 0x60)
    managed = ctypes.create_string_buffer(bytes(tensor) + bytes(16))  # no context, no deleter
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

    class Offset:
        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, stream=None):
            return new(ctypes.addressof(managed), b"dltensor", None)

    info = inspect(Offset(), "scores")
    assert info == ArrayInfo("other", Device("cuda", 0), 0x7060, (3, 8), (8, 1), "float32", 4)


def test_bfloat16_dlpack_on_a_gpu():
    torch = pytest.importorskip("torch")

    class OnGpu:
        held = torch.zeros((2, 3), dtype=torch.bfloat16)

        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, stream=None):
            return self.held.__dlpack__()

    info = inspect(OnGpu(), "scores")
    assert (info.dtype, info.itemsize, info.pointer) == ("bfloat16", 2, OnGpu.held.data_ptr())


def test_torch_description_and_results():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(scores())
    info = inspect(x[:, 1:], "scores")
    assert info == ArrayInfo("torch", Device("cpu"), x.data_ptr() + 4, (ROWS, WIDTH - 1), (WIDTH, 1), "float32", 4)
    result = ksieve.topk(x.requires_grad_(), torch.from_numpy(lengths()), k=K)
    assert isinstance(result, torch.Tensor) and result.dtype == torch.int32
    np.testing.assert_array_equal(result.numpy(), ksieve.topk(scores(), lengths(), K))
    out = torch.full((ROWS, K), 7, dtype=torch.int32)
    assert ksieve.topk(x, k=K, out=out) is out and not (out == 7).all()
    half = torch.from_numpy(scores()).bfloat16()
    bits = half.view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(ksieve.topk(half, k=K).numpy(), ksieve.topk(bits, k=K))


def test_ml_dtypes_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = scores().astype(ml_dtypes.bfloat16)
    assert parse(x, None, K).problem.dtype == "bfloat16"
    np.testing.assert_array_equal(ksieve.topk(x, k=K), ksieve.topk(x.view(np.uint16), k=K))


def test_problem_of_a_call():
    x = np.zeros((ROWS, WIDTH + 3), dtype=np.float32)[:, :WIDTH]
    call = parse(x, lengths(), np.int64(K))
    asked = call.problem
    assert (asked.rows, asked.width, asked.pitch, asked.k, asked.dtype) == (ROWS, WIDTH, WIDTH + 3, K, "float32")
    assert call.scores.pointer == x.ctypes.data and set(call.arrays) == {"scores", "lengths"}
    assert call.address("out") == 0 and type(asked.k) is int
    assert parse(x[:1], None, K).problem.pitch >= WIDTH
    assert parse(np.zeros((0, 7), dtype=np.float32), None, K).problem.rows == 0
    assert parse(np.zeros((3, 0), dtype=np.float32), None, K).problem.width == 0


# ---- refusals ----------------------------------------------------------------------------------------------

COPY = ": np.ascontiguousarray(scores)"


@pytest.mark.parametrize(
    ("bad", "got", "remedy"),
    [
        (lambda: scores(np.float64), "dtype float64", ": scores.astype(np.float32) rounds to one"),
        (lambda: scores(np.int32), "dtype int32", ""),
        (lambda: scores(">f4"), "dtype >f4 (foreign byte order)", ": scores.astype(np.float32)"),
        (lambda: scores(">f2"), "dtype >f2 (foreign byte order)", ": scores.astype(np.float16)"),
        (lambda: scores(">i4"), "dtype >i4 (foreign byte order)", ""),
    ],
)
def test_scores_of_a_wrong_dtype(bad, got, remedy):
    refuse(f"scores: got {got}; takes dtype float32, float16, bfloat16{remedy}", bad(), k=K)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (scores()[:, ::2], f"scores: got last stride 2; takes last stride 1 (rows contiguous){COPY}"),
        (scores()[:, ::-1], f"scores: got last stride -1; takes last stride 1 (rows contiguous){COPY}"),
        (scores().T, f"scores: got last stride {WIDTH}; takes last stride 1 (rows contiguous){COPY}"),
        ([[1.0, 2.0]], "scores: got list; takes a NumPy, PyTorch, CuPy or JAX array: np.array(scores) first"),
        (None, "scores: got NoneType; takes a NumPy, PyTorch, CuPy or JAX array"),
        (
            np.ma.masked_less(scores(), 0),
            "scores: got a masked array, whose mask would be ignored; takes a plain array",
        ),
        (FakeDlpack(scores(), (10, 0)), "scores: got an array on DLPack device 10:0; takes an array on cpu or cuda"),
    ],
)  # fmt: skip
def test_scores_that_cannot_be_used(bad, message):
    refuse(message, bad, k=K)


def test_scores_too_wide_for_int32_indices():
    with pytest.raises(ArgumentError, match=r"scores: got width 2147483648; takes at most 2147483647"):
        parse(FakeCuda((1, 1 << 31)), None, K)


def test_gpu_arrays_between_elements_are_refused():
    args = {"scores": FakeCuda((4, 8), "<f2"), "lengths": FakeCuda((4,), "<i4"), "out": FakeCuda((4, 2), "<i4")}
    parse(args["scores"], args["lengths"], 2, out=FakeCuda((4, 2), "<i4", pointer=0x1000))
    for name, size in (("scores", 2), ("lengths", 4), ("out", 4)):
        x = args[name].__cuda_array_interface__
        odd = FakeCuda(x["shape"], x["typestr"], pointer=0x1001)
        chosen = {**args, "out": FakeCuda((4, 2), "<i4", pointer=0x2000), name: odd}
        with pytest.raises(ArgumentError) as error:
            parse(chosen["scores"], chosen["lengths"], 2, out=chosen["out"])
        assert str(error.value) == f"{name}: got address 0x1001; takes an address that is a multiple of {size} bytes"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            lengths().astype(">i4"),
            "lengths: got dtype >i4 (foreign byte order); takes dtype int32 or int64: lengths.astype(np.int32)",
        ),
        (np.array(5, np.int32), "lengths: got shape (); takes shape (4,)"),
        (FakeCuda((4,), "<i4"), "lengths: got device cuda:0; takes the scores' device, cpu"),
    ],
)
def test_lengths_that_cannot_be_used(bad, message):
    refuse(message, scores(), bad, K)


def read_only():
    out = np.zeros((ROWS, K), dtype=np.int32)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((ROWS, K), np.uint32), "out: got dtype uint32; takes dtype int32 or int64"),
        (np.zeros((ROWS, K), np.float32), "out: got dtype float32; takes dtype int32 or int64"),
        (np.zeros((ROWS, K + 1), np.int32), "out: got shape (4, 6); takes shape (4, 5)"),
        (
            np.zeros((ROWS, 2 * K), np.int32)[:, ::2],
            "out: got strides (10, 2); takes contiguous rows that do not overlap",
        ),
        (
            np.broadcast_to(np.zeros(K, np.int32), (ROWS, K)),
            "out: got strides (0, 1); takes contiguous rows that do not overlap",
        ),
        (read_only(), "out: got a read-only array; takes an array that can be written"),
        (FakeCuda((ROWS, K), "<i4"), "out: got device cuda:0; takes the scores' device, cpu"),
    ],
)  # fmt: skip
def test_out_that_cannot_be_used(bad, message):
    refuse(message, scores(), k=K, out=bad)


def test_devices_may_not_mix():
    gpu = FakeCuda((ROWS, WIDTH))
    for name, options in {
        "lengths": {"lengths": lengths()},
        "num_rows": {"num_rows": np.zeros(1, np.int32)},
        "out": {"out": np.zeros((ROWS, K), np.int32)},
    }.items():
        refuse(f"{name}: got device cpu; takes the scores' device, cuda:0", gpu, k=K, **options)
    other = FakeCuda((ROWS,), "<i4", device=1)
    refuse("lengths: got device cuda:1; takes the scores' device, cuda:0", gpu, other, K)


# ---- plans -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        ({"rows": 3}, {}, "plan: got rows 4; takes at most the planned 3"),
        ({"width": 49}, {}, "plan: got width 50; takes at most the planned 49"),
        ({"dtype": "float16"}, {}, "plan: got scores of dtype float32; takes dtype float16"),
        ({}, {"k": 6}, "k: got 6; takes 5, the plan's k, or nothing"),
        ({}, {"policy": "paper-64"}, "policy: got 'paper-64'; takes nothing when plan is given: the plan holds one"),
    ],
)
def test_a_plan_refuses_what_it_does_not_cover(made, options, message):
    plan = ksieve.plan(**{"rows": 8, "width": 64, "k": K, **made})
    refuse(message, scores(), plan=plan, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pitch": 63}, "pitch: got 63; takes an int of at least 64"),
        ({"k": 0}, "k: got 0; takes an int from 1 to 1048576: ksieve.topk(..., k=0) needs no plan"),
        ({"dtype": "float64"}, "dtype: got 'float64'; takes one of ['float32', 'float16', 'bfloat16']"),
        ({"device": "tpu"}, "device: got 'tpu'; takes cpu, cuda, cuda:<ordinal> or one of " + ", ".join(DEVICES)),
        ({"device": 3}, "device: got 3; takes 'cpu', 'cuda' or 'cuda:<ordinal>'"),
        ({"device": "cuda:x"}, "device: got 'cuda:x'; takes 'cpu', 'cuda' or 'cuda:<ordinal>'"),
        ({"family": "resident_block"}, "family: got 'resident_block'; takes 'cpu' on a CPU device"),
    ],
)
def test_plan_arguments(options, message):
    with pytest.raises(ArgumentError) as error:
        ksieve.plan(**{"rows": 8, "width": 64, "k": K, **options})
    assert str(error.value) == message


def test_a_plan_is_made_for_a_gpu_by_name():
    shape = {"rows": 64, "width": 131_072, "k": 2048}
    for name, device in DEVICES.items():
        assert ksieve.plan(**shape, device=name) == ksieve.plan(**shape, device=device)
        assert f'"{name}"' in ksieve.plan.__doc__
    assert ksieve.plan(**shape, device="H200").device.name == "NVIDIA H200"


def test_plans_are_values_that_print_themselves():
    one, two = (ksieve.plan(rows=64, width=131_072, k=2048) for _ in range(2))
    assert one == two and hash(one) == hash(two)
    for word in ("cpu", "64 x 131072 float32", "k=2048", "paper-128", "reason"):
        assert word in str(one)
    assert ksieve.plan(rows=64, width=65_536, k=2048).policy.name == "paper-64"
    assert ksieve.plan(rows=64, width=8192, k=2048).policy is None
    assert ksieve.plan(rows=64, width=131_072, k=2048, policy="direct").policy is None
