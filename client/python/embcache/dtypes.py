"""The element types of entries, and their names in NumPy and DLPack."""

from __future__ import annotations

import enum
import math
from typing import Any, NamedTuple

import numpy as np

ml_dtypes: Any
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


class DType(enum.IntEnum):
    """The numbers of `DType` in embcache.proto, the names of safetensors."""

    BOOL = 1
    U8 = 2
    I8 = 3
    U16 = 4
    I16 = 5
    U32 = 6
    I32 = 7
    U64 = 8
    I64 = 9
    F16 = 10
    BF16 = 11
    F32 = 12
    F64 = 13
    F8_E4M3 = 14
    F8_E5M2 = 15
    F8_E8M0 = 16
    F4 = 17
    F6_E2M3 = 18
    F6_E3M2 = 19
    C64 = 20
    F8_E4M3FNUZ = 21
    F8_E5M2FNUZ = 22


class _Row(NamedTuple):
    bits: int
    numpy: str | None  # of NumPy itself
    ml_dtype: str | None  # in ml_dtypes
    dlpack: int | None  # DLDataTypeCode


_ROWS: dict[DType, _Row] = {
    DType.BOOL: _Row(8, "bool", None, 6),
    DType.U8: _Row(8, "uint8", None, 1),
    DType.I8: _Row(8, "int8", None, 0),
    DType.U16: _Row(16, "uint16", None, 1),
    DType.I16: _Row(16, "int16", None, 0),
    DType.U32: _Row(32, "uint32", None, 1),
    DType.I32: _Row(32, "int32", None, 0),
    DType.U64: _Row(64, "uint64", None, 1),
    DType.I64: _Row(64, "int64", None, 0),
    DType.F16: _Row(16, "float16", None, 2),
    DType.BF16: _Row(16, None, "bfloat16", 4),
    DType.F32: _Row(32, "float32", None, 2),
    DType.F64: _Row(64, "float64", None, 2),
    DType.F8_E4M3: _Row(8, None, "float8_e4m3fn", 10),
    DType.F8_E5M2: _Row(8, None, "float8_e5m2", 12),
    DType.F8_E8M0: _Row(8, None, "float8_e8m0fnu", 14),
    DType.F4: _Row(4, None, None, None),
    DType.F6_E2M3: _Row(6, None, None, None),
    DType.F6_E3M2: _Row(6, None, None, None),
    DType.C64: _Row(64, "complex64", None, 5),
    DType.F8_E4M3FNUZ: _Row(8, None, "float8_e4m3fnuz", 11),
    DType.F8_E5M2FNUZ: _Row(8, None, "float8_e5m2fnuz", 13),
}

_RAW: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
}


def _numpy_dtypes() -> dict[DType, np.dtype[Any]]:
    found: dict[DType, np.dtype[Any]] = {}
    for dtype, row in _ROWS.items():
        if row.numpy is not None:
            found[dtype] = np.dtype(row.numpy)
        elif row.ml_dtype is not None and hasattr(ml_dtypes, row.ml_dtype):
            found[dtype] = np.dtype(getattr(ml_dtypes, row.ml_dtype))
    return found


_TO_NUMPY = _numpy_dtypes()
_FROM_NUMPY = {numpy: dtype for dtype, numpy in _TO_NUMPY.items()}
_FROM_DLPACK = {
    (row.dlpack, row.bits): dtype for dtype, row in _ROWS.items() if row.dlpack is not None
}


def bits(dtype: DType) -> int:
    return _ROWS[dtype].bits


def nbytes(dtype: DType, shape: tuple[int, ...]) -> int:
    """The size of a tensor; ValueError when it is no whole number of bytes."""
    total = bits(dtype) * math.prod(shape)
    if total % 8:
        raise ValueError(f"shape: {shape} of {dtype.name} is no whole number of bytes")
    return total // 8


def to_numpy(dtype: DType) -> np.dtype[Any]:
    """The NumPy type; TypeError, saying what to do, when there is none here."""
    found = _TO_NUMPY.get(dtype)
    if found is not None:
        return found
    if _ROWS[dtype].ml_dtype is None:
        raise TypeError(f"NumPy has no {dtype.name}; use raw() and unpack its bytes")
    raise TypeError(f"{dtype.name} as a NumPy array needs the package ml_dtypes; or use raw()")


def from_numpy(dtype: np.dtype[Any]) -> DType:
    found = _FROM_NUMPY.get(dtype.newbyteorder("="))
    if found is None or dtype.newbyteorder("=") != dtype:
        raise TypeError(f"dtype: {dtype} is not one that entries have")
    return found


def raw_numpy(dtype: DType) -> np.dtype[Any] | None:
    """The unsigned integer of the same width; None for elements smaller than a byte."""
    return _RAW.get(bits(dtype) // 8) if bits(dtype) >= 8 else None


def to_dlpack(dtype: DType) -> tuple[int, int]:
    """DLDataTypeCode and bits; BufferError when DLPack cannot say it."""
    row = _ROWS[dtype]
    if row.dlpack is None:
        raise BufferError(f"DLPack has no packed {dtype.name}; use raw()")
    return row.dlpack, row.bits


def from_dlpack(code: int, width: int, lanes: int) -> DType:
    found = _FROM_DLPACK.get((code, width))
    if found is None or lanes != 1:
        raise TypeError(f"dtype: DLPack's code {code} of {width} bits is not one that entries have")
    return found
