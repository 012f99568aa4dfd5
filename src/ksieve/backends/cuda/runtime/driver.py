"""The CUDA driver: the calls that this package makes, and the text of their errors.

Calls off the hot path go through ``cuda.bindings``. The few calls of every selection (current context, capture state,
launch) go through ctypes with prebuilt arguments, the cheapest call in Python.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ksieve.core.device import DeviceInfo
from ksieve.core.errors import BackendError
from ksieve.core.installation import install_command

LEAST_CAPABILITY = (8, 0)
LEAST_CUDA = 12_040
"""Oldest CUDA version of a driver, as `cuDriverGetVersion` numbers them: 12.4 added cuFuncLoad."""

_NO_DEVICE = 100
_LIBRARY = "libcuda.so.1"


def cuda_version() -> int | None:
    """CUDA version that the driver supports, such as 12080; None without a driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        number = ctypes.c_int()
        return number.value if library.cuDriverGetVersion(ctypes.byref(number)) == 0 else None
    except (OSError, AttributeError):
        return None


def install(version: int | None) -> str:
    """Command that installs the extra for a driver of some CUDA version; None: for the newest."""
    return install_command("cuda12" if version is not None and version < 13_000 else "cuda")


def too_old(version: int) -> BackendError | None:
    """Return an error if a driver of that CUDA version lacks functions that are called here."""
    if version >= LEAST_CUDA:
        return None
    return BackendError(
        f"the NVIDIA driver supports CUDA {_text(version)} and is too old: update it to 580 or newer, or to 550 or "
        f"newer with {install(version)}"
    )


def missing_package(error: ImportError) -> BackendError:
    """Return an error that names the missing Python package and how to install it."""
    return BackendError(
        f"the CUDA backend needs cuda-core, cuda-bindings and NVRTC ({error}): {install(cuda_version())}"
    )


class Driver:
    """One process's access to the CUDA driver.

    Raises `BackendError` if the Python bindings, the driver library or a usable GPU is missing; the message names the
    remedy.
    """

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver as api
        except ImportError as error:
            raise missing_package(error) from None
        self._api = api
        try:
            (code,) = api.cuInit(0)
        except (RuntimeError, OSError, ImportError):
            raise BackendError(
                "no NVIDIA driver was found on this machine: install NVIDIA's display driver (580 or newer, or 550 "
                f"with {install(LEAST_CUDA)}), or pass the scores as a CPU array"
            ) from None
        if int(code) == _NO_DEVICE:
            raise BackendError("the NVIDIA driver sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES")
        self.check(code, "starting the CUDA driver")
        if (refusal := too_old(self._call("cuDriverGetVersion"))) is not None:
            raise refusal
        library = ctypes.CDLL(_LIBRARY)
        self.launch = library.cuLaunchKernelEx
        self.get_current = library.cuCtxGetCurrent
        self._is_capturing = library.cuStreamIsCapturing
        # Takes a c_void_p and returns an error code: one C call, which no signal handler interrupts.
        self.wait = library.cuStreamSynchronize
        self._contexts: dict[int, int] = {}
        self._lock = threading.Lock()

    # ---- errors --------------------------------------------------------------------------------------------

    def check(self, code: Any, doing: str) -> None:
        """Raise `BackendError` unless a driver call returned success."""
        if int(code):
            raise BackendError(f"CUDA error while {doing}: {self.error_text(int(code))}")

    def error_text(self, code: int) -> str:
        """Name and explain a driver's error code."""
        try:
            result = self._api.CUresult(code)
        except ValueError:  # an error code newer than the bindings
            return f"error {code}"
        name, text = (self._api.cuGetErrorName(result)[1], self._api.cuGetErrorString(result)[1])
        return f"{name.decode()} ({code}), {text.decode()}"

    def _call(self, name: str, *args: Any) -> Any:
        code, *values = getattr(self._api, name)(*args)
        self.check(code, f"calling {name}")
        return values[0] if len(values) == 1 else values

    # ---- devices -------------------------------------------------------------------------------------------

    def device_info(self, index: int) -> DeviceInfo:
        """Return the properties of a device, without creating a context.

        Raises `BackendError` if there is no such device, or it is older than compute capability 8.0.
        """
        count = self._call("cuDeviceGetCount")
        if not 0 <= index < count:
            raise BackendError(f"there is no device cuda:{index}: the driver sees {count} GPU(s), numbered from 0")
        device = self._call("cuDeviceGet", index)
        kinds = self._api.CUdevice_attribute

        def attribute(name: str) -> int:
            return int(self._call("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

        capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
        name = self._call("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
        if capability < LEAST_CAPABILITY:
            raise BackendError(
                f"cuda:{index} ({name}) has compute capability {capability[0]}.{capability[1]}; ksieve needs 8.0 "
                "(A100) or newer: pass the scores as a CPU array"
            )
        return DeviceInfo(
            "cuda",
            name=name,
            index=index,
            capability=capability,
            sm_count=attribute("MULTIPROCESSOR_COUNT"),
            shared_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            shared_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            l2_bytes=attribute("L2_CACHE_SIZE"),
        )

    def context(self, index: int) -> int:
        """Return the primary context of a device, which PyTorch, CuPy and JAX use too; retained until exit."""
        with self._lock:
            if index not in self._contexts:
                device = self._call("cuDeviceGet", index)
                self._contexts[index] = int(self._call("cuDevicePrimaryCtxRetain", device))
            return self._contexts[index]

    @contextmanager
    def activated(self, context: int) -> Iterator[None]:
        """Make a context current for a block of calls, then restore the previous one."""
        before = self._call("cuCtxGetCurrent")
        try:  # an interrupt on either side of the next call leaves no foreign context current
            self._call("cuCtxSetCurrent", self._api.CUcontext(context))
            yield
        finally:
            self._call("cuCtxSetCurrent", before)

    # ---- kernels -------------------------------------------------------------------------------------------

    def load(self, code: bytes, entry: str, shared_bytes: int, *, clusters: bool = False) -> int:
        """Load a cubin into the current context and return its entry function; with `clusters` it may run in clusters.

        The module is never unloaded. Loading is forced here: the driver would otherwise load lazily at the first
        launch, which may be inside a stream capture.
        """
        api = self._api
        result, module = api.cuModuleLoadData(code)
        if int(result):
            version = self._call("cuDriverGetVersion")
            raise BackendError(
                f"the driver refused a compiled kernel: {self.error_text(int(result))}. It supports CUDA "
                f"{_text(version)}: update the driver, or compile with the NVRTC for it, {install(version)}; then run "
                "`ksieve cache --clear`, and make a bundle (KSIEVE_BUNDLE) again"
            )
        function = self._call("cuModuleGetFunction", module, entry.encode())
        kind = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuFuncSetAttribute", function, kind, shared_bytes)
        if clusters:
            # Clusters of more than 8 CTAs are not portable: the function needs an attribute to allow them.
            kind = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self._call("cuFuncSetAttribute", function, kind, 1)
        self._call("cuFuncLoad", function)
        return int(function)

    # ---- streams and memory, in the current context ----------------------------------------------------------

    def is_capturing(self, stream: int) -> bool:
        """Whether work enqueued on a stream is being recorded into a CUDA graph instead of run.

        The legacy default stream cannot be captured, but asking about it fails while another stream captures in the
        global mode. That counts: compiling and allocating are forbidden then too.
        """
        status = ctypes.c_int(0)
        code = self._is_capturing(ctypes.c_void_p(stream), ctypes.byref(status))
        return bool(code or status.value)

    def fill_zero(self, pointer: int, size: int, stream: int) -> None:
        """Enqueue zeroing of `size` bytes."""
        if size:
            self._call("cuMemsetD8Async", pointer, 0, size, self._api.CUstream(stream))

    def synchronize(self, stream: int) -> None:
        """Wait for a stream."""
        self._call("cuStreamSynchronize", self._api.CUstream(stream))

    def allocate(self, size: int) -> int:
        """Allocate device memory, 256-byte aligned, for processes without an array library's allocator."""
        code, pointer = self._api.cuMemAlloc(size)
        if int(code):
            raise BackendError(f"could not allocate {size} bytes on the GPU: {self.error_text(int(code))}")
        return int(pointer)

    def free(self, pointer: int, context: int) -> None:
        """Free what `allocate` returned in a context; any thread may call it. Waits for work that uses it."""
        with self.activated(context):
            self._call("cuMemFree", pointer)

    def read(self, pointer: int, size: int) -> bytearray:
        """Copy device memory to the host; waits for the copy, not for other streams."""
        host = bytearray(size)
        if size:
            address = ctypes.addressof((ctypes.c_char * size).from_buffer(host))
            self._call("cuMemcpyDtoH", address, pointer, size)
        return host

    def write(self, pointer: int, data: memoryview) -> None:
        """Copy contiguous host memory to the device; the host memory may be reused on return."""
        if data.nbytes:
            host = bytearray(data.cast("B"))
            address = ctypes.addressof((ctypes.c_char * len(host)).from_buffer(host))
            self._call("cuMemcpyHtoD", pointer, address, len(host))


def _text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


_instance: Driver | None = None
_guard = threading.Lock()


def get() -> Driver:
    """Return this process's driver, initialised on first use; after a failure the next call tries again."""
    global _instance
    if _instance is None:
        with _guard:
            if _instance is None:
                _instance = Driver()
    return _instance
