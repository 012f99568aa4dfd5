"""The switch of an engine: `install`, `uninstall` and `warm_up` of its adapter."""

from __future__ import annotations

from collections.abc import Sequence

from ksieve.adapters import _switch, _warm_up


class Engine:
    """One engine, by its name in `ksieve.adapters._operators`; its methods are functions of the adapter's module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def install(self, verify: float | None = None) -> tuple[str, ...]:
        """Replace the engine's operators by the functions of this module, in this process, until `uninstall`.

        Modules that are not imported yet are waited for. The engine's own operators serve the calls that ksieve
        refuses, and those through a function that was kept beyond `uninstall`. A second call changes `verify` alone.

        Parameters
        ----------
        verify : float, optional
            Share of the calls, from 0 to 1, that are compared with the engine's own operator and judged by
            `ksieve.verify`. Default: ``KSIEVE_VERIFY``, or none.

        Returns
        -------
        tuple of str
            Names of the operators that are replaced now.

        Raises
        ------
        BackendError
            The engine is not installed, PyTorch is built for ROCm, packages or a driver that the CUDA backend needs
            are missing, or no operator has a signature that this module knows; nothing is replaced. Where some have
            another signature, a warning names them, and the others are replaced.
        ArgumentError
            `verify`, or ``KSIEVE_VERIFY``, is no share.
        """
        return _switch.install(self.name, verify)

    def uninstall(self) -> None:
        """Put the engine's operators back exactly as they were; without `install` it does nothing."""
        _switch.uninstall(self.name)

    def warm_up(
        self,
        k: int | Sequence[int] = 2048,
        max_rows: int = 16_384,
        max_width: int = 262_144,
        dtypes: Sequence[str] = ("float32",),
    ) -> int:
        """Compile and load the kernels of the engine's calls on the current CUDA device: none waits for a compiler.

        The kernels are those of every call of this module with scores up to that size. Compiled ones come from the
        cache, which ``ksieve build --for`` fills; others are compiled on all processors, which takes minutes.

        Parameters
        ----------
        k : int or sequence of int
            Slots per row.
        max_rows, max_width : int
            Largest shape of the scores.
        dtypes : sequence of str
            "float32", "float16" or "bfloat16".

        Returns
        -------
        int
            Number of kernels.

        Raises
        ------
        ArgumentError
            A number is out of range.
        BackendError
            There is no usable GPU, or a kernel cannot be compiled.
        """
        return _warm_up.warm_up(self.name, k, max_rows, max_width, dtypes)
