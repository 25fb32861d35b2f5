"""Neighborhood attention in plain jax.numpy, by gathering the keys of each window: what derivatives are compared with. JAX
differentiates it by itself."""

import jax.numpy as jnp


def attention(case, query, key, value, bias=None, additional_keys=None, additional_values=None):
    """out and lse, as dense.forward."""
    keys, bias_index = case.slots()
    batch, heads = case.batch, case.heads
    groups = heads // case.kv_heads
    query = query.reshape(batch, -1, heads, case.dim)
    key, value = (jnp.repeat(x.reshape(batch, -1, *x.shape[-2:]), groups, axis=2) for x in (key, value))
    scale = case.dim**-0.5 if case.scale is None else case.scale
    there = jnp.asarray(keys >= 0)[:, None, :]
    logits = scale * jnp.einsum("bihd,biwhd->bihw", query, key[:, keys])
    if bias is not None:
        logits += jnp.moveaxis(bias.reshape(heads, -1)[:, bias_index], 0, 1)
    values = value[:, keys]
    if additional_keys is not None:
        more_keys, more_values = (jnp.repeat(x, groups, axis=2) for x in (additional_keys, additional_values))
        more = scale * jnp.einsum("bihd,bmhd->bihm", query, more_keys)
        logits = jnp.concatenate([logits, more], -1)
        there = jnp.concatenate([there, jnp.ones((len(keys), 1, more.shape[-1]), bool)], -1)
        spread = jnp.broadcast_to(more_values[:, None], (batch, len(keys), *more_values.shape[1:]))
        values = jnp.concatenate([values, spread], 2)
    weights = jnp.where(there, jnp.exp(logits), 0)
    total = weights.sum(-1)
    empty = total == 0
    out = jnp.einsum("bihw,biwhv->bihv", weights, values) / jnp.where(empty, 1, total)[..., None]
    lse = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1, total)))
    return out.reshape(batch, *case.shape, heads, case.dim_v), lse.reshape(batch, *case.shape, heads)
