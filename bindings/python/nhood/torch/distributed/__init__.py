"""Neighborhood attention over grids that are sharded over many processes, on torch.distributed.

    mesh = torch.distributed.device_mesh.init_device_mesh("cuda", (4,), mesh_dim_names=("width",))
    out = nhood.torch.distributed.neighborhood_attention(
        query, key, value, kernel_size=(18, 24, 24), mesh=mesh, sharded_axes=(None, None, "width"), grid=(30, 48, 80)
    )

Each process has a shard of the grid, and gets the results of its own queries: those of one process with everything.
"""

from ._functions import balanced_sizes, explain, neighborhood_attention
from ._modules import reduce_gradients, shard
from ._sharding import Sharding
from ._strategies import Choice, Link

__all__ = [
    "Choice",
    "Link",
    "Sharding",
    "balanced_sizes",
    "explain",
    "neighborhood_attention",
    "reduce_gradients",
    "shard",
]
