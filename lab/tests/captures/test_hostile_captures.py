"""Captures made to break their reader: each is a typed error that names the file, or an exact result."""

import json
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ksieve import verify
from ksieve.core.errors import FileFormatError, KsieveError
from ksieve.files import stream
from ksieve_lab.captures.format import open_capture
from ksieve_lab.captures.writer import CaptureWriter, write_factors

BIG = 1 << 62


def write(path: Path, header: object, data: bytes = b"", size: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
        if size is not None:  # a hole, of no blocks on disk
            file.truncate(8 + len(text) + size)
    return path


def scores(shape, size: int = 0, dtype: str = "F32", **more) -> dict:
    return {"scores": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}, **more}


def factors(q, k, w) -> dict:
    header, at = {}, 0
    for name, shape in (("q", q), ("k", k), ("w", w)):
        size = 4 * int(np.prod(np.array(shape, object)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header


EMPTY_LENGTHS = {"lengths": {"dtype": "I32", "shape": [0], "data_offsets": [0, 0]}}
HOSTILE = {
    "rows beyond int64": (scores([1 << 63, 0]), 0),
    "width beyond int32": (scores([0, BIG]), 0),
    "a sparse row beyond int32": (scores([1, 1 << 31], 4 << 31), 4 << 31),
    "32 GiB of lengths": (scores([1 << 33, 0]), 0),
    "8 GiB of lengths": (scores([(1 << 31) - 1, 0]), 0),
    "many queries of nothing": (factors([1 << 30, 0, 8], [4, 8], [1 << 30, 0]), 128),
    "many keys of nothing": (factors([1, 2, 0], [(1 << 31) - 1, 0], [1, 2]), 8),
    "many heads": (factors([0, BIG, 0], [4, 0], [0, BIG]), 0),
    "many dimensions": (factors([0, 0, BIG], [0, BIG], [0, 0]), 0),
    "many digits": (scores([0, 4], __metadata__={"ksieve_capture": "1", "topk": "9" * 5000}), 0),
    "digits of another script": (scores([0, 4], __metadata__={"ksieve_capture": "1", "topk": "٣"}), 0),
    "an overlap": ({**scores([1, 4], 16), "x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, 16),
    "a range too short": (scores([2, 4], 16), 16),
    "a gap": ({**scores([1, 4], 16), "x": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, 24),
    "an 8-bit float": (scores([1, 4], 4, "F8_E4M3"), 4),
    "another 8-bit float": (scores([1, 4], 4, "F8_E5M2"), 4),
    "text for a shape": ({"scores": {"dtype": "F32", "shape": "12", "data_offsets": [0, 8]}}, 8),
    "metadata that is a list": (scores([0, 4], __metadata__=["ksieve_capture"]), 0),
    "metadata of numbers": (scores([0, 4], __metadata__={"topk": 3}), 0),
    "no header": ([], 0),
    "deep JSON": (b"[" * 100_000, 0),
    "deep metadata": (b'{"__metadata__":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001, 0),
    "a lone surrogate": (b'{"__metadata__":{"a":"\\ud800"}}', 0),
    "a tensor named twice": (
        b'{"scores":{"dtype":"F32","shape":[1,4],"data_offsets":[0,16]},'
        b'"scores":{"dtype":"F32","shape":[1,1073741824],"data_offsets":[0,4294967296]}}',
        16,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_capture_is_a_typed_error(tmp_path, name):
    header, size = HOSTILE[name]
    path = write(tmp_path / "a.safetensors", header, size=size)
    with pytest.raises(FileFormatError) as caught, open_capture(path) as found:
        found.describe()
        stream.select(found, 2, lambda begin, indices: None)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and len(message) < len(str(path)) + 400


@pytest.mark.extended
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_capture_takes_bounded_memory(tmp_path, name):
    header, size = HOSTILE[name]
    path = write(tmp_path / "a.safetensors", header, size=size)
    code = """if True:
        import resource, sys
        import ksieve_lab.captures.format, safetensors
        from ksieve.core.errors import FileFormatError
        base = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        # Sparse files are mapped by the safetensors library, which reads none of their pages.
        resource.setrlimit(resource.RLIMIT_AS, (base + int(sys.argv[2]), -1))
        try:
            ksieve_lab.captures.format.open_capture(sys.argv[1])
        except FileFormatError:
            sys.exit(7)
    """
    room = (256 << 20) + size
    done = subprocess.run([sys.executable, "-c", code, str(path), str(room)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")


def test_a_small_capture_of_many_empty_rows_is_read(tmp_path):
    path = write(tmp_path / "a.safetensors", scores([1000, 0]))
    with open_capture(path) as found:
        assert found.lengths.tolist() == [0] * 1000
        stream.select(found, 2, lambda begin, indices: np.testing.assert_array_equal(indices, -1))


def whole(path: Path) -> None:
    rng = np.random.default_rng(5)
    if path.stem.startswith("f"):
        write_factors(
            path,
            q=rng.standard_normal((6, 2, 8)).astype(np.float16),
            keys=rng.integers(-9, 9, (40, 8)).astype(np.int8),
            key_scale=rng.random(40, dtype=np.float32),
            weights=rng.standard_normal((6, 2)).astype(np.float32),
            k=3,
        )
    else:
        with CaptureWriter(path, 6, 40, k=3, metadata={"title": "six rows"}) as writer:
            writer.write(rng.standard_normal((6, 40), dtype=np.float32), rng.integers(-3, 50, 6).astype(np.int32))


def used(path: Path) -> str:
    """Open, describe and select: the verdict of an answer, or the text of the typed error."""
    try:
        with open_capture(path) as found:
            found.describe()
            if found.rows * found.width > 1 << 24 or found.rows > 1 << 16:
                return "large"
            k = min(found.k or 3, 64)
            blocks: list[np.ndarray] = []
            stream.select(found, k, lambda begin, indices: blocks.append(indices.copy()))
            answer = np.concatenate(blocks) if blocks else np.zeros((0, k), np.int32)
            assert verify(found, None, answer, k=k).ok
            return "exact"
    except KsieveError as error:
        assert str(error).startswith(str(path)), error
        return "refused"


def random_value(pick: random.Random) -> object:
    return pick.choice(
        [
            *(
                0,
                1,
                -1,
                2,
                7,
                1 << 31,
                1 << 63,
                1 << 70,
                1.5,
                "",
                "1",
                "F32",
                "F8_E4M3",
                "F4",
                None,
                True,
                [],
                {},
                [0, 0],
            ),
            *([1, 4], [4, 1 << 31], [1 << 33, 0], [-1, 4], {"a": "b"}, "٣", "x" * 5000, "\x1b[31m", "NaN"),
        ]
    )


def mutate_header(header: dict, pick: random.Random) -> None:
    places: list[tuple[object, object]] = []

    def walk(node: object) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)) and node[key]:
                walk(node[key])

    walk(header)
    for _ in range(pick.randint(1, 3)):
        node, key = pick.choice(places)
        if isinstance(node, dict) and pick.random() < 0.2:
            node.pop(key, None)
        elif isinstance(node, dict) and pick.random() < 0.2:
            node[pick.choice(["scores", "q", "k", "w", "lengths", "k_scale", "__metadata__", "topk"])] = random_value(
                pick
            )
        elif isinstance(node, dict) or key < len(node):
            node[key] = random_value(pick)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["scores", "factors"])
def test_mutated_captures_are_refused_or_exact(tmp_path, name):
    seed = 30
    print(f"seed {seed}")
    pick = random.Random(seed)
    path = tmp_path / f"{name}.safetensors"
    whole(path)
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    outcomes = {"exact": 0, "refused": 0, "large": 0}
    before = resource.getrlimit(resource.RLIMIT_AS)
    used(path)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), before[1]))
    try:
        for _ in range(1500):
            kind = pick.randrange(4)
            if kind == 0:
                changed = bytearray(data)
                for _ in range(pick.randint(1, 4)):
                    changed[pick.randrange(end)] ^= 1 << pick.randrange(8)
                path.write_bytes(changed)
            elif kind == 1:
                path.write_bytes(data[: pick.randrange(len(data))])
            elif kind == 2:
                changed = bytearray(data)
                for _ in range(pick.randint(1, 9)):
                    changed[pick.randrange(end, len(data))] = pick.randrange(256)
                path.write_bytes(changed)
            else:
                header = json.loads(data[8:end])
                mutate_header(header, pick)
                write(path, header, data[end:])
            outcomes[used(path)] += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert outcomes["exact"] > 100 and outcomes["refused"] > 100, outcomes
