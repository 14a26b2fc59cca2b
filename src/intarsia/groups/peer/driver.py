"""The few calls of the CUDA driver that let one process write into memory of another one's GPU.

They are called by name because torch's own way to them is not part of its interface, and its allocator does
not say where an allocation begins. The device's context must be current, as it is after torch made a tensor.
"""

import ctypes
from functools import cache

HANDLE_BYTES = 64
_WITH_PEER_ACCESS = 1


class DriverError(RuntimeError):
    """A call of the driver failed."""


class _Handle(ctypes.Structure):
    _fields_ = [("data", ctypes.c_ubyte * HANDLE_BYTES)]


@cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(str(error)) from None
    driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), _Handle, ctypes.c_uint]
    driver.cuMemAlloc_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
    driver.cuMemsetD8_v2.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t]
    for name in ("cuMemFree_v2", "cuIpcCloseMemHandle"):
        getattr(driver, name).argtypes = [ctypes.c_uint64]
    driver.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(_Handle), ctypes.c_uint64]
    return driver


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    code = getattr(driver, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(f"{name}: {(text.value or b'error %d' % code).decode(errors='replace')}")


def allocate(nbytes: int) -> int:
    """The address of so many zero bytes on the current device. Raises DriverError."""
    address = ctypes.c_uint64()
    _call("cuMemAlloc_v2", ctypes.byref(address), nbytes)
    _call("cuMemsetD8_v2", address, 0, nbytes)
    _call("cuCtxSynchronize")
    return address.value


def free(address: int) -> None:
    """Give an allocation back."""
    _call("cuMemFree_v2", address)


def handle_of(address: int) -> str:
    """What another process of this host needs to open an allocation."""
    handle = _Handle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), address)
    return bytes(handle.data).hex()


def open_handle(text: str) -> int:
    """The address, in this process and for its current device, of another process's allocation."""
    handle = _Handle.from_buffer_copy(bytes.fromhex(text))
    address = ctypes.c_uint64()
    _call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, _WITH_PEER_ACCESS)
    return address.value


def close_handle(address: int) -> None:
    """End the use of an opened allocation."""
    _call("cuIpcCloseMemHandle", address)
