"""Install an engine's newest wheel, and see its own plugin loader put ksieve in the place of its operators.

    python scripts/engine_loaders.py [vllm] [sglang]

Needs numpy, pip, a network, a C compiler and `nm`, 10 GB for each engine in out/engines, and no GPU. Prints a table,
writes out/engine-loaders-ENGINE.json, and exits 1 where a check failed. The engine's wheel is installed without its
dependencies; then PyTorch with the CUDA libraries that the wheel asks for, so that compiled extensions register their
own schemas; then what the imports need. Where there is no driver, a library `libcuda.so.1` stands in whose functions
all say that there is no device; and a platform plugin makes vLLM choose CUDA. ksieve serves from the CPU.

With ``--probe CASE`` this is a process of the engine's environment, with the installed ksieve: ``on``, the loader
first and the engine's modules then, as in a server; ``late``, the other order, and off again. Its last line is one JSON
object. An operator is ksieve's if the code behind its name lies in ksieve; nothing is asked of the switch itself.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[1]

_ERROR_NO_DEVICE = 100


@dataclass(frozen=True)
class Engine:
    """What is installed of an engine: each name with the requirement of the engine's own wheel, if it has one."""

    loader: str
    bare: tuple[str, ...]
    """Wheels without their dependencies, the engine first."""
    needs: tuple[str, ...]
    """Wheels with their dependencies: what the imports ask for."""


ENGINES = {
    "vllm": Engine(
        "vllm.plugins:load_general_plugins",
        ("vllm", "flashinfer-python"),
        (
            "aiohttp", "apache-tvm-ffi", "cachetools", "cbor2", "cloudpickle", "einops", "fastapi", "llguidance",
            "msgspec", "nvidia-ml-py", "openai", "oss-harmony", "partial-json-parser", "pillow", "prometheus-client",
            "psutil", "py-cpuinfo", "pybase64", "pyzmq", "regex", "requests", "torch", "transformers", "xgrammar",
        ),
    ),
    "sglang": Engine(
        "sglang.srt.plugins:load_plugins",
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
    parser.add_argument("--wheel", type=Path, default=TREE, help="wheel of ksieve; default: made of this tree")
    parser.add_argument("--probe", choices=CASES, help="run a case for one engine in this process")
    args = parser.parse_args(arguments)
    if unknown := set(args.engines) - set(ENGINES):
        parser.error(f"no engine {', '.join(sorted(unknown))}: {', '.join(ENGINES)}")
    if args.probe:
        print(json.dumps(CASES[args.probe](args.engines[0])))
        return 0
    sys.path.insert(0, str(TREE / "src"))
    from ksieve_lab.bench import record

    results = [run(name, args.work.resolve(), args.wheel.resolve()) for name in args.engines or ENGINES]
    for result in results:
        name = result["engine"]
        print(printed(result), flush=True)
        payload = record.payload("engine-loaders", {"engine": name}, result)
        record.write_json(args.out.resolve() / f"engine-loaders-{name}.json", payload)
    return 0 if all(check["good"] for result in results for check in result["checks"]) else 1


def printed(result: dict[str, Any]) -> str:
    """What a run prints of an engine: its checks, what a process of it logs, and its operators."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [f"{result['engine']}: {versions or 'not installed'}", f"  driver: {result['driver']}"]
    lines += [f"  {'ok' if c['good'] else 'FAILED'}  {c['check']}: {c['detail']}" for c in result["checks"]]
    lines += [f"    {line}" for line in result["log"].get("on", [])]
    found = result["cases"].get("on", {"operators": {}, "served": {}})
    for name, who in found["operators"].items():
        call = found["served"].get(name, {"compiled": "not called"})
        lines.append(f"  {name}: {who}, compiled: {call['compiled']}")
    return "\n".join([*lines, ""])


def run(name: str, work: Path, wheel: Path) -> dict[str, Any]:
    """Install an engine and examine it; what cannot be installed is a failed check."""
    python = work / name / "bin" / "python"
    result: dict[str, Any] = {"engine": name, "versions": {}, "driver": None, "log": {}, "cases": {}}
    try:
        install(name, python, wheel)
        result["driver"], environment = stand_ins(name, work)
        return result | examine(name, python, environment)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or [str(error)]
        return result | {"checks": [check("installed", False, last[0])]}


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
    output(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wheels)


def output(*command: str | Path) -> str:
    """Return what a command prints."""
    return started(command, {}, check=True).stdout


def started(command: Sequence[str | Path], variables: dict[str, str], check: bool = False) -> Any:
    """Run a command without this tree's modules, so that the installed ksieve is the one that runs."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(command, check=check, capture_output=True, text=True, env=environment)


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
    environment = environment | {f"KSIEVE_{name.upper()}": "1"}
    cases, log, checks = {}, {}, []
    for case in CASES:
        done = started([python, __file__, name, "--probe", case], environment)
        log[case] = [line for line in done.stderr.splitlines() if "ksieve" in line and not line.startswith(" ")]
        if done.returncode:
            checks.append(check(f"{case}: runs", False, done.stderr.strip().splitlines()[-1]))
            continue
        cases[case] = json.loads(done.stdout.splitlines()[-1])
        checks += checks_of(case, cases[case])
    doctor = started([python.with_name("ksieve"), "doctor", "--for", name, "--json"], environment)
    said = json.loads(doctor.stdout)["engines"][0] if doctor.stdout else {"operators": [], "versions": {}, "on": False}
    fitting = [finding for finding in said["operators"] if finding["fits"] and finding["found"]]
    absent = [finding["operator"] for finding in said["operators"] if finding["found"] is None]
    detail = f"{len(fitting)} signatures fit" + (f"; not in this version: {', '.join(absent)}" if absent else "")
    checks.append(check("doctor --for: every signature is known", doctor.returncode == 0 and said["on"], detail))
    versions = said["versions"] | {"torch": output(python, "-c", "import torch; print(torch.__version__)").strip()}
    return {"versions": versions, "log": log, "cases": cases, "checks": checks}


def check(what: str, good: bool, detail: str) -> dict[str, Any]:
    """One line of the table."""
    return {"check": what, "good": good, "detail": detail}


def checks_of(case: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Say what a case shows."""
    present = [who for who in found["operators"].values() if who != "absent"]
    mine = present.count("ksieve")
    replaced = 0 < mine == len(present)
    if case == "late":
        restored = not found["not_restored"] and found["after"] == found["before"]
        left = f"left: {', '.join(found['not_restored'])}" if found["not_restored"] else "the same objects as before"
        names = f"{len(found['replaced'])} names in its modules"
        lines = [check("imports, then loader: replaced", replaced, names)]
        return [*lines, check("uninstall puts everything back", restored, left)]
    served = found["served"]
    ran = [name for name, each in served.items() if each["served_by_ksieve"]]
    traced = [name for name, each in served.items() if each["compiled"] == "same answer"]
    faults = "; ".join(f"{name}: {each['compiled']}" for name, each in served.items() if name not in traced)
    of = f"of {len(served)} operators"
    return [
        check("loader, then imports: replaced", replaced, f"{mine} of {len(present)} operators"),
        check("calls reach ksieve", ran == list(served), f"{len(ran)} {of}, on the CPU"),
        check("torch.compile, full graph", traced == list(served), f"{len(traced)} {of} {faults}"),
    ]


# ---- in a process of the engine ---------------------------------------------------------------------------------


def load_plugins(engine: str) -> None:
    """Call the engine's own loader of plugins."""
    module, _, name = ENGINES[engine].loader.partition(":")
    getattr(importlib.import_module(module), name)()


def operators(engine: str) -> Any:
    """Return ksieve's list of the engine's operators, as data."""
    return importlib.import_module("ksieve.adapters._operators").OPERATORS[engine]


def look(operator: Any) -> Any:
    """Return what the engine has under an operator's name; None if nothing. The module is imported."""
    importlib.import_module(operator.source)
    module, _, path = operator.owner.partition(":")
    found = importlib.import_module(module)
    for name in path.split(".") if path else ():
        found = getattr(found, name)
    return getattr(found, operator.attribute, None)


def owner(function: Any) -> str:
    """Say whose code is behind a name."""
    if function is None:
        return "absent"
    code = getattr(function, "__code__", None)
    return "ksieve" if code is not None and "/ksieve/adapters/" in code.co_filename else "engine"


def owners(engine: str) -> dict[str, str]:
    """Import the module of every operator and say whose it is."""
    return {operator.name: owner(look(operator)) for operator in operators(engine)}


def contents(engine: str) -> dict[str, int]:
    """Return the identity of everything that the engine's modules and its operators' owners have as attributes."""
    import torch

    homes = importlib.import_module("ksieve.adapters._operators").HOMES
    packages = {package for names in homes.values() for package in names}
    found = {f"torch.ops._C.{name}": id(value) for name, value in vars(torch.ops._C).items()}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and isinstance(module, types.ModuleType):
            found |= {f"{name}.{key}": id(value) for key, value in list(vars(module).items())}
    for operator in operators(engine):
        module, _, path = operator.owner.partition(":")
        if path and module != "torch":
            holder = getattr(importlib.import_module(module), path)
            found |= {f"{module}.{path}.{key}": id(value) for key, value in vars(holder).items()}
    return found


def calls(engine: str) -> dict[str, Any]:
    """Return arguments of a call of each operator: scores, and the others by name. Methods get a stand-in for self."""
    import torch

    forms = importlib.import_module("ksieve.adapters._forms")
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(4, 8, generator=generator)
    made: dict[str, Any] = {}
    for adapter in (engine, "flashinfer"):
        for function in forms.functions(adapter):
            given, arguments = next(forms.forms(function))
            made[f"{adapter}.{function.__name__}"] = (given if given.dim() == 3 else scores, arguments)
    step = {"seq_lens": torch.full((4,), 8, dtype=torch.int32), "next_n": 1, "topk_tokens": 2, "max_seq_len": 8}
    made["vllm._sparse_indexer_topk"] = (
        types.SimpleNamespace(_backend="auto"),
        {"logits": scores, "topk_indices": torch.zeros(4, 2, dtype=torch.int32), **step},
    )
    return made


def fresh(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copy tensors that a call may write to."""
    return {name: value.clone() if hasattr(value, "clone") else value for name, value in arguments.items()}


def answer(operator: Any, arguments: dict[str, Any], returned: Any) -> Any:
    """Return the indices of a call."""
    if isinstance(operator.answer, str):
        return arguments[operator.answer]
    return returned if operator.answer is None or not isinstance(returned, tuple) else returned[operator.answer]


def serve(engine: str) -> dict[str, dict[str, Any]]:
    """Call every operator of the engine by its name, in eager mode and through torch.compile, on the CPU."""
    import torch

    from ksieve import adapters

    found: dict[str, dict[str, Any]] = {}
    made = calls(engine)
    for operator in operators(engine):
        function = look(operator)
        if function is None or operator.adapter not in made:
            continue
        first, given = made[operator.adapter]
        arguments = fresh(given)
        before = {c.operator: c.count for c in adapters.report().calls}
        eager = answer(operator, arguments, function(first, **arguments))
        after = {c.operator: c.count for c in adapters.report().calls}
        served = after.get(operator.name, 0) == before.get(operator.name, 0) + 1
        arguments = fresh(given)
        # Fake tensors trace the call: full graph, and AOTAutograd behind it. The code generator is not at issue.
        torch.compiler.reset()
        try:
            compiled = torch.compile(lambda *a, f=function, **k: f(*a, **k), backend="aot_eager", fullgraph=True)
            same = torch.equal(answer(operator, arguments, compiled(first, **arguments)).sort(1).values,
                               eager.sort(1).values)  # fmt: skip
            said = "same answer" if same else "ANOTHER answer"
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        found[operator.name] = {"served_by_ksieve": served, "compiled": said}
    return found


def case_on(engine: str) -> dict[str, Any]:
    """Load plugins first, as a server does, and import the modules of the operators then."""
    load_plugins(engine)
    return {"operators": owners(engine), "served": serve(engine)}


def case_late(engine: str) -> dict[str, Any]:
    """Import everything first; then on, and off again. What the loader itself keeps is not compared."""
    first = owners(engine)
    adapter = importlib.import_module(f"ksieve.adapters.{engine}")
    before = contents(engine)
    load_plugins(engine)
    on, during = owners(engine), contents(engine)
    adapter.uninstall()
    after = contents(engine)
    loader = ENGINES[engine].loader.partition(":")[0]
    changed = [name for name in before if not name.startswith(loader) and during.get(name) != before[name]]
    left = [name for name in changed if after.get(name) != before[name]]
    return {"before": first, "operators": on, "after": owners(engine), "replaced": changed, "not_restored": left}


CASES = {"on": case_on, "late": case_late}


if __name__ == "__main__":
    sys.exit(main())
