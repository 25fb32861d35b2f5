"""A warm start of torch.compile: the first training step of a small model in a fresh process whose compilations are in torch's
cache, with nhood's layers and with torch's own attention. Each turn is a process of its own; the first fills the cache.

    python3 bench/cpu/warm_start.py --turns 5
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

KINDS = ("nhood", "torch")


def step(kind: str) -> None:
    """Prints the seconds of CPU time and of the clock that the first step takes."""
    import nhood.torch
    import torch
    from torch import nn

    class DenseAttention(nn.Module):
        def __init__(self, dim: int, heads: int) -> None:
            super().__init__()
            self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key, value = self.qkv(x.flatten(1, 2)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            out = nn.functional.scaled_dot_product_attention(query, key, value)
            return self.proj(out.transpose(1, 2).flatten(2)).unflatten(1, x.shape[1:3])

    class Block(nn.Module):
        def __init__(self, dim: int, heads: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            own = kind == "torch"
            self.attn = DenseAttention(dim, heads) if own else nhood.torch.NeighborhoodAttention2D(dim, heads, 7)
            self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    model = torch.compile(nn.Sequential(Block(64, 2), Block(64, 2)))
    x = torch.rand(1, 14, 14, 64)
    cpu, clock = time.process_time(), time.perf_counter()
    model(x).square().mean().backward()
    print(json.dumps([time.process_time() - cpu, time.perf_counter() - clock]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--step", choices=KINDS, help="take one step in this process")
    arguments = parser.parse_args()
    if arguments.step:
        step(arguments.step)
        return
    taken: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(arguments.turns + 1):
            for kind in KINDS:
                environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, kind), "OMP_NUM_THREADS": "1"}
                command = (sys.executable, "-W", "ignore", __file__, "--step", kind)
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                if turn:
                    taken[kind].append(json.loads(done.stdout.splitlines()[-1]))
    for i, what in enumerate(("CPU time", "clock")):
        nhood_s, torch_s = (statistics.median(times[i] for times in taken[kind]) for kind in KINDS)
        print(f"{what}: nhood {nhood_s:.2f} s, torch {torch_s:.2f} s, ratio {nhood_s / torch_s:.2f}")


if __name__ == "__main__":
    main()
