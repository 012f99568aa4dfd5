"""The fast path of repeated calls on PyTorch tensors: what it takes, and what it leaves to the general path."""

from __future__ import annotations

import gc
import struct
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ksieve  # noqa: E402
from cases import OPTION_CASES, build_call, options_of  # noqa: E402
from cuda_fakes import WORKSPACE, ZEROED, aligned_bytes, make_plan, plan_of, torch_backend  # noqa: E402
from flat_calls import ask  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.backends.cuda.runtime import launch  # noqa: E402
from ksieve.core import call as calls  # noqa: E402
from ksieve.core.device import DEVICES  # noqa: E402
from ksieve.core.errors import ArgumentError, WorkspaceError  # noqa: E402
from ksieve.core.groups import flat, grouped  # noqa: E402
from ksieve.core.options import Options  # noqa: E402
from ksieve.core.problem import Device  # noqa: E402
from ksieve.core.table import INPUTS, OUTPUTS  # noqa: E402

driver = pytest.fixture(torch_backend)
K, ROWS, WIDTH = 4, 8, 64
FLOAT32 = [case for case in OPTION_CASES if case["dtype"] == "float32"]


def tensors():
    rng = np.random.default_rng(5)
    scores = torch.from_numpy(rng.permuted(np.arange(ROWS * WIDTH, dtype=np.float32)).reshape(ROWS, WIDTH))
    lengths = torch.tensor([64, 0, 3, 4, 5, 63, -7, 1000], dtype=torch.int32)
    return scores, lengths, torch.full((ROWS, K), -99, dtype=torch.int32)


def planned(rows, width, k, options):
    plan = plan_of(rows, width, k, options)
    return replace(plan, problem=replace(plan.problem, device=Device("cuda", -1)))


@pytest.fixture
def plan(driver):
    return make_plan(index=-1)


def listed(result):
    return [part.clone() for part in (result if isinstance(result, tuple) else [result])]


def assert_alike(first, second):
    for one, two in zip(first, second, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def fast_alone(*given, **options):
    """A call that the general path does not get to see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "parse", lambda *a, **k: pytest.fail("took the general path"))
        return ask(*given, **options)


def twice(*given, **options):
    """Make a call twice, the second time on its fast path, with the same answer."""
    first = listed(ask(*given, **options))
    for name in ("out", "values"):
        if options.get(name) is not None:
            options[name].fill_(-99)
    result = fast_alone(*given, **options)
    assert_alike(first, listed(result))
    return result


# ---- what it takes -----------------------------------------------------------------------------------------


def copied(array):
    """A tensor of the same strides elsewhere; another object itself."""
    if not isinstance(array, torch.Tensor):
        return array
    memory = array.untyped_storage().clone()
    return torch.empty(0, dtype=array.dtype).set_(memory, array.storage_offset(), array.shape, array.stride())


@pytest.mark.parametrize("number", range(len(FLOAT32)))
def test_the_second_call_is_the_first_one(driver, number):
    inputs, asked = build_call(FLOAT32[number])
    rows, width = inputs.scores.shape
    options = driver.asked = options_of(inputs.k, asked)
    tensor = {n: torch.from_numpy(v) for n, v in asked.items() if isinstance(v, np.ndarray)}
    given = {n: tensor.get(n, v) for n, v in asked.items() if n not in ("lengths", "ks", "live")}
    k, scores = inputs.k, torch.from_numpy(inputs.scores)
    if options.per_row_k:
        k, given["max_k"] = tensor["ks"], inputs.k
    if "live" in asked:
        given["num_rows"] = torch.tensor([asked["live"]], dtype=torch.int32)
    positional = (scores, tensor.get("lengths"), k)
    plan = planned(rows, width, inputs.k, options)
    given |= {"plan": plan, "workspace": plan.workspace()}
    first = listed(ask(*positional, **given))
    table = given.get("page_table")
    fast = table is None or table.numel() > 0  # without pages it has no address
    assert len(dispatch._fast_paths) == fast
    if not fast:
        return
    moved, elsewhere = {n: copied(v) for n, v in given.items()}, [copied(v) for v in positional]
    for array in (*given.values(), *positional):
        if isinstance(array, torch.Tensor):
            array.untyped_storage().fill_(0)
    assert_alike(first, listed(fast_alone(*elsewhere, **moved)))
    addresses = ("scores", "lengths", "num_rows", "indices", "options")
    one, two = ({n: v for n, v in seen.items() if n not in addresses} for seen in driver.launches)
    assert one == two
    addresses = ("starts", "row_k", "page_table", "request_of", "offsets", "values", "raw")
    one, two = ({n: v for n, v in (seen["options"] or {}).items() if n not in addresses} for seen in driver.launches)
    assert one == two


def test_layouts_of_plain_calls(driver, plan):
    scores, lengths, out = tensors()
    workspace = plan.workspace()
    assert twice(scores, lengths, out=out, workspace=workspace, plan=plan) is out
    assert driver.launches[-1]["workspace"] == workspace.pointer
    live = torch.tensor([2], dtype=torch.int32)
    twice(scores[:5], lengths[:5], K, out=out[:5], num_rows=live, plan=plan)
    wide = torch.full((ROWS, 10), -99, dtype=torch.int32)
    twice(scores[:, :50], None, K, out=wide[:, :K], workspace=workspace, plan=plan)
    assert (wide[:, K:] == -99).all()
    assert driver.launches[-1]["pitch"] == 64 and driver.launches[-1]["out_pitch"] == 10
    assert twice(scores.view(2, 4, WIDTH), lengths.view(2, 4), K, workspace=workspace, plan=plan).shape == (2, 4, K)
    twice(scores[:1].expand(6, WIDTH), None, K, out=out[:6], plan=plan)
    assert driver.launches[-1]["pitch"] == 0
    twice(scores[:1], live[:1], K, num_rows=live[:1], plan=plan)  # one tensor as two arguments


WINDOWS = {"starts": torch.ones(ROWS, dtype=torch.int32), "ends": torch.full((ROWS,), 30, dtype=torch.int32)}


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({}, Options()),
        ({**WINDOWS, "nan": "highest"}, Options(windows="ends", nan="highest")),
        ({"largest": False}, Options(largest=False)),
        ({"nan": "highest"}, Options(nan="highest")),
    ],
    ids=["plain", "windows", "smallest", "NaN first"],
)
def test_calls_without_a_plan_have_fast_paths_by_their_options(driver, more, options):
    """Of a plan that the planner chose."""
    scores, _, out = tensors()
    driver.asked = options
    twice(scores, None, K, out=out, **more)
    assert len(dispatch._fast_paths) == 1


def test_tensors_of_several_kinds_have_fast_paths_under_one_key(driver, plan):
    scores, lengths, out = tensors()
    pitched = torch.zeros(ROWS, 2 * WIDTH)[:, :WIDTH].copy_(scores)
    for matrix in (scores, pitched, scores.clone().requires_grad_()):
        twice(matrix, lengths, K, out=out, plan=plan)
    assert [len(alike) for alike in dispatch._fast_paths.values()] == [3]
    for _ in range(dispatch._MOST_OF_A_KEY):
        pitched = torch.zeros(ROWS, pitched.stride(0) + 1)[:, :WIDTH].copy_(scores)
        twice(pitched, lengths, K, out=out, plan=plan)
    assert [len(alike) for alike in dispatch._fast_paths.values()] == [dispatch._MOST_OF_A_KEY]


def test_it_zeroes_raw_bytes_with_every_call(driver, plan):
    scores, lengths, out = tensors()
    raw = torch.from_numpy(aligned_bytes(WORKSPACE))
    raw[:] = 77
    twice(scores, lengths, K, out=out, workspace=raw, plan=plan)
    assert driver.fills == [(raw.data_ptr(), ZEROED, 0)] * 2
    assert driver.launches[-1]["workspace"] == raw.data_ptr()


def test_a_capture_gets_memory_of_its_own(driver, plan):
    """Zeroed inside the graph; the workspace that eager calls share stays theirs."""
    scores, lengths, out = tensors()
    driver.stream = 7
    twice(scores, lengths, K, out=out, plan=plan)
    shared, fills = driver.launches[-1]["workspace"], len(driver.fills)
    driver.capturing.add(7)
    for number in (1, 2):
        twice(scores, lengths, K, out=out, plan=plan)
        assert len(driver.fills) == fills + 2 * number and driver.launches[-1]["workspace"] != shared
    assert [len(alike) for alike in dispatch._fast_paths.values()] == [1]


def test_it_keeps_no_tensor(driver, plan):
    scores, lengths, out = tensors()
    seen = [weakref.ref(tensor) for tensor in (scores, lengths, out, twice(scores, lengths, K))]
    twice(scores, lengths, K, out=out, plan=plan)
    del scores, lengths, out
    gc.collect()
    assert [ref() for ref in seen] == [None] * 4


NAMES = [
    *("scores", "lengths", "num_rows", *"-" * 5, "out", "-", "-", "workspace", *"-" * 3),
    *("starts", "k", "page_table", "row_to_request", "offsets", "values", "raw", *"-" * 9),
    *("counts", "tail", "positions"),
]
"""Arguments whose addresses are fields of `Params` and `Options`."""


def test_every_address_lies_where_a_fast_path_writes_it():
    whole = struct.Struct(launch.PARAMS.format + launch.OPTIONS.format[1:] + launch.SLOTS.format[1:])
    count = len(whole.unpack(bytes(whole.size)))
    for number, name in enumerate(NAMES):
        if name != "-":
            words = np.frombuffer(whole.pack(*[int(i == number) for i in range(count)]), np.uint64)
            assert words.nonzero()[0].tolist() == [launch.WORDS[name]], name
    assert launch.WORDS["block_table"] == launch.WORDS["positions"]
    arrays_of_a_call = {*INPUTS, *OUTPUTS} - {"lengths", "ends"}
    assert arrays_of_a_call < set(launch.WORDS), "a new array has an address too"


BINNED = ksieve.plan(rows=20_000, width=16_384, k=64, device=DEVICES["h200"])


def test_all_launches_of_a_call_are_repeated(driver, monkeypatch):
    """With length bins: the same arguments and grids as those of the general path."""
    sent = []

    def send(kernel, stream):
        sent.append((kernel.name, kernel._function.value, bytes(kernel._memory)[: kernel._stream_at], stream))
        return 0

    monkeypatch.setattr(launch.Kernel, "_send", send)
    launcher = launch.launcher_of(BINNED, stats=False, stream=0)
    addresses, sizes = [256, 512, 768, 1024, 0, 1280], (BINNED.problem.width, 64, 20_000, BINNED.problem.width)
    launcher.launch(launch.Arguments(*addresses, *sizes), 7)
    general, names = list(sent), ["scores", "lengths", "num_rows", "out", "workspace"]
    repeat = launcher.repeated(launch.Arguments(1, 1, 1, 1, 0, 1, *sizes), names)
    for _ in range(2):
        sent.clear()
        repeat([256, 512, 768, 1024, 1280], 7)
        assert sent == general and len(sent) == len(BINNED.bins) + 2


# ---- what it leaves to the general path ----------------------------------------------------------------------


def test_without_guards_of_pytorch_every_call_takes_the_general_path(driver, plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", None)
    scores, lengths, out = tensors()
    ksieve.topk(scores, lengths, K, out=out, plan=plan)
    assert driver.launches and not dispatch._fast_paths


VECTOR = tensors()[1]
SHARED = torch.zeros(4 * ROWS * WIDTH, dtype=torch.int32)


@pytest.fixture
def ready(driver, plan):
    """Return a call of a kind, which has a fast path."""

    def make(kind):
        scores, lengths, out = tensors()
        asked = {"scores": scores, "lengths": lengths, "k": K, "out": out}
        if kind == "planned":
            twice(**asked, plan=plan, workspace=plan.workspace())
            asked |= {"plan": plan, "workspace": torch.from_numpy(aligned_bytes(WORKSPACE))}
            asked |= {"num_rows": torch.tensor([2], dtype=torch.int32)}
        elif kind == "options":
            driver.asked = Options(
                windows="ends", index_base="start", transform="pages", mapped=True, values=True, raw=True
            )  # fmt: skip
            asked |= {
                "starts": VECTOR.clone(), "ends": torch.full((ROWS,), 30, dtype=torch.int32), "index_base": "start",
                "page_table": torch.arange(ROWS * WIDTH, dtype=torch.int32).reshape(ROWS, WIDTH),
                "row_to_request": torch.arange(ROWS, dtype=torch.int32), "values": torch.zeros(ROWS, K),
                "raw": True, "num_rows": torch.tensor([7], dtype=torch.int32),
                "plan": planned(ROWS, WIDTH, K, driver.asked),
            }  # fmt: skip
            del asked["lengths"]
        twice(**asked)
        return asked

    return make


def assert_general(asked, changes, driver):
    """A changed call goes to the general path, which would report a fault, and launches nothing before."""

    def general(*args, **options):
        raise KeyError("general")

    launched = len(driver.launches)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises((KeyError, ArgumentError), match=r"general|requires grad"),
    ):
        patch.setattr(calls, "parse", general)
        ask(**{name: value for name, value in (asked | changes).items() if value is not None})
    assert len(driver.launches) == launched, changes


ODD = {
    "another dtype": lambda x: x.double() if x.is_floating_point() else x.short(),
    "64 bits or 16": lambda x: x.half() if x.is_floating_point() else x.long(),
    "longer": lambda x: torch.cat([x, x]),
    "shorter": lambda x: x[:-1],
    "wider": lambda x: torch.cat([x, x], -1),
    "gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "another pitch": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]] if x.dim() == 2 else x.expand(1, *x.shape),
    "columns": lambda x: x[:, None].mT.contiguous().mT if x.dim() == 1 else x.mT.contiguous().mT,
    "rows that overlap": lambda x: x[:1].expand(2 * len(x), *x.shape[1:])[: len(x)],
    "sparse": lambda x: x.to_sparse(),
    "lazy": torch._neg_view,
    "a list": lambda x: x.tolist(),
    "another library": lambda x: x.numpy(),
    "a subclass": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "requires grad": lambda x: x.clone().requires_grad_() if x.is_floating_point() else [],
}
ARRAYS = {
    "planned": ("scores", "lengths", "out", "workspace", "num_rows"),
    "options": ("scores", "starts", "ends", "page_table", "row_to_request", "values", "out", "num_rows"),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in ARRAYS.items() for name in names])
def test_other_facts_of_a_tensor_are_left_to_the_general_path(ready, driver, kind, name):
    asked = ready(kind)
    for change in ODD.values():
        assert_general(asked, {name: change(asked[name])}, driver)


OUTPUT = SHARED[5 : 5 + ROWS * K].view(ROWS, K)
CHANGES = {
    "plain": (
        {"k": 5}, {"k": True}, {"k": np.int64(4)}, {"policy": "direct"}, {"policy": []}, {"stats": True},
        {"backend": "cpu"}, {"largest": False}, {"largest": 0}, {"nan": "last"}, {"sorted": True},
        {"k": None, "max_k": K}, {"out": None}, {"num_rows": 3}, {"workspace": aligned_bytes(WORKSPACE)},
    ),
    "planned": (
        {"plan": make_plan(index=-1)}, {"policy": "direct"}, {"stats": True},
        {"workspace": torch.from_numpy(aligned_bytes(WORKSPACE, 8))},
        {"out": OUTPUT, "scores": SHARED[8 : 8 + ROWS * WIDTH].view(torch.float32).view(ROWS, WIDTH)},
        {"out": OUTPUT, "lengths": SHARED[:ROWS]}, {"out": OUTPUT, "num_rows": SHARED[36:37]},
    ),
    "options": (
        {"page_table": torch.zeros(ROWS, 0, dtype=torch.int32)}, {"index_base": "row"}, {"raw": 1},
        {"sorted": True}, {"k": None, "max_k": K}, {"tail": VECTOR},
        {"lengths": VECTOR}, {"plan": None}, {"ends": None}, {"index_base": None}, {"row_to_request": None},
        {"out": OUTPUT, "starts": SHARED[7 : 7 + ROWS]}, {"out": OUTPUT, "num_rows": SHARED[5:6]},
        {"out": OUTPUT, "page_table": SHARED[: ROWS * WIDTH].view(ROWS, WIDTH)},
        {"out": OUTPUT, "values": SHARED[36 : 36 + ROWS * K].view(torch.float32).view(ROWS, K)},
        {"values": OUTPUT.view(torch.float32), "ends": SHARED[:ROWS]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_another_call_is_left_to_the_general_path(ready, driver, kind):
    """What the arguments say about the plan is in the key; outputs overlap no array, and a workspace is aligned."""
    asked = ready(kind)
    for changes in CHANGES[kind]:
        assert_general(asked, changes, driver)


def test_a_workspace_of_another_plan_is_refused(driver, plan):
    scores, lengths, out = tensors()
    twice(scores, lengths, K, out=out, plan=plan, workspace=plan.workspace())
    launched = len(driver.launches)
    with pytest.raises(WorkspaceError):
        ksieve.topk(scores, lengths, K, out=out, plan=plan, workspace=make_plan(index=-1, k=5).workspace())
    assert len(driver.launches) == launched


def test_tensors_without_an_address_are_left_to_the_general_path(ready, driver):
    asked, seen, launched = ready("options"), [], len(driver.launches)
    scores, out, k, live, _ = (asked.pop(name) for name in ("scores", "out", "k", "num_rows", "plan"))
    asked = flat(grouped(asked))
    ((short,),) = dispatch._fast_paths.values()
    assert short((scores, None, k, out, None, live, *asked.values()))[0] is out

    def inside(vector):
        seen.append(short((scores, None, k, out, None, live, *(asked | {"row_to_request": vector}).values())))
        return vector

    torch.func.vmap(inside)(torch.stack([VECTOR, VECTOR]))
    freed = torch.ones(ROWS, dtype=torch.int32)
    freed.untyped_storage().resize_(0)
    seen.append(short((scores, None, k, out, None, live, *(asked | {"starts": freed}).values())))
    assert seen == [None, None] and len(driver.launches) == launched + 1


def test_new_arrays_of_a_call_are_its_own(ready):
    asked = ready("options")
    del asked["out"], asked["values"]
    ask(**asked, values=True)
    first, second = (fast_alone(**asked, values=True) for _ in range(2))
    assert [part.dtype for part in first] == [torch.int32, torch.float32, torch.int32]
    for one, two in zip(first, second, strict=True):
        assert one.shape == (ROWS, K) and one.data_ptr() != two.data_ptr() and torch.equal(one, two)
