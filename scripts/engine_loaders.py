"""Install an engine's newest wheel, and see its own plugin loader put ksieve in the place of its operators.

Needs a network, pip, a C compiler and `nm`, and no GPU. The engine's wheel is installed without its dependencies; then
PyTorch, in the version and with the CUDA libraries that the wheel asks for, so that the engine's compiled extensions
are loaded and register their own schemas; then what imports of the loader and of the operators' modules need. Where
there is no driver, a library `libcuda.so.1` takes its place, in which every function that the extensions refer to says
that there is no device; and a platform plugin makes vLLM choose CUDA. No kernel of the engine runs, and ksieve
serves from the CPU. Exit code 1: a check failed; the table says which.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ksieve.lab.bench import engine_pages, record

TREE = Path(__file__).resolve().parents[1]

_ERROR_NO_DEVICE = 100


@dataclass(frozen=True)
class Engine:
    """What is installed of an engine: each name with the requirement of the engine's own wheel, if it has one."""

    variable: str
    bare: tuple[str, ...]
    """Wheels without their dependencies, the engine first."""
    needs: tuple[str, ...]
    """Wheels with their dependencies: what the imports ask for."""


ENGINES = {
    "vllm": Engine(
        "KSIEVE_VLLM",
        ("vllm", "flashinfer-python"),
        (
            "aiohttp", "apache-tvm-ffi", "cachetools", "cbor2", "cloudpickle", "einops", "fastapi", "llguidance",
            "msgspec", "nvidia-ml-py", "openai", "oss-harmony", "partial-json-parser", "pillow", "prometheus-client",
            "psutil", "py-cpuinfo", "pybase64", "pyzmq", "regex", "requests", "torch", "transformers", "xgrammar",
        ),
    ),
    "sglang": Engine(
        "KSIEVE_SGLANG",
        ("sglang", "sglang-kernel", "flashinfer-python"),
        (
            "aiohttp", "apache-tvm-ffi", "ipython", "msgspec", "numpy", "nvidia-ml-py", "orjson", "pillow", "psutil",
            "pybase64", "pydantic", "pyzmq", "requests", "starlette", "torch", "tqdm", "transformers",
        ),
    ),
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=" ".join(ENGINES))
    parser.add_argument("--work", type=Path, default=Path("out/engines"), help="folder of the virtual environments")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of engine-loaders-ENGINE.json")
    parser.add_argument("--wheel", type=Path, help="wheel of ksieve; default: built from this tree")
    args = parser.parse_args(arguments)
    if unknown := set(args.engines) - set(ENGINES):
        parser.error(f"no engine {', '.join(sorted(unknown))}: {', '.join(ENGINES)}")
    work = args.work.resolve()
    wheel = args.wheel or build(work)
    results = [run(name, work, wheel) for name in args.engines or ENGINES]
    for result in results:
        name = result["engine"]
        payload = record.payload("engine-loaders", {"engine": name}, result)
        record.write_json(args.out.resolve() / f"engine-loaders-{name}.json", payload)
    return 0 if all(check["good"] for result in results for check in result["checks"]) else 1


def build(work: Path) -> Path:
    """Build the wheel of this tree."""
    folder = work / "wheel"
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(TREE)],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return max(folder.glob("ksieve-*.whl"), key=lambda path: path.stat().st_mtime)


def run(name: str, work: Path, wheel: Path) -> dict[str, Any]:
    """Install an engine and examine it; what cannot be installed is a failed check."""
    python = work / name / "bin" / "python"
    result: dict[str, Any] = {
        "engine": name,
        "versions": {},
        "driver": None,
        "log": {},
        "uninstalled": {},
        "checks": [],
    }
    try:
        install(name, python, wheel)
        result["driver"], environment = stand_ins(name, work)
        found = examine(name, python, environment)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or [str(error)]
        found = {"checks": [check("installed", False, last[0])]}
    result |= found
    print(engine_pages.printed(result), flush=True)
    return result


# ---- the virtual environment -----------------------------------------------------------------------------------


def install(name: str, python: Path, wheel: Path) -> None:
    """Make the virtual environment, or complete one that is there."""
    engine = ENGINES[name]
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    pip(python, "--no-deps", engine.bare[0])
    ask = "import importlib.metadata as m; print('\\n'.join(m.requires('%s') or []))"
    wanted = {
        re.split(r"[\[<>=!~; (]", line)[0].lower().replace("_", "-"): line.partition(";")[0]
        for line in output(python, "-c", ask % engine.bare[0]).splitlines()
        if "extra ==" not in line
    }
    pip(python, "--no-deps", *(wanted.get(each, each) for each in engine.bare[1:]))
    pip(python, *(wanted.get(each, each) for each in engine.needs))
    pip(python, "--no-deps", "--force-reinstall", str(wheel))
    pip(python, str(wheel))


def pip(python: Path, *wheels: str) -> None:
    """Install wheels."""
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *wheels]
    subprocess.run(command, check=True, capture_output=True, text=True)


def output(*command: str | Path, **variables: str) -> str:
    """Return what a command prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=clean() | variables)
    return done.stdout


def clean() -> dict[str, str]:
    """Return the environment without this tree's modules, so that the installed ksieve is the one that runs."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def stand_ins(name: str, work: Path) -> tuple[str, dict[str, str]]:
    """Write what takes the place of a GPU's driver, where there is none; returns what it is, and the environment."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        folder = work / f"{name}-driver"
    else:
        return "installed", {}
    info = folder / "without_gpu-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: without-gpu\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.platform_plugins]\nwithout_gpu = without_gpu:platform\n")
    (folder / "without_gpu.py").write_text("def platform():\n    return 'vllm.platforms.cuda.CudaPlatform'\n")
    functions = {"cuInit"}
    for extension in (work / name).rglob("*.abi3.so"):
        symbols = (line.split()[-1] for line in output("nm", "-D", "--undefined-only", extension).splitlines())
        functions |= {symbol for symbol in symbols if re.match(r"cu[A-Z]", symbol)}
    source = folder / "libcuda.c"
    source.write_text("".join(f"int {each}(void) {{ return {_ERROR_NO_DEVICE}; }}\n" for each in sorted(functions)))
    library = folder / "libcuda.so.1"
    output("cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source)
    said = f"none; a libcuda.so.1 of {len(functions)} functions that all answer: no device"
    return said, {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}


# ---- what is looked at -----------------------------------------------------------------------------------------


def examine(name: str, python: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run the probe's cases and `ksieve doctor`; each gives checks."""
    variable = ENGINES[name].variable
    cases, log, checks = {}, {}, []
    for case, value in (("off", ""), ("on", "1"), ("late", "1"), ("worker", "1")):
        done = subprocess.run(
            [str(python), str(TREE / "scripts" / "engine_probe.py"), name, case], capture_output=True, text=True,
            check=False, env=clean() | environment | {variable: value},
        )  # fmt: skip
        log[case] = [line for line in done.stderr.splitlines() if "ksieve" in line and not line.startswith(" ")]
        if done.returncode:
            checks.append(check(f"{case}: runs", False, done.stderr.strip().splitlines()[-1]))
            continue
        cases[case] = json.loads(done.stdout.splitlines()[-1])
        checks += CHECKS[case](cases[case], log[case])
    doctor = subprocess.run(
        [str(python.with_name("ksieve")), "doctor", "--for", name, "--json"], capture_output=True, text=True,
        check=False, env=clean() | environment | {variable: "1"},
    )  # fmt: skip
    said = json.loads(doctor.stdout)["engines"][0] if doctor.stdout else {"operators": [], "versions": {}, "on": False}
    fitting = [finding for finding in said["operators"] if finding["fits"] and finding["found"]]
    absent = [finding["operator"] for finding in said["operators"] if finding["found"] is None]
    detail = f"{len(fitting)} signatures fit" + (f"; not in this version: {', '.join(absent)}" if absent else "")
    checks.append(check("doctor --for: every signature is known", doctor.returncode == 0 and said["on"], detail))
    versions = said["versions"] | {"torch": output(python, "-c", "import torch; print(torch.__version__)").strip()}
    found = {"versions": versions, "log": log, "operators": operators(cases), "checks": checks}
    return found | {"uninstalled": cases.get("late", {}).get("after", {})}


def check(what: str, good: bool, detail: str) -> dict[str, Any]:
    """One line of the table."""
    return {"check": what, "good": good, "detail": detail}


def _count(found: dict[str, str], who: str) -> str:
    return f"{sum(value == who for value in found.values())} of {sum(value != 'absent' for value in found.values())}"


def _all(found: dict[str, str], who: str) -> bool:
    present = [value for value in found.values() if value != "absent"]
    return bool(present) and all(value == who for value in present)


def _off(found: dict[str, Any], log: list[str]) -> list[dict[str, Any]]:
    good = _all(found["operators"], "engine") and not found["imported"] and not log
    said = f"{_count(found['operators'], 'engine')} operators are the engine's; nothing is logged"
    return [check("without the variable: nothing is replaced", good, said)]


def _on(found: dict[str, Any], log: list[str]) -> list[dict[str, Any]]:
    owners, served = found["operators"], found["served"]
    named = [name for name, who in owners.items() if who == "ksieve" and any(name in line for line in log)]
    ran = [name for name, each in served.items() if each["served_by_ksieve"]]
    traced = [name for name, each in served.items() if each["compiled"] == "same answer"]
    faults = "; ".join(f"{name}: {each['compiled']}" for name, each in served.items() if name not in traced)
    lines = [
        check("loader, then imports: replaced", _all(owners, "ksieve"), f"{_count(owners, 'ksieve')} operators"),
        check("the log names them", len(named) == list(owners.values()).count("ksieve"), f"{len(named)} operators"),
        check("calls reach ksieve", ran == list(served), f"{len(ran)} of {len(served)} operators, on the CPU"),
        check(
            "torch.compile, full graph", traced == list(served), f"{len(traced)} of {len(served)} operators {faults}"
        ),
    ]
    if found["custom_op"]:
        traces = not re.match(r"\w+(Error|Exception)\b", found["custom_op"])
        lines.append(check("the engine's operator, fake tensors", traces, found["custom_op"]))
    return lines


def _late(found: dict[str, Any], log: list[str]) -> list[dict[str, Any]]:
    del log
    names = len(found["replaced"])
    restored = not found["not_restored"] and found["after"] == found["before"]
    left = f"left: {', '.join(found['not_restored'])}" if found["not_restored"] else "each the same object as before"
    return [
        check("imports, then loader: replaced", _all(found["operators"], "ksieve"), f"{names} names in its modules"),
        check("uninstall puts everything back", restored, left),
    ]


def _worker(found: dict[str, Any], log: list[str]) -> list[dict[str, Any]]:
    del log
    said = f"{_count(found['operators'], 'ksieve')} operators"
    return [check("a spawned process, its own loader: replaced", _all(found["operators"], "ksieve"), said)]


CHECKS = {"off": _off, "on": _on, "late": _late, "worker": _worker}


def operators(cases: dict[str, Any]) -> list[dict[str, Any]]:
    """Put together what the cases say of each operator."""
    names = cases.get("on", {}).get("operators", {})
    served = cases.get("on", {}).get("served", {})
    by_case = {case: found["operators"] for case, found in cases.items()}
    return [
        {"operator": name, **{case: found.get(name) for case, found in by_case.items()}, **served.get(name, {})}
        for name in names
    ]


if __name__ == "__main__":
    sys.exit(main())
