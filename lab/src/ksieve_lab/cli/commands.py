"""The laboratory's commands for ``ksieve --help``: names, one line each, and where they are."""

from __future__ import annotations

PLACE = "ksieve_lab.cli.app:lab"

COMMANDS = {
    name: (line, PLACE)
    for name, line in {
        "demo": "Select from the bundled capture or one of your own, verify, and time it against NumPy.",
        "bench": "Time a backend and other libraries on the same rows.",
        "plot": "Draw the figures of result files again.",
        "study": "Study the scores of captures: routes, proposals, and what a boundary costs.",
        "calibrate": "Choose a sampling policy for scores like those of captures.",
        "replay": "Replay the calls of a trace or of a recording.",
        "synth": "Write a capture of generated scores.",
        "import": "Write a capture from scores of another format.",
        "info": "Describe a capture.",
    }.items()
}
