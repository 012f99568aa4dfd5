"""The fast path of calls with options: the general path's launch with other addresses; that path judges every fault."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ksieve  # noqa: E402
from cases import OPTION_CASES, build_call, options_of  # noqa: E402
from cuda_fakes import plan_of, torch_backend  # noqa: E402
from ksieve import dispatch  # noqa: E402
from ksieve.backends.cuda.runtime import launch  # noqa: E402
from ksieve.core import arguments  # noqa: E402
from ksieve.core import call as calls  # noqa: E402
from ksieve.core.errors import ArgumentError  # noqa: E402
from ksieve.core.options import Options  # noqa: E402
from ksieve.core.problem import Device  # noqa: E402
from ksieve.planning.devices import DEVICES  # noqa: E402

ROWS, WIDTH, K = 4, 40, 3
FLOAT32 = [case for case in OPTION_CASES if case["dtype"] == "float32"]


driver = pytest.fixture(torch_backend)


def planned(rows, width, k, options):
    plan = plan_of(rows, width, k, options)
    return replace(plan, problem=replace(plan.problem, device=Device("cuda", -1)))


def shortly(monkeypatch, *arguments, **keywords):
    """A call that the general path does not get to see."""
    with monkeypatch.context() as patch:
        patch.setattr(calls, "parse", lambda *a, **k: pytest.fail("took the general path"))
        return ksieve.topk(*arguments, **keywords)


def copied(array):
    """A tensor of the same strides elsewhere; another object itself."""
    if not isinstance(array, torch.Tensor):
        return array
    memory = array.untyped_storage().clone()
    return torch.empty(0, dtype=array.dtype).set_(memory, array.storage_offset(), array.shape, array.stride())


def listed(result):
    return [part.clone() for part in (result if isinstance(result, tuple) else [result])]


@pytest.mark.parametrize("number", range(len(FLOAT32)))
def test_the_second_call_is_the_first_one(driver, monkeypatch, number):
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
    arguments = (scores, tensor.get("lengths"), k)
    plan = planned(rows, width, inputs.k, options)
    given |= {"plan": plan, "workspace": plan.workspace()}
    first = listed(ksieve.topk(*arguments, **given))
    table = given.get("page_table")
    fast = table is None or table.numel() > 0  # without pages it has no address
    assert len(dispatch._fast_paths) == fast
    if not fast:
        return
    moved, elsewhere = {n: copied(v) for n, v in given.items()}, [copied(v) for v in arguments]
    for array in (*given.values(), *arguments):
        if isinstance(array, torch.Tensor):
            array.untyped_storage().fill_(0)
    second = listed(shortly(monkeypatch, *elsewhere, **moved))
    addresses = ("scores", "lengths", "num_rows", "indices", "options")
    one, two = ({n: v for n, v in seen.items() if n not in addresses} for seen in driver.launches)
    assert one == two
    addresses = ("starts", "row_k", "page_table", "request_of", "offsets", "values", "raw")
    one, two = ({n: v for n, v in (seen["options"] or {}).items() if n not in addresses} for seen in driver.launches)
    assert one == two
    assert len(first) == len(second)
    for before, after in zip(first, second, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before.numpy(), after.numpy())


NAMES = [
    *("scores", "lengths", "num_rows", *"-" * 5, "out", "-", "-", "workspace", *"-" * 3),
    *("starts", "k", "page_table", "row_to_request", "offsets", "values_out", "raw_out", *"-" * 9),
    *("counts_out", "tail", "positions"),
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
    arrays_of_a_call = {*arguments.ARRAYS, *arguments.UNTRACED} - {"ends"}
    assert arrays_of_a_call < set(launch.WORDS), "a new array has an address too"


VECTOR = torch.ones(ROWS, dtype=torch.int32)


def call(**changes):
    """A call with all that a fast path takes, or with changes of it."""
    options = {
        "starts": VECTOR.clone(), "ends": torch.full((ROWS,), 30, dtype=torch.int32), "index_base": "start",
        "page_table": torch.arange(ROWS * WIDTH, dtype=torch.int32).reshape(ROWS, WIDTH),
        "row_to_request": torch.arange(ROWS, dtype=torch.int32), "values_out": torch.zeros(ROWS, K),
        "return_raw": True, "out": torch.zeros(ROWS, K, dtype=torch.int32),
    }  # fmt: skip
    scores = torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)
    asked = {"scores": scores, "k": K, **options} | changes
    return {name: value for name, value in asked.items() if value is not None}


ALL = Options(
    windows="ends", index_base="start", transform="pages", mapped=True, values=True, raw=True
)  # fmt: skip


@pytest.fixture
def ready(driver, monkeypatch):
    """The plan of `call`, with its fast path."""
    plan = planned(ROWS, WIDTH, K, ALL)
    driver.asked = ALL
    ksieve.topk(**call(), plan=plan)
    assert len(shortly(monkeypatch, **call(), plan=plan)) == 3
    return plan


SHARED = torch.zeros(4 * ROWS * WIDTH, dtype=torch.int32)
DOUBTFUL = {
    "lengths beside ends": {"lengths": VECTOR},
    "starts of int64": {"starts": VECTOR.long()},
    "too few starts": {"starts": VECTOR[:3]},
    "starts with gaps": {"starts": VECTOR.repeat(2)[::2]},
    "starts of another library": {"starts": np.ones(ROWS, np.int32)},
    "ends of int64": {"ends": VECTOR.long()},
    "requests of too many rows": {"row_to_request": torch.ones(ROWS + 1, dtype=torch.int32)},
    "a vector for a table": {"page_table": VECTOR},
    "a table of float32": {"page_table": torch.zeros(ROWS, WIDTH)},
    "a table of columns": {"page_table": torch.zeros(WIDTH, ROWS, dtype=torch.int32).T},
    "a table without pages": {"page_table": torch.zeros(ROWS, 0, dtype=torch.int32)},
    "values of float16": {"values_out": torch.zeros(ROWS, K).half()},
    "values of another shape": {"values_out": torch.zeros(ROWS, K + 1)},
    "values that require grad": {"values_out": torch.zeros(ROWS, K, requires_grad=True)},
    "values in columns": {"values_out": torch.zeros(K, ROWS).T},
    "scores that require grad": {"scores": torch.zeros(ROWS, WIDTH, requires_grad=True)},
    "out that overlaps starts": {"out": SHARED[: ROWS * K].view(ROWS, K), "starts": SHARED[2 : 2 + ROWS]},
    "out that overlaps the table": {"out": SHARED[5 : 5 + ROWS * K].view(ROWS, K), "page_table": SHARED.view(4, -1)},
    "values that overlap out": {"out": SHARED[: ROWS * K].view(ROWS, K),
                                "values_out": SHARED[5 : 5 + ROWS * K].view(torch.float32).view(ROWS, K)},
    "values that overlap ends": {"ends": SHARED[:ROWS],
                                 "values_out": SHARED[1 : 1 + ROWS * K].view(torch.float32).view(ROWS, K)},
    "out of int64": {"out": torch.zeros(ROWS, K).long()},
    "a live count in out": {"out": SHARED[: ROWS * K].view(ROWS, K), "num_rows": SHARED[3:4]},
}  # fmt: skip


TAKEN = ("a table without pages", "scores that require grad", "starts of int64", "starts with gaps")
"""By the general path."""


@pytest.mark.parametrize("name", DOUBTFUL)
def test_everything_doubtful_is_left_to_the_general_path(ready, driver, monkeypatch, name):
    launched, seen, parse = len(driver.launches), [], calls.parse

    def general(*arguments, **keywords):
        seen.append(1)
        if name in TAKEN:
            raise KeyError
        return parse(*arguments, **keywords)

    monkeypatch.setattr(calls, "parse", general)
    with pytest.raises(KeyError if name in TAKEN else ArgumentError):
        ksieve.topk(**call(**DOUBTFUL[name]), plan=ready)
    assert seen == [1] and len(driver.launches) == launched


def test_tensors_without_an_address_are_left_to_the_general_path(ready, driver):
    asked, seen, launched = call(), [], len(driver.launches)
    scores, out, k = (asked.pop(name) for name in ("scores", "out", "k"))
    ((short,),) = dispatch._fast_paths.values()

    def inside(vector):
        seen.append(short((scores, None, k, out, None, None, *(asked | {"row_to_request": vector}).values())))
        return vector

    torch.func.vmap(inside)(torch.stack([VECTOR, VECTOR]))
    freed = torch.ones(ROWS, dtype=torch.int32)
    freed.untyped_storage().resize_(0)
    seen.append(short((scores, None, k, out, None, None, *(asked | {"starts": freed}).values())))
    assert seen == [None, None] and len(driver.launches) == launched


def test_other_facts_take_another_path(ready, monkeypatch):
    """What the arguments say about the plan is in the key: none of these calls runs on the plan's fast path."""
    monkeypatch.setattr(calls, "parse", lambda *a, **k: (_ for _ in ()).throw(KeyError("general")))
    others = (
        {"ends": None}, {"index_base": "row"}, {"index_base": None}, {"return_raw": 1}, {"row_to_request": None},
        {"sorted": True}, {"page_size": 1}, {"next_n": 1}, {"k": None, "max_k": K}, {"tail": VECTOR},
    )  # fmt: skip
    for changes in others:
        with pytest.raises(KeyError, match="general"):
            ksieve.topk(**call(**changes), plan=ready)
    with pytest.raises(KeyError, match="general"):
        ksieve.topk(**call())


def test_calls_without_a_plan_have_fast_paths_by_their_options(driver, monkeypatch):
    """Windows, with a plan that the planner chose; the same options in another order are another call."""
    scores, out = call()["scores"], torch.zeros(ROWS, K, dtype=torch.int32)
    windows = {"starts": VECTOR, "ends": torch.full((ROWS,), 30, dtype=torch.int32), "nan": "highest"}
    driver.asked = Options(windows="ends", nan="highest")
    ksieve.topk(scores, None, K, out=out, **windows)
    want = out.clone()
    out.fill_(-7)
    shortly(monkeypatch, scores, None, K, out=out, **windows)
    assert torch.equal(out, want) and len(dispatch._fast_paths) == 1
    ksieve.topk(scores, None, K, out=out, **dict(reversed(windows.items())))
    assert len(dispatch._fast_paths) == 2


def test_new_arrays_of_a_call_are_its_own(ready, driver, monkeypatch):
    ksieve.topk(**call(out=None), plan=ready)
    first = shortly(monkeypatch, **call(out=None), plan=ready)
    second = shortly(monkeypatch, **call(out=None), plan=ready)
    assert [part.dtype for part in first] == [torch.int32, torch.float32, torch.int32]
    for one, two in zip(first, second, strict=True):
        assert one.shape == (ROWS, K) and one.data_ptr() != two.data_ptr() and torch.equal(one, two)


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
