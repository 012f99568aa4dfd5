"""`ksieve_lab.record`: what live calls saw is what the capture holds, and the calls do not notice."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ksieve
import ksieve_lab
from disk import file_sizes
from ksieve import api, dispatch
from ksieve.core import call as calls
from ksieve.core.errors import ArgumentError, BackendError
from ksieve_lab.captures.format import Capture


def rows(count, width, seed=0):
    return np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)


def test_a_recording_holds_the_scores_lengths_and_k_of_its_calls(tmp_path):
    path = tmp_path / "scores.safetensors"
    first, second = rows(5, 300), rows(3, 700, 1)
    lengths = np.array([300, -4, 20, 999, 0], np.int32)
    plain = ksieve.topk(first, lengths, k=8)
    with ksieve_lab.record(path, metadata={"model": "mine"}) as recorder:
        assert np.array_equal(np.sort(ksieve.topk(first, lengths, k=8)), np.sort(plain))
        ksieve.topk(second, k=8)
        assert not path.exists()
    ksieve.topk(second, k=8)
    assert (recorder.seen, recorder.kept, recorder.rows, recorder.full) == (2, 2, 8, False)
    with Capture(path) as capture:
        assert (capture.rows, capture.width, capture.dtype, capture.k) == (8, 700, "float32", 8)
        assert capture.lengths.tolist() == [300, 0, 20, 300, 0, 700, 700, 700]
        found = capture.rows_block(0, 8)
        assert json.loads(capture.metadata["calls"]) == [[5, 300, 8], [3, 700, 8]]
        assert capture.metadata["model"] == "mine"
    assert np.array_equal(found[3, :300], first[3])
    assert not found[3, 300:].any()
    assert np.array_equal(found[5:], second)
    assert list(tmp_path.iterdir()) == [path]
    assert dispatch.observers == ()


def test_what_is_kept_is_chosen_and_bounded(tmp_path):
    path = tmp_path / "scores.safetensors"
    blocks = [rows(10, 64, seed) for seed in range(7)]
    with ksieve_lab.record(path, every=2, calls=3, rows_per_call=4) as recorder:
        for block in blocks:
            ksieve.topk(block, k=3)
    assert (recorder.seen, recorder.kept, recorder.rows, recorder.full) == (7, 3, 12, True)
    with Capture(path) as capture:
        want = np.concatenate([blocks[i][[0, 2, 5, 7]] for i in (0, 2, 4)])
        assert np.array_equal(capture.rows_block(0, 12), want)
    with ksieve_lab.record(path, max_bytes=64 * 4 * 13) as recorder:
        for block in blocks[:2]:
            ksieve.topk(block, k=3)
    assert (recorder.rows, recorder.kept, recorder.full) == (13, 2, True)
    # A wider call widens every row: there is no room for it, and what is there stays.
    with ksieve_lab.record(path, max_bytes=64 * 4 * 13) as recorder:
        ksieve.topk(blocks[0], k=3)
        ksieve.topk(rows(4, 128), k=3)
    assert (recorder.rows, recorder.kept, recorder.full) == (10, 1, True)


def test_live_rows_alone_are_recorded(tmp_path):
    path = tmp_path / "scores.safetensors"
    scores = rows(6, 50)
    with ksieve_lab.record(path):
        ksieve.topk(scores, k=3, num_rows=np.array([2], np.int32))
    with Capture(path) as capture:
        assert np.array_equal(capture.rows_block(0, capture.rows), scores[:2])


@pytest.mark.parametrize(
    ("keywords", "want"),
    [
        ({"starts": [5, -3, 99, 0]}, [(5, 45), (0, 50), (50, 0), (0, 50)]),
        ({"starts": [5, 0, 40, 48], "lengths": [10, -1, 20, 2]}, [(5, 10), (0, 0), (40, 10), (48, 2)]),
        ({"starts": [5, 9, 40, 0], "ends": [10, 3, 99, 7]}, [(5, 5), (9, 0), (40, 10), (0, 7)]),
        ({"next_n": 2, "lengths": [30, 1]}, [(0, 29), (0, 30), (0, 0), (0, 1)]),
        ({"next_n": 4, "ends": [60]}, [(0, 50), (0, 50), (0, 50), (0, 50)]),
        ({"next_n": 2}, [(0, 49), (0, 50), (0, 49), (0, 50)]),
    ],
)
def test_of_a_window_what_lies_inside_it_is_recorded(tmp_path, keywords, want):
    arrays = {n: np.array(v, np.int32) if isinstance(v, list) else v for n, v in keywords.items()}
    scores = rows(4, 50)
    with ksieve_lab.record(tmp_path / "x") as recorder:
        recorder(calls.parse(scores, arrays.pop("lengths", None), 3, given=arrays))
    with Capture(tmp_path / "x") as capture:
        found = capture.rows_block(0, 4)
        assert capture.lengths.tolist() == [length for _, length in want]
    for row, (begin, length) in enumerate(want):
        assert np.array_equal(found[row, :length], scores[row, begin : begin + length])


def test_every_library_and_dtype(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "scores.safetensors"
    scores = torch.randn(4, 100).to(torch.bfloat16)
    with ksieve_lab.record(path, rows_per_call=3):
        ksieve.topk(scores, torch.full((4,), 90, dtype=torch.int32), k=5)
    with Capture(path) as capture:
        assert (capture.dtype, capture.k) == ("bfloat16", 5)
        want = scores[[0, 1, 2], :90].view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(capture.rows_block(0, 3)[:, :90], want)
    # Two dtypes and two k share a file: scores widen exactly, and no single k is suggested.
    half = rows(2, 40).astype(np.float16)
    with ksieve_lab.record(path):
        ksieve.topk(scores, k=5)
        ksieve.topk(half, k=6)
    with Capture(path) as capture:
        assert (capture.dtype, capture.k) == ("float32", None)
        found = capture.rows_block(0, 6)
    assert np.array_equal(found[:4], scores.float().numpy())
    assert np.array_equal(found[4:, :40], half.astype(np.float32))


def test_compiled_calls_are_recorded_when_they_run(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "scores.safetensors"
    compiled = torch.compile(lambda s: ksieve.topk(s, k=4) + 0, backend="eager", fullgraph=True)
    scores = torch.randn(3, 60)
    with ksieve_lab.record(path) as recorder:
        compiled(scores)
        compiled(scores)
    assert recorder.kept == 2
    with Capture(path) as capture:
        assert np.array_equal(capture.rows_block(3, 6), scores.numpy())


def test_a_recording_survives_a_failing_block_and_leaves_no_draft(tmp_path):
    path = tmp_path / "scores.safetensors"
    with pytest.raises(ZeroDivisionError), ksieve_lab.record(path):
        ksieve.topk(rows(2, 30), k=3)
        _ = 1 // 0
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ArgumentError, match=r"^k: got -1"), ksieve_lab.record(tmp_path / "none.safetensors"):
        ksieve.topk(rows(2, 30), k=-1)  # refused calls are not seen
    assert list(tmp_path.iterdir()) == [path]


def test_calls_of_any_rank_are_recorded_as_rows(tmp_path):
    scores = rows(6, 30)
    lengths = np.array([30, 0, 7, 31, -1, 2], np.int64)
    with ksieve_lab.record(tmp_path / "a.safetensors") as recorder:
        ksieve.topk(scores.reshape(2, 3, 30), lengths.reshape(2, 3), 3, num_rows=5)
        ksieve.topk(scores[0], k=3)
        ksieve.topk(np.broadcast_to(scores[1], (2, 30)), k=3)
        ksieve.topk(scores, k=0)
    assert (recorder.seen, recorder.kept, recorder.rows) == (4, 3, 8)
    with Capture(tmp_path / "a.safetensors") as capture:
        found = capture.rows_block(0, 8)
        assert capture.lengths.tolist() == [30, 0, 7, 30, 0, 30, 30, 30]
    for got, row, length in zip(found, scores[[0, 1, 2, 3, 4, 0, 1, 1]], [30, 0, 7, 30, 0, 30, 30, 30], strict=True):
        np.testing.assert_array_equal(got[:length], row[:length])


def test_an_empty_recording_says_so(tmp_path):
    with pytest.warns(RuntimeWarning, match="0 calls of ksieve.topk were seen"), ksieve_lab.record(tmp_path / "x"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "^every: got 0; takes an int of at least 1$"),
        ({"calls": -1}, "^calls: got -1; takes an int of at least 1 or None$"),
        ({"max_bytes": 1.5}, "^max_bytes: got 1.5"),
        ({"metadata": {"calls": "x"}}, "^metadata: got the key 'calls'"),
        ({"metadata": {"calls_seen": "1"}}, "^metadata: got the key 'calls_seen'"),
        ({"metadata": {"kind": "scores"}}, "^metadata: got the key 'kind'"),
        ({"metadata": {"model": 3}}, "^metadata: got 'model': 3"),
        ({"metadata": {"model": "\ud800"}}, "^metadata: got "),
        ({"metadata": {"model": "x" * 90_000_000}}, "^metadata: got "),
    ],
)
def test_arguments_are_named(tmp_path, options, words):
    with pytest.raises(ArgumentError, match=words):
        ksieve_lab.record(tmp_path / "x", **options)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArgumentError, match=r"^path: got .*; takes a path in a folder that exists$"):
        ksieve_lab.record(tmp_path / "none" / "x")


def test_a_capturing_stream_is_refused(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from cuda_fakes import FakeArray

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with (
        pytest.warns(RuntimeWarning, match="nothing was recorded"),
        ksieve_lab.record(tmp_path / "x") as recorder,
        pytest.raises(BackendError, match="outside the recording"),
    ):
        recorder(calls.parse(FakeArray(rows(2, 30)), None, 3))


def test_the_fast_way_of_repeated_calls_is_not_taken_while_recording(tmp_path, monkeypatch):
    """A prepared call site never sees the call: it must wait until the recording is over."""
    scores = pytest.importorskip("torch").from_numpy(rows(2, 30))
    plan = ksieve.plan(rows=2, width=30, k=3)
    key = dispatch.call_key(scores, None, None, plan, None, None, None, {})
    monkeypatch.setitem(dispatch._fast_paths, key, (lambda given: ksieve.Selection("short"),))
    assert api.topk(scores, plan=plan) == "short"
    with ksieve_lab.record(tmp_path / "x") as recorder:
        assert ksieve.topk(scores, plan=plan).shape == (2, 3)
    assert recorder.kept == 1
    assert api.topk(scores, plan=plan) == "short"


def test_inside_a_compiled_function_a_recording_breaks_the_graph_or_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "scores.safetensors"

    def select(scores):
        with ksieve_lab.record(path):
            return ksieve.topk(scores, k=4) + 0

    scores = torch.randn(3, 60)
    with pytest.raises(Exception, match=r"cannot be entered under torch\.compile"):
        torch.compile(select, backend="eager", fullgraph=True)(scores)
    torch._dynamo.reset()
    assert torch.compile(select, backend="eager")(scores).shape == (3, 4)
    with Capture(path) as capture:
        assert np.array_equal(capture.rows_block(0, 3), scores.numpy())
    assert dispatch.observers == ()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_full_disk_does_not_disturb_the_calls(tmp_path, library):
    path = tmp_path / "x"
    blocks = [rows(4, 1000, seed) for seed in range(4)]
    given = blocks
    if library == "torch":
        given = [pytest.importorskip("torch").from_numpy(block) for block in blocks]
    ksieve.topk(given[0], k=3)  # compiled, and cached while there is room
    with pytest.warns(RuntimeWarning) as warned, ksieve_lab.record(path) as recorder, file_sizes() as limit:
        limit(40_000)  # two calls and a half
        found = [np.sort(np.asarray(ksieve.topk(block, k=3))) for block in given]
    assert len(warned) == 1, [str(w.message) for w in warned]
    assert "recording stops after 2 calls" in str(warned[0].message)
    assert str(path) in str(warned[0].message)
    for block, indices in zip(blocks, found, strict=True):
        assert ksieve.verify(block, None, indices, k=3).ok
    # What was recorded whole before it is published.
    assert (recorder.kept, recorder.rows, recorder.full) == (2, 8, True)
    with Capture(path) as capture:
        assert np.array_equal(capture.rows_block(0, 8), np.concatenate(blocks[:2]))
        assert json.loads(capture.metadata["calls"]) == [[4, 1000, 3]] * 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_full_at_the_end_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    path.write_text("what was there")
    lost = pytest.warns(RuntimeWarning, match="the recording is lost: .*x")
    with file_sizes() as limit, lost, ksieve_lab.record(path):
        ksieve.topk(rows(4, 1000), k=3)
        limit(10_000)
    assert path.read_text() == "what was there" and list(tmp_path.iterdir()) == [path]


def test_an_error_of_the_recorder_in_a_thread_does_not_reach_the_call(tmp_path, monkeypatch):
    import threading

    from ksieve_lab.captures import recorder as module

    scores, found = rows(4, 1000), []

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "_rows", fails)
    with pytest.warns(RuntimeWarning, match="MemoryError") as warned, ksieve_lab.record(tmp_path / "x") as recorder:
        threads = [threading.Thread(target=lambda: found.append(ksieve.topk(scores, k=3))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(warned) == 1 and isinstance(recorder.error, MemoryError)
    assert len(found) == 4 and all(ksieve.verify(scores, None, i, k=3).ok for i in found)


def test_an_interrupt_leaves_whole_calls(tmp_path, monkeypatch):
    path = tmp_path / "x"
    first, second, third = (rows(4, 1000, seed) for seed in range(3))
    with ksieve_lab.record(path) as recorder:
        ksieve.topk(first, k=3)
        write, written = recorder._write, []

        def interrupted(data: memoryview) -> None:
            written.append(write(data))
            if len(written) == 2:
                raise KeyboardInterrupt

        recorder._write = interrupted
        with pytest.raises(KeyboardInterrupt):
            ksieve.topk(second, k=3)
        ksieve.topk(third, k=3)
    with Capture(path) as capture:
        assert np.array_equal(capture.rows_block(0, capture.rows), np.concatenate([first, third]))


def test_a_call_that_outlasts_the_recording_is_not_disturbed(tmp_path):
    scores = rows(2, 30)
    call = calls.parse(scores, None, 3)
    with ksieve_lab.record(tmp_path / "x") as recorder:
        recorder(call)
    recorder(call)
    assert recorder.kept == 1


def test_two_recordings_of_one_path_are_refused(tmp_path):
    path = tmp_path / "x"
    (tmp_path / "link").symlink_to("x")
    scores = rows(2, 30)
    for other in (path, tmp_path / "link", tmp_path / "." / ".." / tmp_path.name / "x"):
        with ksieve_lab.record(path) as outer:
            with pytest.raises(ArgumentError, match="which a recording is being made to"), ksieve_lab.record(other):
                pass
            ksieve.topk(scores, k=3)
        assert outer.kept == 1
        with Capture(path) as capture:
            assert json.loads(capture.metadata["calls"]) == [[2, 30, 3]]
    assert dispatch.observers == ()
