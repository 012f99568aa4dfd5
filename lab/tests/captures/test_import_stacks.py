"""`ksieve import`: safetensors, stacks of matrices, causal lengths, and files made to mislead its readers."""

import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ksieve.core.errors import ArgumentError, FileFormatError, KsieveError
from ksieve_lab.captures.format import open_capture
from ksieve_lab.captures.importers import import_scores
from ksieve_lab.cli.app import main

STACK = np.random.default_rng(3).standard_normal((2, 3, 5, 8)).astype(np.float32)
LENGTHS = np.arange(30).reshape(2, 3, 5) % 9


def npy(path: Path, **arrays: np.ndarray) -> Path:
    np.save(path.with_suffix(".npy"), arrays["scores"])
    return path.with_suffix(".npy")


def fortran(path: Path, **arrays: np.ndarray) -> Path:
    np.save(path.with_suffix(".npy"), np.asfortranarray(arrays["scores"]))
    return path.with_suffix(".npy")


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


SAVERS = pytest.mark.parametrize("save", [npy, fortran, npz, tensors, torch])


def read(path: Path) -> tuple[np.ndarray, list[int]]:
    with open_capture(path) as found:
        return found.rows_block(0, found.rows), found.lengths.tolist()


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


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (1, 4), (0, 4)])
def test_causal_lengths(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.float32))
    import_scores(tmp_path / "a.npy", tmp_path / "out.safetensors", lengths="causal")
    rows, width = shape
    assert read(tmp_path / "out.safetensors")[1] == [r + 1 + (width - rows) for r in range(rows)]


def test_causal_lengths_need_as_many_scores_as_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 4), np.float32))
    with pytest.raises(ArgumentError, match="no causal window"):
        import_scores(tmp_path / "a.npy", tmp_path / "out.safetensors", lengths="causal")
    with pytest.raises(ArgumentError, match=r"^lengths_name: "):
        import_scores(tmp_path / "a.npy", tmp_path / "out.safetensors", lengths="causal", lengths_name="n")
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]


@SAVERS
def test_a_choice_that_is_missing_or_wrong_lists_what_there_is(tmp_path, save):
    source, out = save(tmp_path / "stack", scores=STACK), tmp_path / "out.safetensors"
    with pytest.raises(FileFormatError, match=r"shape \(2, 3, 5, 8\).*index=\(0, 0\) \(0 to 1, 0 to 2\).*flatten=True"):
        import_scores(source, out)
    for index in ((), (1,), (1, 3), (-1, 0), (0, 0, 0), (True, 0), ("0", "0")):
        with pytest.raises(ArgumentError, match=r"^index: got .*2 of them, 0 to 1, 0 to 2"):
            import_scores(source, out, index=index)
    with pytest.raises(ArgumentError, match=r"^flatten: "):
        import_scores(source, out, index=(0, 0), flatten=True)
    flat = save(tmp_path / "flat", scores=STACK[0, 0])
    with pytest.raises(ArgumentError, match=r"^index: got \(0,\); takes none"):
        import_scores(flat, out, index=(0,))
    import_scores(flat, out, flatten=True)
    assert np.array_equal(read(out)[0], STACK[0, 0])
    if save in (npz, tensors, torch):
        several = save(tmp_path / "several", a=STACK, b=np.zeros((4, 6)), lengths=LENGTHS)
        with pytest.raises(ArgumentError, match=r"^name: got None; takes an array of .*'a'"):
            import_scores(several, out)
        import_scores(several, out, name="a", index=(1, 0))
        assert read(out)[1] == LENGTHS[1, 0].tolist()


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


def test_safetensors_dtypes(tmp_path):
    from ksieve_lab.captures.numbers import narrow

    bits = narrow(STACK[0, 0], "bfloat16")
    header = {"x": {"dtype": "BF16", "shape": [5, 8], "data_offsets": [0, 80]}}
    for dtype, size in (("BF16", 80), ("F8_E4M3", 40), ("F8_E5M2", 40), ("U16", 80), ("I8", 40)):
        header["x"] |= {"dtype": dtype, "data_offsets": [0, size]}
        text = json.dumps(header).encode()
        path = tmp_path / "x.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + bits.tobytes()[:size])
        if dtype == "BF16":
            import_scores(path, tmp_path / "out.safetensors")
            assert np.array_equal(read(tmp_path / "out.safetensors")[0], bits)
        else:
            with pytest.raises(FileFormatError, match="dtype"):
                import_scores(path, tmp_path / "out.safetensors")


# ---- files made to mislead


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("bombed"),))


def test_no_pickle_is_executed(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    bomb = pickle.dumps(Bomb(), protocol=2)
    out = tmp_path / "out.safetensors"
    np.save("a.npy", np.array([[Bomb()]]), allow_pickle=True)
    np.savez("a.npz", scores=np.array([[Bomb()]]))
    with zipfile.ZipFile("a.pt", "w") as archive:
        archive.writestr("a/data.pkl", bomb)
        archive.writestr("a/version", "3")
    Path("b.pt").write_bytes(bomb)
    Path("b.npy").write_bytes(bomb)
    for name in ("a.npy", "a.npz", "a.pt", "b.pt", "b.npy"):
        with pytest.raises(FileFormatError, match=name):
            import_scores(name, out)
    assert not Path("bombed").exists() and not out.exists()


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
    with pytest.raises(KsieveError) as caught:
        import_scores(path, tmp_path / "out.safetensors")
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
