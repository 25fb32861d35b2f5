"""Random tensors for the tests of NATTEN's interface, and a comparison of gradients."""

import torch


def randn(*shape, dtype=torch.float64, grad=False, seed=[0]):
    seed[0] += 1
    generator = torch.Generator().manual_seed(seed[0])
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def qkv(shape, heads=2, heads_kv=None, dim=8, dim_v=None, batch=2, **options):
    heads_kv = heads_kv or heads
    return (
        randn(batch, *shape, heads, dim, **options),
        randn(batch, *shape, heads_kv, dim, **options),
        randn(batch, *shape, heads_kv, dim_v or dim, **options),
    )


def assert_gradients_agree(results, expected, inputs):
    """Gradients of a random combination of all results, so that log-sum-exps count, too."""
    weights = [randn(*r.shape) for r in expected]
    got, wanted = (
        torch.autograd.grad(sum((r * w).sum() for r, w in zip(rs, weights)), inputs)
        for rs in (results, expected)
    )
    for g, w in zip(got, wanted):
        torch.testing.assert_close(g, w)
