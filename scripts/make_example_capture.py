"""Cut the bundled example capture from a larger file of indexer factors.

    python scripts/make_example_capture.py path/to/indexer_minilm_a.safetensors

Keeps the last keys and every eighth query, each with its causal length counted from the first kept key. The
result is the same byte for byte whenever it is made.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
from safetensors import safe_open

from ksieve.captures.format import open_capture
from ksieve.captures.writer import write_factors

KEYS = 54_272
"""Keys kept: 53 * 1024, so that int8 keys, scales and 128 queries stay under 4,000,000 bytes."""

QUERY_STEP = 8
"""One query in eight is kept, the last one among them: neighbouring queries are much alike."""

TARGET = Path(__file__).parents[1] / "examples" / "indexer_capture.safetensors"

ABOUT = {
    "title": "Indexer scores of real text: 128 queries over 54,272 keys, causal",
    "formula": "score[t, i] = k_scale[i] * sum_j w[t, j] * max(0, dot(q[t, j], k[i]))",
    "description": (
        "Factors of a lightning-indexer-style score, made by running a real encoder over real text; not a trained "
        "indexer's output. Keys: key projections of two attention heads (2 x 32 dimensions), the mean of each window "
        "position removed. Queries: those heads' query projections, together and each alone, and five more head pairs, "
        "each turned by a fixed random rotation. Weights: positive. Projections only, no text."
    ),
    "model": "sentence-transformers/all-MiniLM-L6-v2, layers 2 and 3 (zero-based)",
    "model_licence": "Apache-2.0",
    "text": "documentation and source of Python 3.11, Linux man-pages 6.03; the queries lie in st(4) and towlower(3)",
    "text_licence": (
        "PSF-2.0 (Python documentation and library); Linux man-pages: GPL-2.0-or-later, verbatim-copying, BSD and "
        "other free licences, per page"
    ),
    "limits": (
        "short windows of a bidirectional encoder: no recency, no large plateau of zeros; the queries are tokens of "
        "neighbouring windows and not independent"
    ),
}


def main() -> None:
    """Read the source named on the command line and write the example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="safetensors file with q, k, k_scale and w")
    parser.add_argument("target", type=Path, nargs="?", default=TARGET)
    args = parser.parse_args()
    with safe_open(args.source, framework="np") as file:
        q, keys, scale, w = (file.get_tensor(name) for name in ("q", "k", "k_scale", "w"))
    queries = q.shape[0]
    kept = np.arange(QUERY_STEP - 1, queries, QUERY_STEP)
    digest = hashlib.sha256(args.source.read_bytes()).hexdigest()
    cut = f"the last {KEYS:,} of {keys.shape[0]:,} keys; queries {kept[0]}, {kept[1]}, ..., {kept[-1]} of {queries:,}"
    write_factors(
        args.target,
        q=q[kept],
        keys=keys[-KEYS:],
        key_scale=scale[-KEYS:],
        weights=w[kept],
        # In the source query r sees all keys but the last queries - 1 - r; cutting the first keys keeps that.
        lengths=(KEYS - queries + 1 + kept).astype(np.int32),
        k=2048,
        metadata=ABOUT | {"cut": cut, "source": f"{args.source.name}, SHA-256 {digest}"},
    )
    with open_capture(args.target) as capture:
        for name, value in capture.describe().items():
            print(f"{name:14s} {value}")


if __name__ == "__main__":
    main()
