"""RMS norm and rotary positions in torch's own operations, in float64."""

import torch


def norm_rope(x, tables, weight=None, *, norm="head", eps=1e-6, scale=1.0, pairs="interleaved", offset=0):
    rank = x.dim() - 3
    offset = (offset,) * rank if isinstance(offset, int) else offset
    z = x.double()
    if norm:
        dims = (-1,) if norm == "head" else (-2, -1)
        z = z * torch.rsqrt(z.square().mean(dims, keepdim=True) + eps)
    if weight is not None:
        z = z * (weight.double() if norm == "head" else weight.double().reshape(x.shape[-2:]))
    z = z * scale
    angles = []
    for axis, table in enumerate(tables):
        if table is None:
            continue
        table = torch.view_as_real(table) if table.is_complex() else table
        part = table[offset[axis] : offset[axis] + x.shape[1 + axis]].double()
        shape = [part.shape[0] if a == axis else 1 for a in range(rank)]
        angles.append(part.reshape(*shape, 1, *part.shape[1:]).expand(*x.shape[1:-2], 1, *part.shape[1:]))
    if not angles:
        return z
    cosine, sine = torch.cat(angles, dim=-2).unbind(-1)
    rotated, rest = z.split([2 * cosine.shape[-1], x.shape[-1] - 2 * cosine.shape[-1]], dim=-1)
    halves = pairs == "halves"
    a, b = rotated.chunk(2, dim=-1) if halves else rotated.unflatten(-1, (-1, 2)).unbind(-1)
    turned = a * cosine - b * sine, a * sine + b * cosine
    rotated = torch.cat(turned, dim=-1) if halves else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat([rotated, rest], dim=-1)
