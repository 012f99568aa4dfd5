"""`ksieve replay`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ksieve.cli import files, terminal
from ksieve.cli.options import Backend, BackendName, PolicyName, checked, count, flag, option, output
from ksieve.core.errors import ArgumentError
from ksieve.core.problem import check_k
from ksieve_lab.bench.machines import check_anywhere
from ksieve_lab.bench.runner import libraries
from ksieve_lab.cli import results
from ksieve_lab.cli.results import Figures, Out


def replay(
    trace: Annotated[
        str | None,
        typer.Argument(
            metavar="TRACE",
            help="Trace (JSON), recording of ksieve_lab.record, or 245K or 430K. The names are the paper's requests.",
        ),
    ] = None,
    example: Annotated[bool, flag("--example", "Replay a small trace that takes seconds on a CPU.")] = False,
    prompt: Annotated[int | None, count("--prompt", "INT", "Generate a trace: prompt tokens of each request.")] = None,
    step_tokens: Annotated[
        int, count("--step-tokens", "INT", "With --prompt: query tokens of a scheduler step.", minimum=1)
    ] = 65_536,
    budget_bytes: Annotated[
        int, count("--budget-bytes", "INT", "With --prompt: bytes of the largest score matrix of a call.", minimum=1)
    ] = 6_300_000_000,
    decode_steps: Annotated[
        int, count("--decode-steps", "INT", "With --prompt: tokens decoded after the prompts.", minimum=0)
    ] = 0,
    batch: Annotated[int, count("--batch", "INT", "With --prompt: requests.", minimum=1)] = 1,
    save: Annotated[str | None, output("Also write the trace as JSON, to edit or share.", "--save")] = None,
    k: Annotated[int | None, count("--k", "K", "Slots per row. Default: the K of the trace.")] = None,
    scores: Annotated[
        str | None,
        option(
            "--scores",
            "SOURCE",
            "A producer (ksieve synth --list), or a capture whose rows are used in turn. Default: endpoint, or a "
            "recording's own scores.",
            callback=checked("--scores", check_anywhere),
        ),
    ] = None,
    backend: BackendName = Backend.auto,
    policy: PolicyName = None,
    rounds: Annotated[int, count("--rounds", "INT", "Timed rounds; medians are reported.", minimum=1)] = 3,
    peers: Annotated[
        str,
        option(
            "--peers",
            "LIST",
            "Other libraries to time: all that are installed, none, or names such as sglang, flashinfer.",
            callback=checked("--peers", libraries),
        ),
    ] = "none",
    seed: Annotated[int, option("--seed", "INT", "Seed of the scores.")] = 0,
    out: Out = None,
    figures: Figures = None,
) -> None:
    """Replay every selection of serving requests, call by call in their order.

    Prompts are split into scheduler steps, and steps into calls whose score matrix fits a budget; decoding adds a call
    per token. Every call and a plain read of the same valid scores are timed, and every answer is verified.
    """
    from ksieve_lab.bench.machines import stem_of
    from ksieve_lab.traces import replay as traces

    if (trace is not None) + example + (prompt is not None) != 1:
        raise ArgumentError("TRACE", "none or several sources", "one of: TRACE, --example, --prompt")
    read = {"TRACE": trace, "--scores": scores and scores.removeprefix("factors:"), "--policy": policy}
    files.keep_apart({"--save": save, "--out": out}, read)
    if trace is not None:
        chosen = traces.load(trace)
    elif prompt is not None:
        request = {
            "prompt": prompt, "step_tokens": step_tokens, "budget_bytes": budget_bytes, "decode_steps": decode_steps,
            "batch": batch,
        }  # fmt: skip
        chosen = traces.Trace.of_requests(f"{batch} x {prompt}", [request], 2048)
        if not chosen.calls:
            raise ArgumentError("--prompt", prompt, "an int of at least 1, or 0 with --decode-steps")
    else:
        chosen = traces.EXAMPLE
    if k is not None:  # so that --save writes the trace that is replayed
        chosen = replace(chosen, k=check_k(k))
    if scores is None:
        recorded = trace is not None and trace.endswith(".safetensors")
        scores = str(trace) if recorded else "endpoint"
    path = results.target(out, stem_of(backend.value, "replay", chosen.name))
    results.ready(figures)
    saved = files.optional_target("--save", save, f"{chosen.name}.json", (".json",))
    files.keep_apart({"--save": saved, "--out": path}, read)
    if saved is not None:
        chosen.save(saved)
    with terminal.progress("replaying", len(chosen.calls), unit="calls", waiting="loading the kernels") as update:
        payload = traces.run(
            chosen, scores=scores, backend=backend.value, policy=policy, rounds=rounds,
            peers=libraries(peers)[0], seed=seed, progress=update,
        )  # fmt: skip
    results.tell(payload)
    if saved is not None:
        terminal.say(f"trace: {saved}")
    results.finish(path, payload, figures)
    results.judge(call["exact"] for call in payload["results"]["calls"])
