"""CUDA's driver before torch: a device's context takes as long as half of torch's import."""

from __future__ import annotations

import ctypes


def open_first_context() -> None:
    """Start the driver and make the first device's primary context, which torch then uses.

    Meant for a thread beside the imports: the calls hold no lock of Python. Errors, and a machine
    without the driver, are left for torch to report.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
