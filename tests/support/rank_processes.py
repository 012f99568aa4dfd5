"""Processes over gloo that make calls, each of them watched: one that does not end is an error, not a wait."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

SECONDS = 20
"""A call that takes longer hangs."""


class Processes:
    """Ranks of one process group.

    Parameters
    ----------
    world : int
    """

    def __init__(self, world: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(world)]
        self.ends = [ours for ours, _ in pairs]
        self.ranks = [
            context.Process(target=_serve, args=(rank, world, self.folder.name, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process in self.ranks:
            process.start()
        for _, theirs in pairs:
            theirs.close()  # so that a rank that dies is the end of its pipe
        self.run(_nothing, 60)

    def run(self, call: Callable[[int], Any], seconds: float = SECONDS) -> list[Any]:
        """Let every rank make a call with its number, and return the answers: the error of one that raised, None of one
        that died.
        """
        for end in self.ends:
            end.send(call)
        deadline, answers = time.monotonic() + seconds, []
        for rank, end in enumerate(self.ends):
            if not end.poll(max(deadline - time.monotonic(), 0)):
                self.close()
                raise AssertionError(f"rank {rank} has not ended after {seconds} s")
            try:
                answers.append(end.recv())
            except EOFError:
                answers.append(None)
        return answers

    @property
    def alive(self) -> bool:
        """Whether all ranks may make calls."""
        return all(process.is_alive() for process in self.ranks)

    def close(self) -> None:
        """End them."""
        for process in self.ranks:
            process.kill()
            process.join()
        self.folder.cleanup()


@pytest.fixture(scope="session")
def processes() -> Iterator[Callable[[int], Processes]]:
    """Return the ranks of one process group of that size, which are started again if one has died."""
    pools: dict[int, Processes] = {}

    def of(world: int) -> Processes:
        if world not in pools or not pools[world].alive:
            pools[world] = Processes(world)
        return pools[world]

    yield of
    for pool in pools.values():
        pool.close()


def _nothing(rank: int) -> None:
    pass


def _serve(rank: int, world: int, folder: str, end: Any) -> None:
    import torch

    torch.set_num_threads(1)
    wait = timedelta(seconds=3 * SECONDS)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=wait
    )
    while True:
        try:
            call = end.recv()
        except EOFError:
            return
        try:
            answer = call(rank)
        except Exception as error:
            answer = error
        try:
            end.send(answer)
        except Exception:  # an error that cannot be pickled
            end.send(RuntimeError(f"{type(answer).__name__}: {answer}"))
