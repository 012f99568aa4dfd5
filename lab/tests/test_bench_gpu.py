"""The GPU benches without a GPU: shapes, variants, floors and what becomes of the clock readings."""

from __future__ import annotations

import json
import math

import pytest

import ksieve
from bench_host import payload
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.planning import shapes
from ksieve.tuning import tasks, timing
from ksieve_lab.bench import floor
from ksieve_lab.bench.variants import plans_of

H200 = DEVICES["h200"]


def test_plans_of_a_list_are_planned_as_it_says():
    text = json.dumps(
        [
            {"family": "stream_split", "policy": {"stride": 64, "group": 4}, "splits": 4},
            {"name": "wide", "family": "stream", "policy": "paper-64", "threads": 1024, "ctas_per_sm": 1},
        ]
    )
    found = plans_of(text)
    split = found[0].plan(16, 131_072, 512, "float32", H200)
    assert (split.family, split.splits, split.ctas, split.policy.group) == ("stream_split", 4, 64, 4)
    wide = found[1].plan(5000, 131_072, 512, "float32", H200)
    assert (found[1].name, wide.threads, wide.ctas_per_sm, wide.ctas) == ("wide", 1024, 1, H200.sm_count)
    hopper = shapes.of_class("hopper")
    for policy, table in (("paper-64", hopper.roomy), ("lines-64", hopper.usual)):
        plain = ksieve.plan(rows=5000, width=131_072, k=512, device=H200, family="stream", policy=policy)
        assert plain.threads == table["stream"].threads != wide.threads


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "a JSON list of objects"),
        ("{}", "a JSON list of objects"),
        ("[3]", "a JSON list of objects"),
        ('[{"threads":512}]', "without a family"),
        ('[{"family":"stream_split","no_such":3}]', "no_such"),
        ('[{"family":"stream_split","policy":{"strid":3}}]', "fields of SamplingPolicy"),
    ],
)
def test_a_bad_variant_is_named(text, words):
    with pytest.raises(ArgumentError, match=r"^peers: got") as raised:
        plans_of(text)
    assert words in str(raised.value)


def test_input_sets_leave_the_l2_behind():
    l2 = 50 << 20
    assert timing.input_sets(1 << 30, l2, 1 << 40) == 1
    assert timing.input_sets(20 << 20, l2, 1 << 40) == math.ceil(timing.COLD_FACTOR * 50 / 20)
    assert timing.input_sets(4096, l2, 1 << 40) == timing.MOST_SETS
    assert timing.input_sets(20 << 20, l2, 50 << 20) == 2
    assert timing.input_sets(20 << 20, l2, 1) == 1
    assert timing.input_sets(1 << 30, l2, 1 << 40, read=20 << 20) == math.ceil(timing.COLD_FACTOR * 50 / 20)
    assert timing.input_sets(1 << 30, l2, 3 << 30, read=1) == 3


def test_rounds_are_rotated_and_failures_stay_alone(monkeypatch):
    torch = pytest.importorskip("torch")
    played = []

    class Graph:
        def __init__(self, contender):
            self.contender = contender

        def replay(self):
            played.append(self.contender.name)

    class Properties:
        L2_cache_size = 1

    def capture(contender, sets):
        if contender.name == "broken":
            raise RuntimeError("no such kernel\nmore words")
        return Graph(contender)

    seconds = {"a": 1e-3, "b": 2e-3, "wrong": 4e-3, "few": 8e-3}
    monkeypatch.setattr(torch.cuda, "get_device_properties", Properties)
    monkeypatch.setattr(timing, "_capture", capture)
    monkeypatch.setattr(timing, "_timed", lambda graph, flush, n: graph.replay() or seconds[graph.contender.name] * n)
    contenders = [
        timing.Contender("a", print),
        timing.Contender("b", print, check=lambda i: True),
        timing.Contender("broken", print),
        timing.Contender("wrong", print, check=lambda i: i == 0),
        timing.Contender("few", print, rounds=2),
    ]
    a, b, broken, wrong, few = timing.measure(contenders, 2, 1000, rounds=5)
    assert a.median == pytest.approx(500)
    assert a.facts()["spread"] == pytest.approx(0)
    assert (a.exact, b.exact, wrong.exact) == (None, True, False)
    assert [len(t.rounds) for t in (a, b, broken, wrong, few)] == [5, 5, 0, 5, 2]
    assert broken.facts() == {"error": "RuntimeError: no such kernel", "exact": None}
    last = played[-15:]
    assert {last[i] for i in (0, 3, 6, 9, 12)} > {"a"}, f"rounds always start alike: {last}"


@pytest.mark.parametrize("replays", [0, 2, 4])
def test_a_lost_context_is_its_culprit_s(monkeypatch, replays):
    torch = pytest.importorskip("torch")
    timed = []

    def time_one(graph, flush, n):
        timed.append(graph.name)
        if graph.name == "b" and timed.count("b") > replays:
            raise RuntimeError("operation not supported on global/shared address space")
        return 1e-3

    monkeypatch.setattr(torch.cuda, "get_device_properties", type("Properties", (), {"L2_cache_size": 1}))
    monkeypatch.setattr(timing, "_capture", lambda contender, sets: contender)
    monkeypatch.setattr(timing, "_judge", lambda contender, found, *_: setattr(found, "exact", True))
    monkeypatch.setattr(timing, "_timed", time_one)
    contenders = [timing.Contender(name, print) for name in "abc"]
    a, b, c = timing.measure(contenders, 2, 1000, rounds=3)
    assert [len(t.rounds) for t in (a, b, c)] == [3, 0, 3] and not b.lost and b.exact is None, "the others go on"
    timed.clear()
    monkeypatch.setattr(timing, "context_lost", lambda: True)
    a, b, c = timing.measure(contenders, 2, 1000, rounds=3)
    assert timed[-1] == "b", "nothing runs afterwards"
    assert [t.lost for t in (a, b, c)] == [False, True, False]
    assert b.facts() == {"error": "RuntimeError: operation not supported on global/shared address space", "exact": None}
    for other in (a, c):
        assert other.facts() == {"error": "not measured: the GPU context was lost by b", "exact": None}


def test_a_context_is_lost_if_waiting_for_the_device_fails(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for errors, lost in (((), False), ((1,), False), ((1, 1), True)):
        left = list(errors)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda left=left: left and 1 / (left.pop() - 1))
        assert timing.context_lost() is lost


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_plain_reads_compile_without_spills(device):
    compiler = pytest.importorskip("ksieve.backends.cuda.jit.compile")
    pytest.importorskip("cuda.core")
    kernels = floor.available(device)
    assert (floor.BULK in {k.mode for k in kernels}) == (device.capability >= (9, 0))
    for kernel in kernels[:: 1 if device is H200 else 4]:
        spec = kernel.spec(device)
        used = compiler.compile_kernel(spec, floor.sources()).resources
        assert used.spill_loads == used.spill_stores == 0
        shared = spec.shared_bytes + used.static_shared
        assert shared <= device.shared_per_block or device.shared_per_block < H200.shared_per_block
        if kernel.ctas_per_sm:
            assert kernel.threads * kernel.ctas_per_sm <= 2048


def end_share(lengths, indices):
    """Mean share of the selected positions that lie in the first or last decile of their rows."""
    place = (indices.float() + 0.5) / lengths[:, None].float()
    chosen = indices >= 0
    ends = ((place < 0.1) | (place >= 0.9)) & chosen
    return float(ends.sum() / chosen.sum())


def test_endpoint_scores_are_where_they_should_be():
    torch = pytest.importorskip("torch")
    from ksieve_lab.bench import scores

    for kind, rows, width, k in (("causal", 32, 65_536, 2048), ("ragged", 8, 16_384, 512)):
        lengths = scores.lengths_of(kind, rows, width, device="cpu")
        matrix = torch.empty(rows, width)
        tasks.endpoint_structured(matrix, lengths, seed=1)
        assert bool(matrix.isfinite().all())
        share = end_share(lengths, ksieve.topk(matrix, lengths, k))
        assert 0.52 < share < 0.74
        again = torch.empty(rows, width)
        tasks.endpoint_structured(again, lengths, seed=1)
        assert bool((again == matrix).all())
    with pytest.raises(ArgumentError, match="lengths"):
        scores.lengths_of("long", 1, 1, device="cpu")
    assert scores.lengths_of("300", 2, 1000, device="cpu").tolist() == [300, 300]
    assert scores.lengths_of("3000", 1, 1000, device="cpu").tolist() == [1000]


def test_without_a_gpu_the_remedy_is_named(monkeypatch):
    pytest.importorskip("torch")
    from conftest import cuda_devices

    from ksieve.core.errors import BackendError

    if cuda_devices():
        pytest.skip("there is one")
    with pytest.raises(BackendError, match=r"driver|GPU|ksieve\[cuda\]"):
        payload("gpu", shapes="1x1")
