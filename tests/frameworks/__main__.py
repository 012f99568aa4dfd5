"""Fetch the frameworks' test files, or run them and print what became of them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from frameworks import sources
from frameworks.catalog import FRAMEWORKS, NOT_RUN
from ksieve_lab.bench import record

TREE = Path(__file__).parents[2]
TESTS_FAILED, NO_TESTS = 1, 5
"""pytest's exit status where tests failed, and where a file has no test that was asked for."""

COLUMNS = ("passed", "failed", "skipped", "not_applicable")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="framework_tests.sh", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    getting = commands.add_parser("fetch", help="write the test files to a folder; needs a network")
    getting.add_argument(
        "--from", dest="given", action="append", default=[], metavar="NAME=PATH@VERSION",
        help="a git directory and a revision, or an archive and its version, in place of the catalog's origin",
    )  # fmt: skip
    running = commands.add_parser("run", help="run the tests of the folder; downloads nothing")
    running.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: the CPU backend")
    running.add_argument("--out", type=Path, default=Path("out"), help="folder of framework-tests.json and logs")
    running.add_argument("-k", dest="chosen", help="pytest's expression of tests to run")
    running.add_argument("--jobs", type=int, default=1, help="files at a time")
    running.add_argument("--seconds", type=float, help="limit of each file's run")
    for command in (getting, running):
        command.add_argument("names", nargs="*", metavar="FRAMEWORK", help=" ".join(FRAMEWORKS))
        command.add_argument("--sources", type=Path, default=Path("out/frameworks"), help="folder of the test files")
    args = parser.parse_args(arguments)
    unknown = set(args.names) - set(FRAMEWORKS)
    if unknown:
        parser.error(f"no framework {', '.join(sorted(unknown))}: {', '.join(FRAMEWORKS)}")
    return fetch(args) if args.command == "fetch" else run(args)


def fetch(args: argparse.Namespace) -> int:
    """Fetch each framework; one that cannot be had does not stop the others."""
    given = dict(entry.split("=", 1) for entry in args.given)
    failed = 0
    for name in args.names or FRAMEWORKS:
        try:
            source = sources.fetch(name, args.sources, given.get(name))
        except (OSError, KeyError, StopIteration, subprocess.CalledProcessError) as error:
            failed += 1
            print(f"{name}: not fetched: {error}", file=sys.stderr)
        else:
            print(f"{name}: {source['version']} from {source['origin']}")
    return 1 if failed else 0


def run(args: argparse.Namespace) -> int:
    """Run each file in a process of its own; print the table and write the JSON file."""
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = []
    for name in args.names or FRAMEWORKS:
        folder = args.sources.resolve() / name
        if not (folder / "source.json").exists():
            print(f"{name}: no files in {folder}: fetch them first", file=sys.stderr)
            continue
        source = json.loads((folder / "source.json").read_text())
        chosen += [(name, folder, file, source) for file in FRAMEWORKS[name]["tests"]]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda of: run_file(args, *of), chosen))
    settings = {"device": args.device, "only": args.chosen}
    whole_files = [rule for rule in NOT_RUN if "tests" not in rule]
    found = {"files": results, "files_not_run": whole_files}
    payload = record.payload("frameworks", settings, found, gpu=args.device == "cuda")
    record.write_json(args.out / "framework-tests.json", payload)
    print_table(results)
    bad = [result for result in results if result["failed"] or result["exit"] not in (0, NO_TESTS)]
    return 1 if bad or not results else 0


def run_file(args: argparse.Namespace, name: str, folder: Path, file: str, source: dict[str, Any]) -> dict[str, Any]:
    """Run one file under the plugin; a process that dies leaves no counts, which is a failure."""
    origin = {"framework": name, "version": source["version"], "commit": source.get("commit")}
    origin |= {"origin": source["origin"], "file": file, "sha256": source["sha256"][file]}
    label = f"{name}-{Path(file).stem}"
    out = (args.out / f"framework-{label}.json").resolve()
    out.unlink(missing_ok=True)
    paths = [
        TREE / entry for entry in ("src", "tests", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    ]
    environment = os.environ | {
        "KSIEVE_FRAMEWORK": name, "KSIEVE_FRAMEWORK_FOLDER": str(folder), "KSIEVE_FRAMEWORK_DEVICE": args.device,
        "KSIEVE_FRAMEWORK_FILE": file, "KSIEVE_FRAMEWORK_OUT": str(out),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "-p", "frameworks.plugin", "-p", "no:cacheprovider", "-c", os.devnull,
        f"--rootdir={folder}", "-q", "--tb=short", "--durations=5", str(folder / file),
    ]  # fmt: skip
    if args.chosen:
        command += ["-k", args.chosen]
    begin = time.monotonic()
    with (args.out / f"framework-{label}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            code = process.wait(args.seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # pytest then writes what it has
            try:
                code = process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
    seconds = round(time.monotonic() - begin, 1)
    if not out.exists():
        counts = dict.fromkeys(COLUMNS, 0) | {"failures": {"": f"the process ended with {code}: see its log"}}
        return origin | counts | {"failed": 1, "exit": code, "seconds": seconds}
    found = json.loads(out.read_text())
    out.unlink()
    return origin | found | {"exit": code, "seconds": seconds}


def print_table(results: list[dict[str, Any]]) -> None:
    """Print a line for each file, and each failure."""
    rows = [("framework", "version", "file", *(name.replace("_", " ") for name in COLUMNS), "seconds")]
    rows += [
        (r["framework"], r["version"], r["file"], *(str(r[name]) for name in COLUMNS), str(r["seconds"]))
        for r in results
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for result in results:
        if result["exit"] not in (0, TESTS_FAILED, NO_TESTS):
            print(f"NOT FINISHED {result['framework']} {result['file']}: pytest ended with {result['exit']}")
        for test, said in result["failures"].items():
            print(f"FAILED {result['framework']} {test}: {said}")


if __name__ == "__main__":
    sys.exit(main())
