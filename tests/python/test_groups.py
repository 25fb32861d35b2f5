"""Samples of different sizes and windows by sets of heads, on arrays: each member as a call of its own computes it."""

import nhood
import numpy as np
import pytest
from nhood import _groups, _layouts, _library, _quick, _varlen
from nhood._operations import BACKWARD, FORWARD

LAYOUTS = [(14, 9), (0, 7), (6, 30), (7, 9), (14, 9)]
DILATIONS = [1, 1, (1, 3), 1, (2, 1)]
TOKENS = sum(x * y for x, y in LAYOUTS)
NAMED = dict(kernel_size=(5, 7), layouts=LAYOUTS, dilations=DILATIONS)


def drawn(*shapes):
    rng = np.random.default_rng(5)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def packed():
    return drawn((1, TOKENS, 4, 16), (1, TOKENS, 2, 16), (1, TOKENS, 2, 12), (1, TOKENS, 4, 12))


def test_samples():
    query, key, value, d_out = packed()
    out, lse = nhood.neighborhood_attention_varlen(query, key, value, **NAMED, return_lse=True)
    gradients = nhood.neighborhood_attention_varlen_backward(d_out, query, key, value, out, lse, **NAMED, d_lse=lse)
    at = 0
    for (x, y), dilation in zip(LAYOUTS, DILATIONS):
        if not x * y:
            continue

        def own(array, at=at, x=x, y=y):
            return array[:, at : at + x * y].reshape(1, x, y, *array.shape[2:])

        given = [own(array) for array in (query, key, value)]
        expected = nhood.na2d(*given, (5, 7), dilation=dilation, return_lse=True)
        assert np.array_equal(own(out), expected[0]) and np.array_equal(own(lse), expected[1])
        wanted = nhood.na2d_backward(own(d_out), *given, *expected, (5, 7), dilation=dilation, d_lse=own(lse))
        assert all(np.array_equal(own(got), want) for got, want in zip(gradients, wanted))
        at += x * y
    assert at == TOKENS


def test_equal_samples_that_follow_each_other_are_a_batch():
    layouts = [(7, 9)] * 3 + [(0, 4)] * 2 + [(5, 5), (7, 9), (7, 9)]
    query, key, value = drawn(*[(1, 5 * 63 + 25, 2, 8)] * 3)
    out = nhood.neighborhood_attention_varlen(query, key, value, 5, layouts=layouts, dilations=[1] * 7 + [(1, 1)])
    at = 0
    for x, y in layouts:
        own = [array[:, at : at + x * y].reshape(1, x, y, 2, 8) for array in (query, key, value)]
        if x:
            assert np.array_equal(out[:, at : at + x * y].reshape(own[0].shape), nhood.na2d(*own, 5))
        at += x * y
    counts = nhood._groups.layouts_table(2, ((3, 3), (3, 3), (3, 4)), ((3, 3),), ((1, 1),), ((1, 1),), (False,))
    members = nhood._groups._joined(nhood._groups.read_table(counts, (30, 30), True))
    assert members.batch.tolist() == [2, 1] and members.first[0].tolist() == [0, 18]


def test_sets_of_heads():
    query, key, value = drawn((2, 12, 11, 5, 8), (2, 12, 11, 5, 8), (2, 12, 11, 5, 4))
    out = nhood.na2d(query, key, value, [[7, 7], [3, 5]], dilation=[[1, 1], [4, 2]], is_causal=[[False, True], [False, False]])
    first = nhood.na2d(*[x[..., :2, :] for x in (query, key, value)], 7, is_causal=(False, True))
    second = nhood.na2d(*[x[..., 2:, :] for x in (query, key, value)], (3, 5), dilation=(4, 2))
    assert np.array_equal(out, np.concatenate([first, second], -2))


@pytest.mark.parametrize(
    "named, text",
    [
        (dict(kernel_size=8, layouts=LAYOUTS), "member 2: kernel_size = 8 exceeds the 6 tokens of axis 0"),
        (dict(kernel_size=3, layouts=LAYOUTS[1:]), f"layouts have {TOKENS - 126} tokens, query has {TOKENS}"),
        (dict(kernel_size=3, dilation=0, layouts=LAYOUTS), "member 0: dilation = 0 is less than 1"),
        (dict(kernel_size=3, scale=float("inf"), layouts=LAYOUTS), "scale = inf is not finite"),
        (dict(kernel_size=3, scale=float("nan"), layouts=LAYOUTS), "scale = nan is not finite"),
        (dict(kernel_size=2**63, layouts=LAYOUTS), "kernel_size = 9223372036854775808 does not fit 64 bits"),
        (dict(kernel_size=3, layouts=[(2**40, 2**40)]), "tokens, query has"),
    ],
)
def test_illegal(named, text):
    with pytest.raises(ValueError) as error:
        nhood.neighborhood_attention_varlen(*packed()[:3], **named)
    assert text in str(error.value)


def test_shapes_that_do_not_go_together():
    query, key, value, _ = packed()
    for wrong, text in [
        ((query, key[:, 1:], value), f"value.shape = (1, {TOKENS}, 2, 12): the length of the keys on axis 0 is"),
        ((query[0], key, value), "query.shape"),
        ((np.concatenate([query] * 2), key, value), "query.shape = (2, "),
        ((query, key.astype(np.float64), value), "key has dtype float64, expected float32"),
        ((query, key, value[..., ::2]), "value has a stride of 2 items on its last axis"),
    ]:
        with pytest.raises(ValueError) as error:
            nhood.neighborhood_attention_varlen(*wrong, **NAMED)
        assert text in str(error.value)


@pytest.mark.parametrize("layouts", [[], [(0, 3)], [(4, 0), (0, 0)]])
def test_arrays_without_tokens(layouts):
    x = np.zeros((1, 0, 2, 4), np.float32)
    out, lse = nhood.neighborhood_attention_varlen(x, x, x, 3, layouts=layouts, return_lse=True)
    assert out.shape == x.shape and lse.shape == (1, 0, 2)
    gradients = nhood.neighborhood_attention_varlen_backward(x, x, x, x, out, lse, 3, layouts=layouts)
    assert [of.shape for of in gradients] == [x.shape] * 3
    with pytest.raises(ValueError, match="layouts have 1 tokens, query has 0"):
        nhood.neighborhood_attention_varlen(x, x, x, 1, layouts=[(1, 1)])


# ---- tables and problems by nhood_quick ----

needs_module = pytest.mark.skipif(_quick._module is None, reason="nhood_quick is not built")


def drawn_layouts(generator, rank):
    """Some without tokens, and some equal to the one before."""
    layouts = []
    for _ in range(generator.integers(1, 9)):
        again = layouts and generator.random() < 0.3
        layouts.append(layouts[-1] if again else tuple(generator.integers(0 if generator.random() < 0.2 else 5, 9, rank).tolist()))
    return layouts


@needs_module
def test_tables_are_those_of_numpy():
    generator = np.random.default_rng(3)
    for turn in range(200):
        rank = 1 + turn % 3
        layouts = drawn_layouts(generator, rank)
        given = {"layouts": layouts if turn % 2 else list(map(list, layouts)), "kernel_size": None, "kernel_sizes": None, "stride": None}
        given.update(strides=None, dilation=None, dilations=None, is_causal=bool(turn % 2))
        for one, many in (("kernel_size", "kernel_sizes"), ("stride", "strides"), ("dilation", "dilations")):
            draw = generator.random()
            if draw < 0.4:
                given[one] = int(generator.integers(1, 6))
            elif draw < 0.6:
                given[one] = generator.integers(1, 6, rank).tolist()
            elif draw < 0.8 or one == "kernel_size":
                numbers = generator.integers(1, 6, (len(layouts), rank)).tolist()
                given[many] = [row[0] if i % 2 else tuple(row) for i, row in enumerate(numbers)]
        if turn % 3:
            given["is_causal"] = tuple(map(bool, generator.integers(0, 2, rank)))
        table, words = _quick.group_table(*given.values())
        assert words == _groups.row_words(rank)
        np.testing.assert_array_equal(np.frombuffer(table, np.int64).reshape(-1, words), _varlen.table_of(**given))


UNUSUAL_TABLES = [
    dict(layouts=[]),
    dict(layouts=[4, 5]),
    dict(layouts=[(4, 5), 4]),
    dict(layouts=[()]),
    dict(layouts=[(4, 5, 6, 7)]),
    dict(layouts=[(4, 5), (4,)]),
    dict(layouts=[(4, -5)]),
    dict(layouts=[(4, 5.0)]),
    dict(layouts=[(True, 5)]),
    dict(layouts=[(np.int64(4), 5)]),
    dict(layouts=np.array([(4, 5)])),
    dict(layouts=[(2**62, 5)]),
    dict(layouts=[(2**62, 1), (2**62, 1)]),
    dict(layouts=[(2**64, 5)]),
    dict(kernel_size=None),
    dict(kernel_sizes=[3]),
    dict(kernel_size=None, kernel_sizes=[3, 3]),
    dict(kernel_size=None, kernel_sizes=3),
    dict(kernel_size=True),
    dict(kernel_size=3.0),
    dict(kernel_size=(3, 3, 3)),
    dict(kernel_size=(3, "3")),
    dict(kernel_size=nhood.Windows.cut(4, 3)),
    dict(stride=2, strides=[2]),
    dict(dilations=[(1, 1), (1, 1)]),
    dict(is_causal=1),
    dict(is_causal=(True, False, True)),
    dict(is_causal=None),
]


@needs_module
@pytest.mark.parametrize("named", UNUSUAL_TABLES, ids=str)
def test_tables_that_are_left_to_numpy(named):
    usual = dict(layouts=[(4, 5)], kernel_size=3, kernel_sizes=None, stride=None, strides=None, dilation=None, dilations=None, is_causal=False)
    assert _quick.group_table(*usual.values()) is not None
    assert _quick.group_table(*{**usual, **named}.values()) is None
    assert _quick.group_table() is None


def drawn_tensors(generator, operation, tokens):
    """Layouts in bytes of packed arrays of every input, some parts of larger ones."""
    sizes = {"H": 4, "K": 2, "D": 8, "V": 6}
    layouts = []
    for of in operation.inputs:
        if of.slot in (_library.BIAS, _library.EXTRA_K, _library.EXTRA_V) or of.optional and generator.random() < 0.5:
            layouts.append(None)
            continue
        behind = tuple(sizes[letter] for letter in of.shape[2:])
        last = of.shape[-1] in "DV"
        dtype = _library.DTYPE_BF16 if last else _library.DTYPE_F32
        wide = (*(n + int(generator.integers(0, 3)) for n in behind[:-1]), behind[-1] + (8 if last and generator.random() < 0.5 else 0))
        strides = _layouts.packed_strides((1, tokens["Y" in of.shape], *wide), _library.DTYPE_BYTES[dtype])
        layouts.append(((1, tokens["Y" in of.shape], *behind), strides, dtype))
    return layouts


@needs_module
@pytest.mark.parametrize("operation", [FORWARD, BACKWARD], ids=["forward", "backward"])
def test_problems_are_those_of_numpy(operation):
    """Bit for bit, for members with gaps between them, of boxes, without tokens and equal to the one before."""
    generator = np.random.default_rng(5)
    joined = boxes = 0
    for turn in range(300):
        rank = 1 + turn % 3
        table = _varlen.table_of(drawn_layouts(generator, rank), 3, None, 2, None, None, None, bool(turn % 2)).copy()
        axes = _groups.axes_of(table)
        if turn % 4 == 0:
            axes[generator.integers(0, len(axes)), 0, 5:7] = generator.integers(1, 9, 2)
            boxes += 1
        sides = [_groups.extents_of(axes, side).prod(axis=1) for side in (0, 1)]
        gaps = generator.integers(0, 3, len(table)) * (turn % 5 == 0)
        for side, of in enumerate(sides):
            table[:, side] = np.cumsum(of) - of + np.cumsum(gaps)
        whole = turn % 5 != 0
        tokens = [int(of.sum() + gaps.sum()) + 4 * (not whole) for of in sides]
        if min(tokens) < 1:
            continue
        if turn % 3 == 0:
            table = np.concatenate([table, np.full((1, table.shape[1]), -1)])
        layouts = drawn_tensors(generator, operation, tokens)
        wanted = [generator.random() < 0.7 for _ in operation.outputs]
        if operation is BACKWARD:
            wanted[3:] = [False] * 3
        asked = _groups.Asked(operation, 0.3, _library.FLAG_DETERMINISTIC, tuple(wanted))
        behind = [of and (of[0][2:], tuple(n // _library.DTYPE_BYTES[of[2]] for n in of[1][1:]), of[2]) for of in layouts]
        kind = _groups.packed_kind(asked, rank, behind)
        problems, offsets, count, _, *attended = _quick.group_plan(
            kind.blank, table.tobytes(), table.shape[1], kind.tensors, *tokens, whole
        )
        members = _groups._joined(_groups.read_table(table, tuple(tokens), whole))
        joined += int(members.batch.max()) > 1
        sizes = _groups._sizes(operation, layouts)
        expected = _groups._problems_of(asked, _library.DTYPE_BF16, sizes, members)
        outputs = _groups._outputs(asked, _library.DTYPE_BF16, sizes, 1)
        assert outputs == tuple([of and ((1, tokens[of[0]], *of[1]), of[2]) for of in kind.outputs])
        present = _groups._present(asked, layouts, outputs)
        places = _groups._lie_packed(expected, present, members)
        assert [of.slot for of, _ in present] == [of[0] for of in kind.tensors]
        assert count == len(expected) and bytes(problems) == expected.tobytes() and offsets == places.tobytes()
        seen = members.batch * ((members.tokens[0] > 0) & (members.tokens[1] > 0))
        assert attended == [int((of * seen).sum()) == total for of, total in zip(members.tokens, tokens)]
    assert joined > 30 and boxes > 50


@needs_module
def test_problems_that_are_left_to_numpy():
    table = _varlen.table_of([(4, 5), (6, 3)], 3, None, None, None, None, None, False)
    asked = _groups.Asked(FORWARD, None, 0, (True, False))
    behind = [((4, 8), (32, 8, 1), _library.DTYPE_F32), *[((2, 8), (16, 8, 1), _library.DTYPE_F32)] * 2, None, None, None]
    kind = _groups.packed_kind(asked, 2, behind)

    def problems(table=table, queries=38, keys=38, whole=True, **named):
        given = kind._replace(**named)
        return _quick.group_plan(given.blank, table.tobytes(), table.shape[1], given.tensors, queries, keys, whole)

    assert problems() is not None and problems(queries=40, keys=40, whole=False) is not None
    for wrong in (dict(queries=39), dict(keys=37), dict(queries=37, whole=False), dict(blank=b"short"), dict(tensors=((99, 0, 4, 1, 1),))):
        assert problems(**wrong) is None
    for row, column, value in ((1, 0, 19), (1, 1, 19), (0, 0, 19), (0, 2, -1), (0, 2, 2**62), (0, 9, 1), (0, 6, 2), (0, 7, -3)):
        moved = table.copy()
        moved[row, column] = value
        assert problems(moved, whole=False) is None, (row, column)
    for words in (9, 17, 35):
        assert problems(np.zeros((2, words), np.int64)) is None
    two = np.concatenate([table[:1], np.full((1, 18), -1), table[1:]])
    assert problems(two) is None  # a member behind what is none
    of_lse = ((4,), (4, 1), _library.DTYPE_F32)
    for place, array in (
        (0, ((4, 7), (32, 8, 1), _library.DTYPE_F32)),  # another head dim than the keys'
        (0, ((4, 8), (32, 8, 2), _library.DTYPE_F32)),  # not contiguous
        (1, ((2, 8), (0, 0, 1), _library.DTYPE_F32)),  # broadcast
        (2, ((2, 8), (16, 8, 1), _library.DTYPE_F16)),
        (2, None),
        (0, of_lse),
    ):
        assert _groups.packed_kind(asked, 2, [array if i == place else of for i, of in enumerate(behind)]) is None
