"""Selection while scores are produced, without the matrix: `Running` takes tiles of columns, `Candidates` lists."""

from ksieve.tiles.candidates import Candidates
from ksieve.tiles.running import Running

__all__ = ["Candidates", "Running"]
