"""Tensors in device memory: those of the cache, and those given to it.

CudaTensorView is what a hit or a reservation has when its bytes are on the device:
`torch.from_dlpack(view)` or `cupy.from_dlpack(view)` makes a tensor of it without a copy.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from embcache import _cuda, _dlpack, dtypes, tensors
from embcache.dtypes import DType
from embcache.tensors import TensorSpec, TensorView

_KDL_CUDA = 2


class CudaTensorView:
    """One tensor of an entry, in the cache's device memory.

    Whatever is made of it without a copy keeps the entry pinned until it is gone. A kernel may still
    be reading when Python drops the last reference: synchronise before that. Nothing keeps a
    consumer from writing to the tensors of a hit; it must not.
    """

    __slots__ = ("spec", "_owner", "_segment", "_address", "__weakref__")

    def __init__(
        self, spec: TensorSpec, owner: Any, segment: _cuda.Segment, address: int
    ) -> None:
        self.spec = spec
        self._owner = owner
        self._segment = segment
        self._address = address

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    @property
    def device_pointer(self) -> int:
        return self._address

    @property
    def device_uuid(self) -> str:
        return self._segment.uuid

    @property
    def device_index(self) -> int:
        """Of the device, as this process counts."""
        return self._segment.ordinal

    def tobytes(self) -> bytes:
        """A copy in host memory, for looking at; slow."""
        out = bytearray(self.nbytes)
        memory = (ctypes.c_ubyte * self.nbytes).from_buffer(out)
        cuda = _cuda.driver()
        with cuda.current(self._segment.ordinal):
            cuda.copy(ctypes.addressof(memory), False, self._address, True, self.nbytes)
        return bytes(out)

    def numpy(self) -> np.ndarray[Any, Any]:
        raise TypeError(
            "the tensor is in device memory: torch.from_dlpack(view) or cupy.from_dlpack(view) makes "
            "a tensor there; get(key, place='host') answers with one that NumPy can read"
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return self.numpy()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        try:
            typestr = np.dtype(dtypes.to_numpy(self.dtype)).str
        except TypeError:
            typestr = "V"
        if "V" in typestr:  # bf16 and fp8, for which the interface has no name
            raise AttributeError(
                f"__cuda_array_interface__ cannot say {self.dtype.name}; use __dlpack__"
            )
        return {
            "version": 3,
            "data": (self._address, False),  # consumers refuse read-only memory
            "typestr": typestr,
            "shape": self.shape,
            "strides": None,
            "stream": None,  # what is in the cache is complete
        }

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        # What is in the cache is complete on every stream.
        device = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"the tensor is on device {device}; {dl_device} was asked for")
        if copy:
            raise BufferError("embcache makes no copies in device memory; copy the tensor made of it")
        raw = dtypes.raw_numpy(self.dtype)
        if raw is None:
            raise BufferError(f"DLPack has no packed {self.dtype.name}")
        # An array that nobody looks into: only its capsule is made.
        span = _dlpack.Span(self._owner, self._address, raw, self.shape, False)
        return _dlpack.give(np.asarray(span), self.dtype, max_version, None, False, device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_KDL_CUDA, self._segment.ordinal)

    def __repr__(self) -> str:
        return f"CudaTensorView({self.dtype.name}, {self.shape}, device {self.device_index})"


class CudaSource:
    """A tensor in device memory that is to be stored: contiguous, and complete."""

    __slots__ = ("address", "nbytes", "ordinal", "owner")

    def __init__(self, address: int, nbytes: int, ordinal: int, owner: Any) -> None:
        self.address = address
        self.nbytes = nbytes
        self.ordinal = ordinal
        self.owner = owner


def is_cuda(value: Any) -> bool:
    if isinstance(value, (np.ndarray, tuple)):
        return False
    device = getattr(value, "__dlpack_device__", None)
    if device is not None:
        return int(device()[0]) == _KDL_CUDA
    return hasattr(value, "__cuda_array_interface__")


def source_of(value: Any) -> tuple[TensorSpec, CudaSource]:
    """Of a tensor with __dlpack__ or __cuda_array_interface__. Waits for the work that is still to
    write it."""
    if isinstance(value, CudaTensorView):
        source = CudaSource(
            value.device_pointer, value.nbytes, value.device_index, value
        )
        return value.spec, source
    cuda = _cuda.driver()
    if hasattr(value, "__dlpack__"):
        # The default stream waits for what the producer has queued, and the copy runs on that.
        capsule = value.__dlpack__(stream=1)
        dtype, shape, address, ordinal = _dlpack.look_at_device(capsule)
        spec = TensorSpec(dtype, shape)
        return spec, CudaSource(address, spec.nbytes, ordinal, (capsule, value))
    interface = value.__cuda_array_interface__
    spec = TensorSpec(np.dtype(interface["typestr"]), interface["shape"])
    address = int(interface["data"][0])
    itemsize = np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    if strides is not None and not _dlpack.is_contiguous(spec.shape, strides, itemsize):
        raise TypeError("the tensor is not contiguous; make it so first")
    ordinal = cuda.ordinal_at(address)
    with cuda.current(ordinal):
        cuda.synchronize(interface.get("stream"))
    return spec, CudaSource(address, spec.nbytes, ordinal, value)


def view_of(spec: TensorSpec, source: CudaSource) -> CudaTensorView:
    """Of the caller's own memory, which it keeps alive."""
    here = _cuda.Segment(_cuda.driver().uuids[source.ordinal], b"")  # nothing to open or close
    here.ordinal = source.ordinal
    return CudaTensorView(spec, source, here, source.address)


def copy_into(target: TensorView | CudaTensorView, source: np.ndarray[Any, Any] | CudaSource) -> None:
    """From wherever to wherever; complete when it returns."""
    if isinstance(target, TensorView) and isinstance(source, np.ndarray):
        tensors.copy_into(target, source)
        return
    if isinstance(source, np.ndarray):
        source = np.ascontiguousarray(source)
        at, ordinal, from_device = source.ctypes.data, -1, False
    else:
        at, ordinal, from_device = source.address, source.ordinal, True
    if isinstance(target, CudaTensorView):
        to, to_device = target.device_pointer, True
        if from_device and ordinal != target.device_index:
            raise _cuda.error(
                f"the tensor is on device {ordinal}, the cache on device {target.device_index} "
                f"({target.device_uuid}); copy it there first"
            )
        ordinal = target.device_index
    else:
        to, to_device = target.flat().ctypes.data, False
    cuda = _cuda.driver()
    with cuda.current(ordinal):
        cuda.copy(to, to_device, at, from_device, source.nbytes)
        cuda.synchronize(0)


def export(source: CudaSource) -> tuple[bytes, int, str]:
    """IPC handle of the memory, the tensor's offset in it, and the device's UUID. Raises CacheError
    for memory that cannot be exported."""
    cuda = _cuda.driver()
    with cuda.current(source.ordinal):
        handle, offset = cuda.export(source.address)
        cuda.synchronize(0)
    return handle, offset, cuda.uuids[source.ordinal]
