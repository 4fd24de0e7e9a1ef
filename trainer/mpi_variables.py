"""Open MPI's own settings, read back from the library after its start (MPI_T: MPI 3.1, chapter 14)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable


def read(library_path: str, names: Iterable[str]) -> dict[str, int]:
    """Values of control variables, as they are now.

    Args:
        library_path: of a library that is linked with MPI and loaded.
        names: of the variables; numbers, enumerations and booleans.

    Returns:
        Name -> value, without those that this MPI does not have.
    """
    library = ctypes.CDLL(library_path)
    library.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int()))
    found = {}
    for name in names:
        index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
            continue
        library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
        value = (ctypes.c_uint8 * 8)()
        library.MPI_T_cvar_read(handle, value)
        # Booleans and flags fill one byte, numbers four, or eight of which four do; only the name tells here.
        whole = name.startswith(("coll_tuned_", "btl_tcp_eager")) and not name.endswith("_rules")
        found[name] = int.from_bytes(bytes(value[: 4 if whole else 1]), sys.byteorder)
    return found
