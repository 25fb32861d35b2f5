"""Neighborhood attention on 1-D, 2-D and 3-D grids, for numpy arrays and others on the CPU and on CUDA devices.

    import numpy, nhood
    query, key, value = numpy.random.rand(3, 1, 56, 56, 4, 32).astype("float32")
    out = nhood.na2d(query, key, value, kernel_size=7)

na1d, na2d, na3d: attention; .._backward: its gradients; .._qk, .._av, .._in: its unfused operators.
neighborhood_attention_varlen: attention of samples of different sizes in one call; .._backward: its gradients.
Windows: windows of an axis that are no formula, as an entry of kernel_size; queries may lie on another grid than keys.
norm_rope, norm_rope_backward: RMS norm and rotary positions of queries and keys, in CPU memory.
All calls may be made from several threads at once, and release the interpreter's lock while they compute.
"""

from ._device_arrays import DeviceArray
from ._devices import Ceilings, Device, configure, devices, measure, notes, threads, version
from ._functions import (
    na1d,
    na1d_av,
    na1d_backward,
    na1d_in,
    na1d_qk,
    na2d,
    na2d_av,
    na2d_backward,
    na2d_in,
    na2d_qk,
    na3d,
    na3d_av,
    na3d_backward,
    na3d_in,
    na3d_qk,
)
from ._library import path as library_path
from ._norm_rope_arrays import norm_rope, norm_rope_backward, rotary_tables
from ._plans import clear_cache
from ._tuning import export_wisdom, forget_wisdom, import_wisdom, tune, tuning
from ._varlen import neighborhood_attention_varlen, neighborhood_attention_varlen_backward
from ._windows import Windows

__version__ = version()

__all__ = [
    "Ceilings",
    "Device",
    "DeviceArray",
    "Windows",
    "clear_cache",
    "configure",
    "devices",
    "export_wisdom",
    "forget_wisdom",
    "import_wisdom",
    "library_path",
    "measure",
    "na1d",
    "na1d_av",
    "na1d_backward",
    "na1d_in",
    "na1d_qk",
    "na2d",
    "na2d_av",
    "na2d_backward",
    "na2d_in",
    "na2d_qk",
    "na3d",
    "na3d_av",
    "na3d_backward",
    "na3d_in",
    "na3d_qk",
    "neighborhood_attention_varlen",
    "neighborhood_attention_varlen_backward",
    "norm_rope",
    "norm_rope_backward",
    "notes",
    "rotary_tables",
    "threads",
    "tune",
    "tuning",
    "version",
]
