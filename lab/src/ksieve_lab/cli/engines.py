"""`ksieve bench engines`: the engines' own operators before and after ksieve replaces them, and first calls."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ksieve.cli import exits, terminal
from ksieve.cli.sizes import parse_shape
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import SCORE_DTYPES
from ksieve_lab.cli import checks, gpu
from ksieve_lab.cli.options import K, Out, Rounds, Scores, Seed

PARTS = ("operators", "first")


def bench_engines(
    engines: Annotated[
        str, typer.Option("--engines", metavar="LIST", help="vllm, sglang, flashinfer, tensorrt_llm; all by default.")
    ] = "",
    only: Annotated[
        str, typer.Option("--only", metavar="TEXT", help="Only the operators whose full name contains TEXT.")
    ] = "",
    last: Annotated[
        str,
        typer.Option(
            "--last",
            metavar="LIST",
            help="Measure cases whose name contains one of these after the others: an operator, or more such as "
            "'flashinfer.topk.top_k 256 x 131072 bfloat16'. Calls of FlashInfer that are known to lose the GPU context "
            "are among them.",
        ),
    ] = "",
    shapes: Annotated[
        str, typer.Option("--shapes", metavar="LIST", help="rows x width such as 64x131072, separated by commas.")
    ] = "",
    dtypes: Annotated[
        str, typer.Option("--dtypes", metavar="LIST", help="Score dtypes, separated by commas.")
    ] = "float32,bfloat16",
    parts: Annotated[
        str,
        typer.Option(
            "--parts",
            metavar="LIST",
            help="operators: their time and host cost, before and after; first: the first call of a process.",
        ),
    ] = ",".join(PARTS),
    k: K = 2048,
    scores: Scores = "endpoint",
    rounds: Rounds = 7,
    seed: Seed = 0,
    out: Out = None,
) -> None:
    """Time the operators of installed engines before and after ksieve replaces them, in one process.

    The same call on the same scores, as CUDA graphs in rotated rounds, and its host cost; every answer is verified.
    A call that loses the GPU context ends the measurement, and the exit code is not 0: see --last.
    Then the first call of fresh processes: with an empty cache, after ksieve build, and with a bundle.
    """
    from ksieve.planning.tune.tasks import require_device
    from ksieve_lab.bench import engine_cases, engine_switch, first_calls, record
    from ksieve_lab.bench import engines as bench

    asked = checks.listed(dtypes)
    if not asked or set(asked) - set(SCORE_DTYPES):
        raise ArgumentError("--dtypes", repr(dtypes), f"some of {', '.join(SCORE_DTYPES)}")
    names = checks.listed(engines) or list(engine_switch.ENGINES)
    if set(names) - set(engine_switch.ENGINES):
        raise ArgumentError("--engines", repr(engines), f"some of {', '.join(engine_switch.ENGINES)}")
    chosen = checks.listed(parts)
    if not chosen or set(chosen) - set(PARTS):
        raise ArgumentError("--parts", repr(parts), f"some of {', '.join(PARTS)}")
    listed = [parse_shape("--shapes", text) for text in checks.listed(shapes)] or list(bench.SHAPES)
    # First calls alone have a file beside that of the operators, which they would replace.
    path = gpu.target(out, "gpu-engines" if "operators" in chosen else "gpu-engines-first", scores)
    require_device()
    payload: dict[str, Any] = record.payload("engines", {"k": k}, {}, gpu=True)
    if "operators" in chosen:
        with engine_switch.installed(names, only) as (operators, absent, versions):
            every = bench.cases(operators, listed, asked)
            with terminal.progress("compiling", unit="kernels", waiting="starting the GPU") as update:
                bench.prepare(every, k, update)
            with terminal.progress("measuring", len(every), unit="cases", waiting="loading the kernels") as update:
                payload = bench.run(
                    operators, every, absent=absent, versions=versions, k=k, source=scores, rounds=rounds, seed=seed,
                    last=(*engine_cases.LAST, *checks.listed(last)), progress=update, each=_teller(),
                )  # fmt: skip
    results = payload["results"]
    if "first" in chosen:
        firsts = [first for first in first_calls.FIRSTS if first.engine in names and only in first.adapter]

        def save(found: dict[str, Any]) -> None:
            results["first_calls"] = found
            if path is not None:
                record.write_json(path.absolute(), payload)

        with terminal.progress("first calls", 3 * len(firsts), unit="processes") as update:
            first_calls.run(firsts, progress=update, save=save)
    _say(results, rounds)
    gpu.finish(path, payload, None)
    shapes_found = [case for case in results.get("shapes", ()) if "skipped" not in case]
    answers = [case["selectors"][bench.AFTER].get("exact") for case in shapes_found]
    exits.judge(answers + [None for _ in results.get("lost", ())])


def _teller() -> Any:
    tell = gpu.teller()
    return tell and (lambda case: tell({"selectors": {}} | case | {"family": case["operator"]}))


def _say(results: dict[str, Any], rounds: int) -> None:
    from ksieve_lab.bench.engines import AFTER, BEFORE
    from ksieve_lab.bench.first_calls import BUILT, BUNDLE, EMPTY
    from ksieve_lab.report.specs.engines import built, seconds

    cases = results.get("shapes", [])
    rows = [
        [
            case["operator"].rpartition(".")[2], case["engine"], gpu.shape_name(case), f"{case['k']}", case["dtype"],
            *(gpu.microseconds(case["selectors"][name]) for name in (BEFORE, AFTER)),
            f"{case['times_faster']:.2f}x" if "times_faster" in case else "",
        ]
        for case in cases if "skipped" not in case
    ]  # fmt: skip
    if cases:
        terminal.table(["operator", "engine", "rows x width", "k", "dtype", BEFORE, AFTER, "faster"], rows)
        terminal.say(f"microseconds, medians of {rounds} rounds")
        terminal.say()
        hosts = [
            [host["operator"].rpartition(".")[2], host["engine"], *(_host(host, name) for name in (BEFORE, AFTER))]
            for host in results["host"]
        ]
        terminal.table(["microseconds of the host", "engine", BEFORE, AFTER], hosts)
        terminal.say()
    for case in cases:
        why = case.get("skipped")
        for name, facts in () if why else case["selectors"].items():
            why = why or (f"{name}: {facts['error']}" if facts.get("error") else None)
        if why:
            terminal.note(f"{case['operator']} {gpu.shape_name(case)} {case['dtype']}: {why}")
    for lost in results.get("lost", ()):
        side = {BEFORE: "the engine's own operator", AFTER: "ksieve"}[lost["by"]]
        terminal.note(
            f"the GPU context was lost by {side} in {lost['call']} ({lost['error']}), and nothing was measured after "
            f"it: --last '{lost['call']}' measures the others first"
        )
    for name, why in results.get("absent", {}).items():
        terminal.note(f"not measured: {name} ({why})")
    if found := results.get("first_calls"):
        lines = [
            [
                call["adapter"],
                gpu.shape_name(call),
                *(seconds(call[state]) for state in (EMPTY, BUILT, BUNDLE)),
            ]
            for call in found["calls"]
        ]
        terminal.table(["first call", "rows x width", EMPTY, BUILT, BUNDLE], lines)
        terminal.say("seconds until the answer is there, and kernels compiled")
        for said in found["builds"]:
            terminal.note(built(said))


def _host(host: dict[str, Any], name: str) -> str:
    facts = host.get(name, {})
    return f"{facts['median_us']:.1f}" if "median_us" in facts else facts.get("error") or host.get("skipped", "")
