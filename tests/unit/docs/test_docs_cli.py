"""The command reference describes the installed program; measured numbers in the docs are those of the files."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tree(generator: Any) -> list[tuple[tuple[str, ...], Any]]:

    from ksieve_lab.cli.app import tree

    return list(generator.commands(tree()))


def test_the_generated_pages_are_current(generator: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert generator.main(["--check"]) == 0, capsys.readouterr().out


def test_every_command_and_option_is_documented(generator: Any, tree: list[tuple[tuple[str, ...], Any]]) -> None:
    page = generator.cli_reference()
    sections = dict(re.findall(r"^#+ `(ksieve[^`]*)`\n(.*?)(?=^#+ `|\Z)", page, flags=re.MULTILINE | re.DOTALL))
    assert set(sections) == {" ".join(path) for path, _ in tree}
    for path, command in tree:
        section = sections[" ".join(path)]
        for parameter in command.params:
            for name in parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]:
                assert f"`{name}`" in section, f"{' '.join(path)} {name}"


def test_every_command_and_option_explains_itself(tree: list[tuple[tuple[str, ...], Any]]) -> None:
    for path, command in tree:
        assert command.help, path
        if not hasattr(command, "commands"):
            assert "$ ksieve" in command.epilog, path
        for parameter in command.params:
            assert parameter.help, f"{' '.join(path)} {parameter.name}"


def test_the_readme_quotes_result_files(generator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ksieve.planning.tune import record
    from ksieve_lab.bench import cpu

    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.benchmark_section(tmp_path) == ""
    payload = cpu.run([(2, 33_000)], ("random_normal",), k=100, rounds=1, adversarial=False, starts=False)
    record.write_json(tmp_path / "cpu-7.json", payload)
    section = generator.benchmark_section(tmp_path)
    case = payload["results"]["compared"][0]
    assert "| 2 x 33,000, random_normal |" in section
    assert f"| {case['median_seconds']['ksieve'] * 1e3:.2f} ms |" in section
    assert f"| {case['rate_of_max']:.2f} |" in section
    assert "[cpu-7.json](cpu-7.json)" in section


def gpu_payload(k: int, exact: bool = True) -> dict[str, Any]:
    from ksieve_lab.bench import gpu

    shapes = []
    for rows, width, own in ((1, 4096, 8.0), (512, 4096, 12.5), (512, 8192, 20.0)):
        selectors = {
            "ksieve": {"median_us": own, "of_floor": 10 / own, "exact": exact, "policy": "lines-64"},
            "torch.topk": {"median_us": 70.0, "of_floor": 10 / 70, "exact": True},
        }
        read = {"floor_us": 10.0, "floor_terabytes_per_second": 4.5}
        shapes.append({"rows": rows, "width": width, "selectors": selectors} | read)
    return {
        "schema": 1,
        "bench": "gpu",
        "environment": {
            "command": f"__main__.py bench gpu --k {k} --out elsewhere",
            "date": "2026-01-02T03:04:05Z",
            "commit": "0123456789abcdef",
            "gpu": {"devices": [{"name": "GPU of a test", "driver_version": "1.2"}]},
            "packages": {"nvidia-cuda-nvrtc": "13.0", "torch": "2.11"},
        },
        "settings": {"k": k, "dtype": "float32", "lengths": "causal", "rounds": 3},
        "results": {"shapes": shapes, **gpu.summary(shapes)},
    }


def test_gpu_tables_quote_result_files(generator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ksieve.planning.tune import record

    monkeypatch.setattr(generator, "ROOT", tmp_path)
    assert generator.benchmark_page(tmp_path) == ""
    for k in (512, 2048):
        record.write_json(tmp_path / f"gpu-operator-k{k}.json", gpu_payload(k))
    record.write_json(tmp_path / "gpu-decode-k2048.json", gpu_payload(2048))
    found = {"results": {"memcheck": {"issues": 3, "launches": 17}}}
    record.write_json(tmp_path / "gpu-sanitizers.json", gpu_payload(2048) | found)
    page, section = generator.benchmark_page(tmp_path), generator.benchmark_section(tmp_path)
    mean = (10 / 8 * 10 / 12.5 * 10 / 20) ** (1 / 3)
    assert (
        f"| 2,048 | endpoint-structured | {mean:.3f} | 0.500 | no | 512 x 4,096 (0.800), 512 x 8,192 (0.500) |" in page
    )
    assert page.index("k = 2,048") < page.index("k = 512")
    assert "| 512 x 8,192 | 10.0 (4.50) | 20.0 | 0.500 | lines-64 | 3.50 torch.topk |" in page
    assert "| memcheck | 17 | 3 |" in page
    assert "One row takes 8.0 to 8.0 us" in page
    assert "| 8,192 |  | 20.0 |" in page
    assert "| 8,192 |  | 3.50 torch.topk |" in page
    assert "| 4,096 | 1.250 | 0.800 |" in section
    assert f"The geometric mean is {mean:.3f} (target 0.92: missed), the least 0.500 (target 0.82: missed)" in section
    assert "ksieve bench gpu --k 2048 --out benchmarks/results\n" in section
    assert "[gpu-operator-k512.json](../../gpu-operator-k512.json)" in page


def test_an_inexact_answer_reaches_no_table(generator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ksieve.planning.tune import record

    monkeypatch.setattr(generator, "ROOT", tmp_path)
    record.write_json(tmp_path / "gpu-operator-k2048.json", gpu_payload(2048, exact=False))
    for generate in (generator.benchmark_page, generator.benchmark_section):
        with pytest.raises(SystemExit, match="no exact answer"):
            generate(tmp_path)


def test_every_result_file_is_on_the_benchmarks_page() -> None:
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert f"(../../benchmarks/results/{path.name})" in page, path.name
