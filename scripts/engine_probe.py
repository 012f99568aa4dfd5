"""Look at an installed engine from inside one of its processes: which of its operators are ksieve's.

``engine_loaders.py`` runs this in the engine's virtual environment, with the installed ksieve: ``engine_probe.py ENGINE
CASE`` prints one JSON object in its last line. An operator is ksieve's if the code that its name leads to lies in
ksieve; nothing is asked of the switch itself.

Cases: ``off``, the loader without the variable; ``on``, the loader first and the engine's modules then, as in a server;
``late``, the other order; ``worker``, a process that the engine's main process spawns.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
import types
from typing import Any

LOADERS = {"vllm": "vllm.plugins:load_general_plugins", "sglang": "sglang.srt.plugins:load_plugins"}


def load_plugins(engine: str) -> None:
    """Call the engine's own loader of plugins."""
    module, _, name = LOADERS[engine].partition(":")
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

    forms = importlib.import_module("ksieve.adapters._forms").FORMS
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(4, 8, generator=generator)
    made: dict[str, Any] = {}
    for adapter in (engine, "flashinfer"):
        for form in forms[adapter]():
            made.setdefault(f"{adapter}.{form[0]}", (form[2] if len(form) > 2 else scores, form[1]))
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


def custom_op(engine: str) -> str:
    """Trace the custom operator in which vLLM keeps its indexer out of the graph, with fake tensors."""
    if engine != "vllm":
        return ""
    import torch

    importlib.import_module("vllm.model_executor.layers.sparse_attn_indexer")
    schema = torch.ops.vllm.sparse_attn_indexer.default._schema
    with torch._subclasses.FakeTensorMode():
        buffer = torch.zeros(4, 2048, dtype=torch.int32)
        values: dict[str, Any] = {"topk_indices_buffer": buffer}
        kinds = {"Tensor": torch.zeros(4, 8), "int": 8, "bool": False, "str": "layer"}
        for argument in schema.arguments:
            kind = str(argument.type)
            if argument.name not in values and not argument.has_default_value():
                values[argument.name] = None if kind.startswith("Optional") else kinds.get(kind, "layer")
        out = torch.ops.vllm.sparse_attn_indexer(**values)
    return f"sparse_attn_indexer: {type(out).__name__} of shape {tuple(out.shape)}"


def case_off(engine: str) -> dict[str, Any]:
    """Load plugins without the variable."""
    importlib.import_module(LOADERS[engine].partition(":")[0])
    before = set(sys.modules)
    load_plugins(engine)
    heavy = [
        name for name in ("torch", "numba", f"ksieve.adapters.{engine}") if name in sys.modules and name not in before
    ]
    return {"imported": heavy, "operators": owners(engine)}


def case_on(engine: str) -> dict[str, Any]:
    """Load plugins first, as a server does, and import the modules of the operators then."""
    load_plugins(engine)
    return {"operators": owners(engine), "served": serve(engine), "custom_op": _said(custom_op, engine)}


def case_late(engine: str) -> dict[str, Any]:
    """Import everything first; then on, and off again. What the loader itself keeps is not compared."""
    first = owners(engine)
    adapter = importlib.import_module(f"ksieve.adapters.{engine}")
    before = contents(engine)
    load_plugins(engine)
    on, during = owners(engine), contents(engine)
    adapter.uninstall()
    after = contents(engine)
    loader = LOADERS[engine].partition(":")[0]
    changed = [name for name in before if not name.startswith(loader) and during.get(name) != before[name]]
    left = [name for name in changed if after.get(name) != before[name]]
    return {"before": first, "operators": on, "after": owners(engine), "replaced": changed, "not_restored": left}


def _worker(engine: str, queue: Any) -> None:
    load_plugins(engine)
    queue.put(owners(engine))


def case_worker(engine: str) -> dict[str, Any]:
    """Spawn a process, as the engine's main process does, which loads plugins by itself."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_worker, args=(engine, queue))
    process.start()
    process.join(timeout=600)
    if process.exitcode:
        raise SystemExit(f"the spawned process ended with {process.exitcode}")
    return {"operators": queue.get(timeout=60)}


def _said(function: Any, *arguments: Any) -> str:
    try:
        return str(function(*arguments))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    result = globals()[f"case_{sys.argv[2]}"](sys.argv[1])
    print(json.dumps(result))
