"""`ksieve import`: every source type, stacks, lengths, streaming, errors that name the file, and misleading files."""

import pickle
import sys
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ksieve.core.errors import ArgumentError, BackendError, FileFormatError, KsieveError
from ksieve.core.installation import install_command
from ksieve_lab.captures.format import Capture
from ksieve_lab.captures.importers import import_scores
from ksieve_lab.captures.numbers import narrow
from ksieve_lab.captures.writer import write_factors
from ksieve_lab.cli.app import main

STACK = np.random.default_rng(3).standard_normal((2, 3, 5, 8)).astype(np.float32)
LENGTHS = np.arange(30).reshape(2, 3, 5) % 9
SCORES = np.random.default_rng(0).standard_normal((7, 30)).astype(np.float32)
ROW_LENGTHS = np.array([0, 30, -2, 5, 31, 6, 7])


def npy(path: Path, **arrays: np.ndarray) -> Path:
    np.save(path.with_suffix(".npy"), arrays["scores"])
    return path.with_suffix(".npy")


def fortran(path: Path, **arrays: np.ndarray) -> Path:
    np.save(path.with_suffix(".npy"), np.asfortranarray(arrays["scores"]))
    return path.with_suffix(".npy")


def plain(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def tensors(path: Path, **arrays: np.ndarray) -> Path:
    save_file(arrays, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def torch(path: Path, **arrays: np.ndarray) -> Path:
    library = pytest.importorskip("torch")
    library.save({name: library.from_numpy(array) for name, array in arrays.items()}, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


SAVERS = pytest.mark.parametrize("save", [npy, fortran, plain, npz, tensors, torch])
OF_SEVERAL = (plain, npz, tensors, torch)


def read(path: Path) -> tuple[np.ndarray, list[int]]:
    with Capture(path) as found:
        return found.rows_block(0, found.rows), found.lengths.tolist()


# ---- what is imported --------------------------------------------------------------------------------------


@SAVERS
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_one_matrix_or_all_of_a_stack(tmp_path, save, max_bytes):
    source, out = save(tmp_path / "stack", scores=STACK), tmp_path / "out.safetensors"
    for index in ((0, 0), (1, 2), (0, 1)):
        import_scores(source, out, index=index, max_bytes=max_bytes)
        assert np.array_equal(read(out)[0], STACK[index])
    import_scores(source, out, flatten=True, lengths="causal", max_bytes=max_bytes)
    assert np.array_equal(read(out)[0], STACK.reshape(-1, 8))
    assert read(out)[1] == [4, 5, 6, 7, 8] * 6
    import_scores(source, out, index=[1, 1], lengths=LENGTHS)
    assert read(out)[1] == LENGTHS[1, 1].tolist()
    import_scores(source, out, flatten=True, lengths=LENGTHS)
    assert read(out)[1] == LENGTHS.reshape(-1).tolist()
    import_scores(source, out, index=[1, 1], lengths=LENGTHS[0, 0])
    assert read(out)[1] == LENGTHS[0, 0].tolist()


@pytest.mark.parametrize("save", OF_SEVERAL)
def test_arrays_of_a_file_by_name(tmp_path, save):
    out = tmp_path / "out.safetensors"
    source = save(tmp_path / "a", logits=SCORES, lengths=ROW_LENGTHS, other=np.zeros(3))
    import_scores(source, out, name="logits", max_bytes=1)
    scores, lengths = read(out)
    assert (scores.tobytes(), lengths) == (SCORES.tobytes(), ROW_LENGTHS.tolist())
    source = save(tmp_path / "a", scores=SCORES, valid=ROW_LENGTHS)
    import_scores(source, out)
    assert read(out)[1] == [30] * 7
    import_scores(source, out, lengths_name="valid")
    assert read(out)[1] == ROW_LENGTHS.tolist()
    import_scores(save(tmp_path / "a", only=SCORES), out)
    assert read(out)[0].tobytes() == SCORES.tobytes()


@pytest.mark.parametrize(("max_bytes", "blocks"), [(1, 7), (30 * 8 * 3, 3), (1 << 20, 1)])
def test_facts_and_progress(tmp_path, max_bytes, blocks):
    np.save(tmp_path / "a.npy", SCORES)
    seen = []
    import_scores(
        tmp_path / "a.npy", tmp_path / "a.safetensors", k=4, metadata={"title": "t"}, max_bytes=max_bytes,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen[-1] == (7, 7) and len(seen) == blocks
    with Capture(tmp_path / "a.safetensors") as capture:
        assert (capture.k, capture.dtype, capture.lengths.tolist()) == (4, "float32", [30] * 7)
        assert capture.metadata["source"] == "a.npy" and capture.metadata["title"] == "t"


def test_a_lone_tensor_of_any_layout(tmp_path):
    torch = pytest.importorskip("torch")
    source = torch.from_numpy(SCORES).to(torch.bfloat16)
    for tensor in (source, source.t().contiguous().t(), source.clone().requires_grad_()):
        torch.save(tensor, tmp_path / "a.pt")
        import_scores(tmp_path / "a.pt", tmp_path / "a.safetensors")
        assert read(tmp_path / "a.safetensors")[0].tobytes() == narrow(SCORES, "bfloat16").tobytes()


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (SCORES.astype(">f4"), "float32"),
        (SCORES.astype(np.float16), "float16"),
        (SCORES.astype(ml_dtypes.bfloat16), "bfloat16"),
        (SCORES.astype(ml_dtypes.bfloat16).view(np.uint16), "bfloat16"),
    ],
    ids=["big-endian", "float16", "ml_dtypes", "bits"],
)
def test_npy_dtypes(tmp_path, array, dtype):
    np.save(tmp_path / "a.npy", array)
    import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors", max_bytes=300)
    with Capture(tmp_path / "a.safetensors") as capture:
        assert capture.dtype == dtype
        expected = array.view(np.uint16) if dtype == "bfloat16" else array
        assert (capture.rows_block(0, 7) == expected).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rounding_on_request(tmp_path, dtype):
    wide = np.array([[1 / 3, 1e30, -1e300, np.nan, 65520.0, 1 + 2**-9]])
    np.save(tmp_path / "a.npy", wide)
    with pytest.raises(FileFormatError, match=r'scores of dtype float64; takes .*rounded on request: dtype="float32"'):
        import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors")
    import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors", dtype=dtype)
    expected = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    with np.errstate(over="ignore"):
        rounded = wide.astype(np.float32).astype(expected)
    with Capture(tmp_path / "a.safetensors") as capture:
        assert capture.dtype == dtype
        np.testing.assert_array_equal(capture.rows_block(0, 1).view(rounded.dtype).astype(float), rounded.astype(float))


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (1, 4), (0, 4)])
def test_causal_lengths(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.float32))
    import_scores(tmp_path / "a.npy", tmp_path / "out.safetensors", lengths="causal")
    rows, width = shape
    assert read(tmp_path / "out.safetensors")[1] == [r + 1 + (width - rows) for r in range(rows)]


def test_lengths_from_a_file_and_from_an_array(tmp_path):
    np.save(tmp_path / "a.npy", SCORES)
    np.save(tmp_path / "lengths.npy", ROW_LENGTHS)
    np.savez(tmp_path / "lengths.npz", a=np.zeros(2), n=ROW_LENGTHS)
    huge = np.array([1 << 40, -(1 << 40), 0, 0, 0, 0, 0])
    for lengths, name, expected in (
        (tmp_path / "lengths.npy", None, ROW_LENGTHS),
        (str(tmp_path / "lengths.npz"), "n", ROW_LENGTHS),
        (ROW_LENGTHS.astype(np.int16), None, ROW_LENGTHS),
        (huge, None, np.clip(huge, 1 - (1 << 31), (1 << 31) - 1)),
    ):
        import_scores(tmp_path / "a.npy", tmp_path / "a.safetensors", lengths=lengths, lengths_name=name)
        assert read(tmp_path / "a.safetensors")[1] == expected.tolist()


@pytest.mark.parametrize("save", [npy, npz])
def test_a_matrix_is_never_held_whole(tmp_path, save):
    source = save(tmp_path / "a", scores=np.zeros((64, 1 << 16), np.float32))  # 16 MiB
    tracemalloc.start()
    try:
        import_scores(source, tmp_path / "a.safetensors", max_bytes=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_the_command_line(tmp_path, monkeypatch, capsys):
    source, out = tensors(tmp_path / "stack", a=STACK, b=np.zeros(3, "f4")), tmp_path / "out.safetensors"

    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["ksieve", "import", str(source), str(out), *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, " ".join(capsys.readouterr().err.split())

    assert run("--name", "a", "--index", "1,2", "--lengths", "causal")[0] == 0
    assert np.array_equal(read(out)[0], STACK[1, 2]) and read(out)[1] == [4, 5, 6, 7, 8]
    assert run("--name", "a", "--flatten")[0] == 0
    assert read(out)[0].shape == (30, 8)
    for words, said in (
        ((), "error: --name: got nothing; takes an array of "),
        ((), "'a' (2 x 3 x 5 x 8, F32), 'b' (3, F32)"),
        (("--name", "a"), "(2, 3, 5, 8)"),
        (("--name", "a"), "one matrix, such as --index 0,0 (0 to 1, 0 to 2), or all with --flatten"),
        (("--name", "a", "--index", "7"), "error: --index: got (7,); takes 2 of them"),
        (("--name", "a", "--index", "x"), "--index: got 'x'; takes ints with commas"),
        (("--name", "b"), "shape (3,); takes a matrix"),
    ):
        code, err = run(*words)
        assert code == 2 and said in err


# ---- errors ------------------------------------------------------------------------------------------------


def refused(source, error=FileFormatError, **options):
    """What is said of a source that is not imported; nothing is left of it."""
    before = sorted(source.parent.iterdir())
    with pytest.raises(error) as caught:
        import_scores(source, source.parent / "refused.safetensors", **options)
    assert sorted(source.parent.iterdir()) == before
    return str(caught.value)


@SAVERS
def test_a_choice_that_is_missing_or_wrong_lists_what_there_is(tmp_path, save):
    source, out = save(tmp_path / "stack", scores=STACK), tmp_path / "out.safetensors"
    with pytest.raises(FileFormatError, match=r"shape \(2, 3, 5, 8\).*index=\(0, 0\) \(0 to 1, 0 to 2\).*flatten=True"):
        import_scores(source, out)
    for index in ((), (1,), (1, 3), (-1, 0), (0, 0, 0), (True, 0), ("0", "0")):
        with pytest.raises(ArgumentError, match=r"^index: got .*2 of them, 0 to 1, 0 to 2"):
            import_scores(source, out, index=index)
    assert refused(source, ArgumentError, index=(0, 0), flatten=True).startswith("flatten: ")
    flat = save(tmp_path / "flat", scores=STACK[0, 0])
    assert refused(flat, ArgumentError, index=(0,)).startswith("index: got (0,); takes none")
    import_scores(flat, out, flatten=True)
    assert np.array_equal(read(out)[0], STACK[0, 0])
    if save not in OF_SEVERAL:
        assert f"which is not taken: {flat} holds a single array" in refused(flat, ArgumentError, name="x")
        return
    several = save(tmp_path / "several", a=STACK, b=np.zeros((4, 6)), lengths=LENGTHS)
    with pytest.raises(ArgumentError, match=r"^name: got None; takes an array of .*'a'"):
        import_scores(several, out)
    assert refused(several, ArgumentError, name="z").startswith("name: got 'z'; takes an array of ")
    import_scores(several, out, name="a", index=(1, 0))
    assert read(out)[1] == LENGTHS[1, 0].tolist()


def test_options_that_do_not_fit(tmp_path):
    path, lengths = tmp_path / "a.npy", tmp_path / "lengths.npy"
    np.save(path, SCORES[:6])
    np.save(lengths, ROW_LENGTHS)
    said = "lengths: got dtype float64, shape (7,); takes integers of shape (6,)"
    assert refused(path, ArgumentError, lengths=ROW_LENGTHS.astype(float)).startswith(said)
    said = f"lengths in {lengths}: got dtype int64, shape (7,); takes integers of shape (6,)"
    assert refused(path, ArgumentError, lengths=lengths).startswith(said)
    assert refused(path, ArgumentError, lengths="causal", lengths_name="n").startswith("lengths_name: ")
    assert refused(path, ArgumentError, dtype="int8").startswith("dtype: got 'int8'; takes one")
    np.save(path, np.zeros((5, 4), np.float32))
    assert "no causal window" in refused(path, ArgumentError, lengths="causal")


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.zeros(5, np.float32), "holds an array of shape (5,); takes a matrix (rows, width)"),
        (np.zeros((2, 2), np.int32), "scores of dtype int32; takes float32"),
        (np.array([[None]]), "not a readable .npy file ("),
    ],
)
def test_arrays_that_are_no_score_matrix(tmp_path, array, problem):
    np.save(tmp_path / "a.npy", array)
    assert refused(tmp_path / "a.npy").startswith(f"{tmp_path / 'a.npy'}: {problem}")


def test_files_that_are_no_source(tmp_path, monkeypatch):
    assert refused(tmp_path / "no.npy") == f"{tmp_path / 'no.npy'}: no such file"
    (tmp_path / "a.csv").write_text("1,2")
    assert "unknown file type '.csv'; takes .npy, .npz, .pt, .pth, .safetensors" in refused(tmp_path / "a.csv")
    (tmp_path / "a.npz").write_bytes(b"garbage, no archive")
    assert refused(tmp_path / "a.npz").startswith(f"{tmp_path / 'a.npz'}: not a readable .npz file (")
    np.save(tmp_path / "cut.npy", SCORES)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-5])
    assert "not a readable .npy file" in refused(tmp_path / "cut.npy")
    path = tmp_path / "f.safetensors"
    write_factors(path, q=np.ones((8, 2, 4), "f4"), keys=np.ones((9, 4), "f4"), weights=np.ones((8, 2), "f4"))
    assert refused(path) == f"{path}: a capture already, of factors: it needs no import"
    assert "'k' (9 x 4, F32)" in refused(path, ArgumentError, name="z")
    (tmp_path / "a.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    message = refused(tmp_path / "a.pt", BackendError)
    assert message == f"{tmp_path / 'a.pt'}: reading a torch file needs PyTorch: {install_command('torch')}"


def test_a_damaged_archive_member_is_noticed_while_streaming(tmp_path):
    scores = np.random.default_rng(2).random((64, 4096), dtype=np.float32)
    path = plain(tmp_path / "a", scores=scores)
    data = bytearray(path.read_bytes())
    data[data.index(scores.tobytes()[-40:])] ^= 1
    path.write_bytes(data)
    assert refused(path, max_bytes=1 << 16).startswith(f"{path}: not a readable .npz file (Bad CRC-32")


def test_damaged_and_foreign_torch_files(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    path.write_bytes(b"no torch file")
    assert refused(path).startswith(f"{path}: not a readable .pt file (")
    for held, said in (
        ([torch.zeros(2, 2)], "holds a list; takes a tensor or a dict of tensors"),
        ({"a": 1}, "holds no array"),
        (torch.zeros(2, 2).to(torch.float8_e4m3fn), "a torch.strided tensor of float8_e4m3fn; takes a dense one of"),
        (torch.zeros(2, 2).to_sparse(), "a torch.sparse_coo tensor of float32; takes a dense one"),
        (torch.zeros(2, 2, dtype=torch.int64), "scores of dtype int64; takes float32"),
    ):
        torch.save(held, path)
        assert refused(path).startswith(f"{path}: {said}")


# ---- files made to mislead ---------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("bombed"),))


def test_no_pickle_is_executed(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    bomb = pickle.dumps(Bomb(), protocol=2)
    np.save("a.npy", np.array([[Bomb()]]), allow_pickle=True)
    np.savez("a.npz", scores=np.array([[Bomb()]]))
    with zipfile.ZipFile("a.pt", "w") as archive:
        archive.writestr("a/data.pkl", bomb)
        archive.writestr("a/version", "3")
    Path("b.pt").write_bytes(bomb)
    Path("b.npy").write_bytes(bomb)
    for name in ("a.npy", "a.npz", "a.pt", "b.pt", "b.npy"):
        assert name in refused(Path(name))
    assert not Path("bombed").exists()


def npy_header(shape: object, descr: str = "<f4", order: bool = False) -> bytes:
    text = repr({"descr": descr, "fortran_order": order, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        npy_header((1 << 62, 4)),
        npy_header(((1 << 31) - 1, 0)),
        npy_header((0, 1 << 62)),
        npy_header((-1, 4)),
        npy_header((2, 4), "|O"),
        npy_header("x"),
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"garbage, not an array",
    ],
)
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_hostile_npy_headers(tmp_path, content, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "npy":
        path.write_bytes(content + b"\0" * 16)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("scores.npy", content + b"\0" * 16)
    message = refused(path, KsieveError)
    assert str(path) in message and len(message) < 1000


# ---- narrowing ---------------------------------------------------------------------------------------------


def test_narrow_rounds_bfloat16_as_ml_dtypes_does():
    bits = np.random.default_rng(1).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    ties = (np.arange(1 << 16, dtype=np.uint32) << 16) | np.uint32(0x8000)
    x = np.concatenate([bits, ties, ties + np.uint32(1), ties - np.uint32(1)]).view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    got = narrow(x, "bfloat16")
    nan = np.isnan(x)
    assert (got[~nan] == expected[~nan]).all()
    assert np.isnan(got[nan].view(ml_dtypes.bfloat16).astype(np.float32)).all()
    assert ((got[nan] >> 15) == (x[nan].view(np.uint32) >> 31)).all()
    assert narrow(got, "bfloat16").tobytes() == np.where(nan, got | 0x40, got).astype(np.uint16).tobytes()
    with pytest.raises(ArgumentError, match="dtype: got 'float64'"):
        narrow(x, "float64")
