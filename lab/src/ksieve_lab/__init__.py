"""The laboratory of ksieve: benches, studies, replays of serving traces, and captures of scores."""

from ksieve_lab.captures.recorder import record
from ksieve_lab.rank_simulator import Simulated, simulate

__all__ = ["Simulated", "record", "simulate"]
