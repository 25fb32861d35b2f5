"""Neighborhood attention by its definition: a mask over all tokens, and torch's dense attention in f64."""

import math

import dense
import torch


def visible(shape: tuple, window: tuple) -> torch.Tensor:
    """[queries, keys]: the axes' windows, each a token at a time, and all of them at once."""
    mask = torch.ones(1, 1, dtype=torch.bool)
    for length, k in zip(shape, window):
        axis = torch.zeros(length, length, dtype=torch.bool)
        for token in range(length):
            axis[token, list(dense.axis_window(length, k, 1, 1, False, token))] = True
        mask = (mask[:, None, :, None] & axis[None, :, None, :]).reshape(len(mask) * length, -1)
    assert mask.sum() == math.prod(shape) * math.prod(window)
    return mask


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: tuple, scale: float) -> torch.Tensor:
    flat = [t.flatten(1, 3).transpose(1, 2).double() for t in (query, key, value)]
    mask = visible(tuple(query.shape[1:4]), window).to(query.device)
    out = torch.nn.functional.scaled_dot_product_attention(*flat, attn_mask=mask, scale=scale)
    return out.transpose(1, 2).reshape(query.shape).to(query.dtype)
