"""Call frames of XLA's FFI, made by hand: a handler is called as XLA would call it."""

from __future__ import annotations

import ctypes

import numpy as np

from ksieve.frontends.jax import ffi as jax_ffi

NUMBERS = {name: number for number, name in jax_ffi.DTYPES.items()}


class FakeXla:
    """The function table of XLA, and the frames that refer to it.

    Attributes
    ----------
    errors : list of (str, int)
        Message and code of each error that a handler made; its address is its place in the list, from 1 on.
    stream, ordinal : int
        What the context gives.
    refused : int
        Address of the error that the context gives instead, if not 0.
    """

    def __init__(self, stream=0, ordinal=0):
        self.errors, self.stream, self.ordinal, self.refused, self._kept = [], stream, ordinal, 0, []
        self.context = ctypes.create_string_buffer(8)
        self.api = jax_ffi._Api(ctypes.sizeof(jax_ffi._Api))
        self.api.version.minor = 4
        self.api.error_create = jax_ffi._FUNCTION(self._error_create)
        self.api.stream_get = jax_ffi._FUNCTION(self._stream_get)
        self.api.ordinal_get = jax_ffi._FUNCTION(self._ordinal_get)

    def _error_create(self, address):
        asked = jax_ffi._ErrorCreate.from_address(address)
        assert asked.struct_size == 32
        self.errors.append((asked.message.decode(), asked.code))
        return len(self.errors)

    def _stream_get(self, address):
        asked = jax_ffi._StreamGet.from_address(address)
        assert asked.struct_size == 32 and asked.context == ctypes.addressof(self.context)
        asked.stream = self.stream
        return self.refused

    def _ordinal_get(self, address):
        asked = jax_ffi._OrdinalGet.from_address(address)
        assert asked.context == ctypes.addressof(self.context)
        asked.ordinal = self.ordinal
        return self.refused

    def call(self, handler, arguments, results, text):
        """Call a handler with NumPy arrays; return what it returns: None, or the address of an error."""
        frame = self.frame(arguments, results, text)
        return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)(ctypes.addressof(frame))

    def query(self, handler):
        """Ask a handler for the version that it was made for: the error that it returns, and the version."""
        metadata = jax_ffi._Metadata(ctypes.sizeof(jax_ffi._Metadata))
        extension = jax_ffi._Extension(32, 1, None, ctypes.addressof(metadata))
        other = jax_ffi._Extension(32, 7, ctypes.addressof(extension), None)
        frame = self.frame([], [], None)
        frame.extension = ctypes.addressof(other)
        error = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)(ctypes.addressof(frame))
        return error, (metadata.version.major, metadata.version.minor)

    def frame(self, arguments, results, text):
        size = ctypes.sizeof(jax_ffi._CallFrame)
        frame = jax_ffi._CallFrame(size, None, ctypes.addressof(self.api), ctypes.addressof(self.context), 3)
        frame.arguments, frame.results = self._buffers(arguments), self._buffers(results)
        frame.attributes.struct_size = ctypes.sizeof(jax_ffi._Attributes)
        if text is not None:
            memory = ctypes.create_string_buffer(text.encode())
            span = jax_ffi._Span(ctypes.addressof(memory), len(text))
            frame.attributes.size, frame.attributes.items = 1, self._pointers([span])
            self._kept.append(memory)
        return frame

    def _buffers(self, arrays):
        made = []
        for array in arrays:
            dims = (ctypes.c_int64 * array.ndim)(*array.shape)
            dtype = "bfloat16" if array.dtype == np.uint16 else array.dtype.name
            self._kept.append(dims)
            made.append(jax_ffi._Buffer(48, None, NUMBERS[dtype], array.ctypes.data, array.ndim, dims))
        return jax_ffi._Buffers(40, None, len(made), None, self._pointers(made))

    def _pointers(self, items):
        pointers = (ctypes.c_void_p * max(len(items), 1))(*map(ctypes.addressof, items))
        self._kept += [items, pointers]
        return ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p))
