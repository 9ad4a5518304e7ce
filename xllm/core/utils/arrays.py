"""NumPy arrays on the MessagePack wire, without pickle.

An array travels as ``[dtype, shape, bytes]``; the receiver gets a read-only view of the message
buffer. Only fixed-width numeric dtypes pass.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

_DTYPES = {
    np.dtype(t).str: np.dtype(t)
    for t in (np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.float32)
}

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Int8Array = npt.NDArray[np.int8]
BoolArray = npt.NDArray[np.bool_]
Float32Array = npt.NDArray[np.float32]


def enc_hook(obj: Any) -> Any:
    """msgspec encoder hook for arrays.

    Raises:
        TypeError: ``obj`` is not an array of an allowed dtype.
    """
    if isinstance(obj, np.ndarray) and obj.dtype.str in _DTYPES:
        return obj.dtype.str, obj.shape, obj.tobytes()
    if isinstance(obj, np.generic):
        return obj.item()
    raise TypeError(f"cannot send {type(obj).__name__} over a channel")


def dec_hook(expected: type, obj: Any) -> Any:
    """msgspec decoder hook for arrays.

    Raises:
        ValueError: the payload is not ``[dtype, shape, bytes]`` with matching sizes.
    """
    origin = getattr(expected, "__origin__", expected)
    if origin is not np.ndarray:
        raise TypeError(f"cannot receive {expected}")
    if not (isinstance(obj, list | tuple) and len(obj) == 3):
        raise ValueError("array payload must be [dtype, shape, bytes]")
    code, shape, data = obj
    if code not in _DTYPES:
        raise ValueError(f"array dtype {code!r} is not allowed")
    return np.frombuffer(data, dtype=_DTYPES[code]).reshape(shape)


def encoder() -> msgspec.msgpack.Encoder:
    """A MessagePack encoder that knows arrays."""
    return msgspec.msgpack.Encoder(enc_hook=enc_hook)


def decoder(type_: Any) -> msgspec.msgpack.Decoder[Any]:
    """A typed MessagePack decoder that knows arrays."""
    return msgspec.msgpack.Decoder(type_, dec_hook=dec_hook)
