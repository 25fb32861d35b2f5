"""One axis that is cut into shards: counts of keys against the keys themselves, and balanced shards of long axes."""

from __future__ import annotations

import pytest
from nhood.torch.distributed._axes import Window, balanced


@pytest.mark.parametrize("length", [1, 7, 16, 29])
def test_keys_of_the_first_queries(length: int) -> None:
    for dilation in range(1, length + 1):
        for kernel_size in range(1, length // dilation + 1):
            for stride in range(1, kernel_size + 1):
                window = Window(length, kernel_size, stride, dilation, is_causal=True)
                found = 0
                for token in range(length):
                    assert window.pairs(token) == found, (window, token)
                    first, last = window.keys(token)
                    found += (last - first) // dilation + 1
                assert window.pairs(length) == found, window


@pytest.mark.parametrize("window", [(1, 1), (4096, 1), (4096, 64), (1 << 20, 1 << 10)])
@pytest.mark.parametrize("dilation", [1, 7])
def test_balanced_shards_of_long_axes(window: tuple[int, int], dilation: int) -> None:
    """No table of all tokens fits 2^40 of them. Before each border there are fewer pairs too many than a query has keys."""
    kernel_size, stride = window
    axis = Window((1 << 40) + 5, kernel_size, stride, dilation, is_causal=True)
    sizes = balanced(axis, 8)
    assert sum(sizes) == axis.length and len(sizes) == 8
    ends = [sum(sizes[:count]) for count in range(9)]
    pairs = [axis.pairs(end) - axis.pairs(begin) for begin, end in zip(ends, ends[1:])]
    assert max(pairs) - min(pairs) <= 2 * kernel_size
