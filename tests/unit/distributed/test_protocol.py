"""All ranks in one process: every schedule is exact for every input, and sends the messages that it states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cases import FAMILIES, scores_of
from ksieve import ArgumentError
from ksieve.core.options import Options
from ksieve.distributed import LINKS, Contiguous, Digits, Interleaved, Link, Pairs, Samples, Shape, choose
from ksieve.distributed.schedules import Message, candidates, check_link, messages
from ksieve_lab import simulate
from sharded import check_simulated, expected, owner_of

hypothesis = pytest.importorskip("hypothesis")
torch = pytest.importorskip("torch")

from hypothesis import strategies as st  # noqa: E402


def shape_of(scores, k, world, layout, widths, tie_break):
    bits = 32 if scores.dtype == np.float32 else 16
    extent = max(layout.extent(widths), 1)
    return Shape(scores.shape[0], k, world, extent, bits, isinstance(layout, Contiguous), tie_break == "high")


@st.composite
def calls(draw):
    """Rows of few values, so that most boundaries are ties; shards of any widths; windows; a k of each row."""
    rows, world = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    width, k = draw(st.integers(0, 120)), draw(st.integers(1, 60))
    dtype, family = draw(st.sampled_from(["float32", "float16", "bfloat16"])), draw(st.sampled_from(sorted(FAMILIES)))
    scores = scores_of(family, rows, width, min(k, max(width, 1)), dtype, seed=draw(st.integers(0, 99)))
    layout = draw(st.sampled_from([Contiguous(), Interleaved(1), Interleaved(5), Interleaved(40)]))
    widths = layout.widths(width, world)
    if isinstance(layout, Contiguous):
        cuts = sorted(draw(st.lists(st.integers(0, width), min_size=world - 1, max_size=world - 1)))
        widths = tuple(np.diff([0, *cuts, width]).tolist())
    begin, end = (
        np.array(draw(st.lists(st.integers(-2, width + 2), min_size=rows, max_size=rows)))
        if draw(st.booleans())
        else None
        for _ in range(2)
    )
    ks = np.array(draw(st.lists(st.integers(-1, k + 1), min_size=rows, max_size=rows))) if draw(st.booleans()) else None
    call = {
        "tie_break": draw(st.sampled_from(["low", "high"])),
        "largest": draw(st.booleans()),
        "nan": draw(st.sampled_from(["last", "highest"])),
    }
    steps = st.integers(1, k).map(Samples)
    schedule = draw(st.one_of(st.just(Pairs()), steps, steps, st.sampled_from([Digits(3), Digits(8), Digits(11)])))
    return scores, k, layout, widths, begin, end, ks, call, schedule, draw(st.sampled_from(["owned", "global"]))


@hypothesis.given(calls())
@hypothesis.settings(max_examples=500)
def test_any_row_on_any_ranks(case):
    scores, k, layout, widths, begin, end, ks, call, schedule, output = case
    options = Options(windows="none" if begin is None else "ends", **call)
    found = simulate(
        scores, end, k, world=len(widths), layout=layout, widths=widths, schedule=schedule, output=output,
        options=options, starts=begin, ks=ks,
    )  # fmt: skip
    want = expected(scores, k, begin, None if end is None and begin is None else end, ks, **call)
    check_simulated(found, want, owner_of(layout, widths))
    shape = shape_of(scores, k, len(widths), layout, widths, call["tie_break"])
    assert found.messages == messages(schedule, shape, output)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("schedule", "layout"),
    [(Pairs(), Interleaved(2)), (Samples(4), Contiguous()), (Digits(8), Contiguous())],
    ids=str,
)
def test_a_thousand_ranks(schedule, layout):
    """More ranks than scores in some rows, most of them empty, and rows of one value."""
    rng = np.random.default_rng(4)
    scores = np.stack([rng.standard_normal(3000), np.zeros(3000), np.arange(3000)]).astype(np.float32)
    lengths = np.array([3000, 2500, 7])
    found = simulate(scores, lengths, 16, world=1024, layout=layout, schedule=schedule)
    widths = layout.widths(3000, 1024)
    check_simulated(found, expected(scores, 16, end=lengths), owner_of(layout, widths))


# ---- what is refused ---------------------------------------------------------------------------------------

X = np.zeros((2, 6), np.float32)
RAGGED = [[1, 2], [3]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"scores": X.astype(np.int32)}, "scores: got dtype int32; takes dtype float32"),
        ({"scores": [[1.0, 2.0]]}, "scores: got list; takes"),
        ({"k": 1.5}, "k: got float 1.5; takes an int from 1 to"),
        ({"world": True}, "world: got True; takes an int of at least 1"),
        ({"layout": "x"}, "layout: got 'x'; takes Contiguous"),
        ({"widths": (1, 2)}, r"widths: got \(1, 2\); takes those of 2 shards that hold the 6 positions of a row"),
        ({"widths": np.array(6)}, r"widths: got array\(6\); takes an int of at least 0 for every rank"),
        ({"widths": (4, 2), "layout": Interleaved(3)}, r"widths: got \(4, 2\); takes those of 2 shards"),
        ({"schedule": Samples(4)}, r"schedule: got Samples\(step=4\); takes a number from 1 to 3 in Samples"),
        ({"schedule": Digits(64)}, r"schedule: got Digits\(bits=64\); takes a number from 1 to 20 in Digits"),
        ({"output": "x"}, "output: got 'x'; takes one of 'owned', 'global'"),
        ({"options": Options(next_n=4)}, "next_n: got 4; takes a divisor of the 2 rows"),
        ({"lengths": [1, 2, 3]}, r"lengths: got int64 of shape \(3,\)"),
        ({"lengths": [1.0, 2.0]}, r"lengths: got float64 of shape \(2,\)"),
        ({"starts": RAGGED}, r"starts: got list; takes integers of shape \(2,\)"),
        ({"ks": 3}, r"ks: got int64 of shape \(\); takes integers of shape \(2,\)"),
    ],
    ids=lambda case: None if isinstance(case, str) else "-".join(case),
)
def test_the_simulator_refuses_what_a_plan_does(call, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        simulate(**{"scores": X, "k": 3, "world": 2} | call)


def test_forms_of_the_arguments_of_the_simulator():
    """NumPy's numbers are ints, rows need not be contiguous, and lengths of any integer dtype are clamped."""
    scores = np.arange(24, dtype=np.float32).reshape(2, 12)[:, ::2]
    want = [[0, 1, 2], [3, 4, 5]]
    for widths in (np.array([4, 2]), [np.int64(4), 2]):
        found = simulate(scores, np.array([3, 2**63], np.uint64), np.int64(3), world=np.int64(2), widths=widths)
        check_simulated(found, want, lambda p: int(p >= 4))
    assert simulate(X[:0], [], 3, world=2, ks=()).owned == [[], []]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("x", "nvlink"), r"shape: got 'x'; takes a ksieve\.distributed\.Shape"),
        ((Shape(1, 2, 3, 4), "y"), "link: got 'y'; takes one of 'nvlink'"),
        ((Shape(1, 2, 3, 4), "gloo", "z"), "output: got 'z'; takes one of 'owned', 'global'"),
    ],
)
def test_a_choice_is_made_of_facts(call, message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        choose(*call)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", -1), ("k", 0), ("k", 1.5), ("world", 0), ("extent", 0), ("extent", 1 << 31), ("key_bits", 8)],
)
def test_a_shape_has_numbers_in_range(name, value):
    with pytest.raises(ArgumentError, match=f"^{name}: got "):
        Shape(**{"rows": 1, "k": 2, "world": 3, "extent": 4} | {name: value})


# ---- the choice --------------------------------------------------------------------------------------------


def test_messages_do_not_grow_with_the_width_or_the_values():
    for schedule in (Pairs(), Samples(32), Digits(8)):
        narrow, wide = (Shape(64, 2048, 8, extent) for extent in (1 << 14, 1 << 20))
        assert messages(schedule, narrow, "owned") == messages(schedule, wide, "owned")


def test_two_ranks_take_two_messages_of_a_kilobyte_a_row():
    shape = Shape(512, 2048, 2, 1 << 20)
    chosen = choose(shape, LINKS["nvlink"])
    sent = messages(chosen, shape, "owned")
    assert isinstance(chosen, Samples) and [m.kind for m in sent] == ["all-gather", "all-reduce"]
    assert all(m.size <= 1536 * shape.rows for m in sent)
    link = replace(LINKS["nvlink"], fixed_us=0, slot_ns=0)
    assert link.total_us(chosen, shape) < 0.5 * link.total_us(Pairs(), shape)
    assert LINKS["nvlink"].total_us(chosen, shape) - link.total_us(chosen, shape) == pytest.approx(
        25 + 0.043 * 512 * 2.048
    )


def test_each_schedule_is_the_best_somewhere():
    """Pairs where latency is all, samples on a node, histograms on a cluster; never worse than pairs by the model."""
    chosen = set()
    for link in LINKS.values():
        for world in (2, 3, 8, 128, 1024):
            for rows in (1, 64, 512, 8192):
                for k in (1, 16, 2048):
                    shape = Shape(rows, k, world, 1 << 20)
                    best = choose(shape, link)
                    chosen.add(type(best))
                    assert link.total_us(best, shape) <= link.total_us(Pairs(), shape)
                    assert best in candidates(shape)
    assert chosen == {Pairs, Samples, Digits}
    assert isinstance(choose(Shape(1, 16, 2, 1000), "nvlink"), Pairs)
    assert isinstance(choose(Shape(8192, 2048, 1, 1 << 20), LINKS["nvlink"]), Pairs)  # one rank has nothing to agree on
    assert isinstance(choose(Shape(8192, 2048, 128, 1 << 20), LINKS["network"]), Digits)


def test_a_link_models_messages():
    link = Link(10, 1, 100, "a test")
    assert link.message_us(Message("all-gather", 1000), 4) == 20 + 3
    assert link.message_us(Message("all-reduce", 1000), 4) == 20 + 1.5
    assert link.message_us(Message("all-reduce", 1000), 1) == 0
    assert check_link("gloo") is LINKS["gloo"] and check_link(link) is link
    with pytest.raises(ValueError, match="link: got 'carrier pigeon'; takes one of 'nvlink', 'network', 'gloo'"):
        check_link("carrier pigeon")
