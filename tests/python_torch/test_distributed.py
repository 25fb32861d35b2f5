"""Layers under DistributedDataParallel: two processes with half of a batch each step as one with all of it."""

import nhood.torch as nt
import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel


def make():
    torch.manual_seed(0)
    layer = nt.NeighborhoodAttention2D(16, 2, 3, rel_pos_bias=True)
    return layer, torch.randn(4, 6, 6, 16)


def step_half(rank, store, results):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    layer, x = make()
    parallel = DistributedDataParallel(layer)
    parallel(x[2 * rank : 2 * rank + 2]).square().mean().backward()
    torch.save([p.grad for p in layer.parameters()], f"{results}/{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes(tmp_path):
    layer, x = make()
    layer(x).square().mean().backward()
    multiprocessing.spawn(step_half, (tmp_path / "store", tmp_path), nprocs=2)
    for rank in range(2):
        for got, parameter in zip(torch.load(tmp_path / f"{rank}.pt"), layer.parameters()):
            torch.testing.assert_close(got, parameter.grad)
