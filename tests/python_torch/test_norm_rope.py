"""RMS norm and rotary positions on CPU tensors: values, gradients, the compiler, and what is refused."""

import nhood
import nhood.torch as nt
import plain_norm_rope as plain
import pytest
import torch

ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
GRIDS = {1: (7,), 2: (3, 5), 3: (2, 3, 4)}


def make(rank, dtype, norm="head", heads=3, dim=32, joined=False):
    """x, tables with room for an offset of 1, and a weight."""
    shape = (2, *GRIDS[rank], heads, dim)
    x = torch.randn(*shape[:-2], 3, heads, dim).to(dtype)[..., 1, :, :] if joined else torch.randn(shape).to(dtype)
    dims = {1: (24,), 2: (12, 12), 3: (8, 12, 12)}[rank]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tables = nt.rotary_tables([length + 1 for length in GRIDS[rank]], dims, dtype=wide)
    weight = {"head": torch.rand(dim), "token": torch.rand(heads * dim), None: None}[norm]
    return x.requires_grad_(), tables, None if weight is None else weight.to(dtype).requires_grad_()


def near(got, expected):
    assert got.dtype in ROUNDING
    error = (got.double() - expected.double()).abs().max() / expected.double().abs().max()
    assert error < ROUNDING[got.dtype], error


@pytest.mark.parametrize("joined", [False, True], ids=["packed", "joined"])
@pytest.mark.parametrize("pairs", ["interleaved", "halves"])
@pytest.mark.parametrize("norm", ["head", "token", None])
@pytest.mark.parametrize("rank", GRIDS)
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_values_and_gradients(dtype, rank, norm, pairs, joined):
    x, tables, weight = make(rank, dtype, norm, joined=joined)
    named = dict(norm=norm, pairs=pairs, scale=0.3, offset=1, eps=1e-3)
    inputs = [t for t in (x, weight) if t is not None]
    out, expected = nt.norm_rope(x, tables, weight, **named), plain.norm_rope(x, tables, weight, **named)
    assert out.is_contiguous() and out.dtype == dtype
    near(out, expected)
    d_out = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, d_out)
    for got, exact in zip(found, torch.autograd.grad(expected, inputs, d_out.double())):
        near(got, exact)


@pytest.mark.parametrize("norm", ["head", "token", None])
def test_gradcheck(norm):
    x, tables, weight = make(2, torch.float64, norm, heads=2, dim=24)
    inputs = (x,) if weight is None else (x, weight)
    assert torch.autograd.gradcheck(lambda x, w=None: nt.norm_rope(x, tables, w, norm=norm, scale=0.5), inputs)


def test_a_part_of_the_gradients():
    x, tables, weight = make(3, torch.float32)
    both = torch.autograd.grad(nt.norm_rope(x, tables, weight).square().sum(), (x, weight))
    of_x = torch.autograd.grad(nt.norm_rope(x, tables, weight.detach()).square().sum(), x)
    of_weight = torch.autograd.grad(nt.norm_rope(x.detach(), tables, weight).square().sum(), weight)
    assert torch.equal(both[0], of_x[0]) and torch.equal(both[1], of_weight[0])


def test_tables():
    """Complex ones, those of other dtypes and of other strides, and axes that rotate nothing."""
    x, tables, weight = make(3, torch.float32)
    expected = nt.norm_rope(x, tables, weight)
    assert torch.equal(nt.norm_rope(x, [torch.view_as_complex(t) for t in tables], weight), expected)
    near(nt.norm_rope(x, [t.double() for t in tables], weight), expected)
    assert torch.equal(nt.norm_rope(x, [t.mT.contiguous().mT for t in tables], weight), expected)
    for some in ([tables[0], None, None], [None, tables[1], tables[2]], [None] * 3):
        near(nt.norm_rope(x, some, weight), plain.norm_rope(x, some, weight))
    assert torch.equal(nt.norm_rope(x, None, weight), nt.norm_rope(x, [None] * 3, weight))


def test_as_arrays():
    """nhood.norm_rope takes CPU tensors, too, and makes the same tables."""
    x, tables, weight = (t.detach() if isinstance(t, torch.Tensor) else t for t in make(2, torch.bfloat16))
    out = nhood.norm_rope(x, tables, weight)
    assert isinstance(out, torch.Tensor) and torch.equal(out, nt.norm_rope(x, tables, weight))
    for got, expected in zip(nhood.rotary_tables((4, 6), (12, 12)), tables):
        torch.testing.assert_close(torch.from_numpy(got), expected)


def test_rotary_tables():
    first, nothing, third = nt.rotary_tables((4, 5, 6), (8, 0, 4), base=100.0)
    assert first.shape == (4, 4, 2) and nothing is None and third.shape == (6, 2, 2)
    angle = torch.tensor(3.0) * torch.tensor(100.0 ** (-2 / 8))
    torch.testing.assert_close(first[3, 1], torch.stack([angle.cos(), angle.sin()]))
    assert nt.rotary_tables((3,), (4,), dtype=torch.float64)[0].dtype == torch.float64


def test_weights():
    """In float32 beside 16 bits, in other dtypes, and in the shape of a token."""
    x, tables, weight = make(2, torch.bfloat16, "token")
    expected = plain.norm_rope(x, tables, weight, norm="token")
    for given in (weight.float(), weight.double(), weight.float().view(3, 32), weight.half()):
        near(nt.norm_rope(x, tables, given, norm="token"), expected)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        given = weight.detach().to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(nt.norm_rope(x, tables, given, norm="token").sum(), given)
        assert gradient.dtype == dtype and gradient.shape == given.shape


def test_strides():
    """Broadcast, transposed, and not contiguous on the last axis."""
    x, tables, weight = make(2, torch.float32)
    for given in (
        x[:1].expand(3, -1, -1, -1, -1),
        x.transpose(1, 2).contiguous().transpose(1, 2),
        x.transpose(3, 4).contiguous().transpose(3, 4),
        torch.randn(1, 1, 1, 1, 32).expand(2, 3, 5, 3, 32),
        torch.randn(2 * 15 * 96 + 1)[1:].view(2, 3, 5, 3, 32),
    ):
        near(nt.norm_rope(given, tables, weight), plain.norm_rope(given, tables, weight))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend):
    """Tables are made in the graph, extents may be symbols."""

    def layer(x, weight):
        tables = nt.rotary_tables(x.shape[1:-2], (12, 12))
        return nt.norm_rope(x.sin(), tables, weight, scale=0.5).cos()

    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=backend == "aot_eager")
    for length in (5, 6) if backend == "aot_eager" else (5,):
        x = torch.randn(2, 3, length, 2, 32, requires_grad=True)
        weight = torch.rand(32, requires_grad=True)
        out, expected = compiled(x, weight), layer(x, weight)
        torch.testing.assert_close(out, expected)
        found, exact = (torch.autograd.grad(y.sum(), (x, weight)) for y in (out, expected))
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_compiled_with_a_table_twice():
    x, (table,), weight = make(1, torch.float32)
    x = x.detach().unsqueeze(2).expand(-1, -1, 7, -1, -1).requires_grad_()
    table = table[:, :6]
    compiled = torch.compile(lambda x: nt.norm_rope(x, [table, table], weight), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), nt.norm_rope(x, [table, table], weight))


def test_operator():
    """torch.library's own checks of schema and fakes."""
    x, tables, weight = make(3, torch.float32)
    arguments = (x.detach(), weight.detach(), *tables)
    parameters = ("head", "halves", 1e-6, 1.0, (0, 0, 0))
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.nhood.norm_rope, (*arguments, *parameters), test_utils=tests)
    d_out = torch.randn_like(x.detach())
    torch.library.opcheck(
        torch.ops.nhood.norm_rope_backward, (*arguments, d_out, *parameters, (True, True)), test_utils=tests
    )


def differentiated(norm, pairs="interleaved", rank=2):
    """A function of x, weight and one table, and where to take its derivatives."""
    x, tables, weight = make(rank, torch.float64, norm, heads=2, dim=32)
    x = x.detach()[:, :2].contiguous().requires_grad_()
    tables = [table.detach() for table in tables]
    learnt = tables[0].clone().requires_grad_()

    def call(x, learnt, weight=None):
        return nt.norm_rope(x, [learnt, *tables[1:]], weight, norm=norm, scale=0.5, pairs=pairs, offset=1)

    return call, (x, learnt) if weight is None else (x, learnt, weight)


@pytest.mark.parametrize("pairs", ["interleaved", "halves"])
@pytest.mark.parametrize("norm", ["head", "token", None])
def test_all_derivatives(norm, pairs):
    """First and second ones, in both modes, by the table as well."""
    call, inputs = differentiated(norm, pairs)
    assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, check_fwd_over_rev=True, fast_mode=True)
    for alone in range(len(inputs)):
        some = [x if i == alone else x.detach() for i, x in enumerate(inputs)]
        assert torch.autograd.gradcheck(call, some, check_forward_ad=True, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, some, check_fwd_over_rev=True, fast_mode=True)


def test_third_derivative():
    call, (x, learnt, weight) = differentiated("head")

    def second(x, weight):
        first = torch.autograd.grad(call(x, learnt, weight).sin().sum(), (x, weight), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, weight), create_graph=True)

    assert torch.autograd.gradcheck(second, (x, weight), fast_mode=True)


@pytest.mark.parametrize("norm", ["head", "token", None])
def test_transforms(norm):
    """torch.func beside plain autograd and loops."""
    call, inputs = differentiated(norm)
    values = tuple(x.detach() for x in inputs)
    numbers = tuple(range(len(values)))

    def loss(*values):
        return call(*values).sin().sum()

    expected = torch.autograd.grad(loss(*inputs), inputs)
    for got, right in zip(torch.func.grad(loss, numbers)(*values), expected):
        near(got, right)
    tangents = tuple(torch.randn_like(x) for x in values)
    along = torch.func.jvp(loss, values, tangents)[1]
    near(along, sum((g * t).sum() for g, t in zip(expected, tangents)))
    jacobian = torch.func.jacrev(lambda x: call(x, *values[1:])[..., 0])(values[0])
    near(torch.func.jacfwd(lambda x: call(x, *values[1:])[..., 0])(values[0]), jacobian)
    pushed, _ = torch.func.vjp(lambda *v: torch.func.grad(loss, numbers)(*v), *values)
    for got, right in zip(pushed, expected):
        near(got, right)
    for mapped in ((0,), numbers):
        in_dims = tuple(0 if i in mapped else None for i in numbers)
        many = tuple(torch.stack([x, x.cos(), -x]) if i in mapped else x for i, x in enumerate(values))
        rows = [[x[i] if dim == 0 else x for x, dim in zip(many, in_dims)] for i in range(3)]
        near(torch.vmap(call, in_dims)(*many), torch.stack([call(*row) for row in rows]))
        gradients = torch.func.grad(loss, numbers)
        for got, right in zip(torch.vmap(gradients, in_dims)(*many), zip(*[gradients(*row) for row in rows])):
            near(got, torch.stack(right))


def test_forward_mode_of_a_module_that_is_frozen():
    x, tables, weight = make(2, torch.float32)
    x, weight, tangent = x.detach(), weight.detach(), torch.randn_like(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        got = torch.autograd.forward_ad.unpack_dual(nt.norm_rope(dual, tables, weight)).tangent
    near(got, torch.func.jvp(lambda x: plain.norm_rope(x, tables, weight), (x,), (tangent,))[1].float())
    compiled = torch.compile(
        lambda x, t: torch.func.jvp(lambda x: nt.norm_rope(x, tables, weight), (x,), (t,))[1],
        backend="aot_eager",
        fullgraph=True,
    )
    near(compiled(x, tangent), got)


def test_empty_batch():
    x, tables, weight = make(2, torch.float32)
    empty = x.detach()[:0].requires_grad_()
    out = nt.norm_rope(empty, tables, weight)
    assert out.shape == empty.shape
    d_x, d_weight = torch.autograd.grad(out.sum(), (empty, weight))
    assert d_x.shape == empty.shape and torch.equal(d_weight, torch.zeros_like(weight))
    with pytest.raises(ValueError, match="^eps = -1 is not in"):
        nt.norm_rope(empty, tables, weight, eps=-1.0)


X = torch.randn(1, 3, 4, 2, 32)
TABLES = nt.rotary_tables((3, 4), (16, 16))


@pytest.mark.parametrize(
    "arguments, named, error, text",
    [
        (([1.0], TABLES), {}, TypeError, "x is a list, not a torch.Tensor"),
        ((X, 3), {}, TypeError, "tables is a int, not a sequence"),
        ((X, TABLES, [1.0]), {}, TypeError, "weight is a list, not a torch.Tensor"),
        ((X, [TABLES[0], 3]), {}, TypeError, r"tables\[1\] is a int, not a torch.Tensor"),
        ((X[0, 0, 0], None), {}, ValueError, r"x.shape = \(2, 32\) has 2 axes"),
        ((X, TABLES[:1]), {}, ValueError, "tables has 1 entry, one for each of the 2 axes"),
        ((X, [TABLES[0][..., 0], None]), {}, ValueError, r"tables\[0\].shape = \(3, 8\) is not"),
        ((X, [None, TABLES[1][:3]]), {}, ValueError, r"tables\[1\] has 3 positions, offset 0 and 4 tokens"),
        ((X, TABLES), {"offset": (0, 1)}, ValueError, r"tables\[1\] has 4 positions, offset 1 and 4 tokens"),
        ((X, TABLES), {"offset": -1}, ValueError, r"offset\[0\] = -1 is less than 0"),
        ((X, TABLES), {"offset": (1, 2, 3)}, ValueError, "offset = .* has 3 entries, not 2"),
        ((X, nt.rotary_tables((3, 4), (16, 18))), {}, ValueError, r"tables rotate 16 \+ 18 channels, a head of x has 32"),
        ((X, TABLES, torch.ones(31)), {}, ValueError, r"weight.shape = \(31,\) does not have the 32 channels"),
        ((X, TABLES, torch.ones(32)), {"norm": "token"}, ValueError, "does not have the 64 channels"),
        ((X, TABLES, torch.ones(32)), {"norm": None}, ValueError, "weight is given, but norm = None"),
        ((X, TABLES), {"norm": "layer"}, ValueError, "norm = 'layer' is not 'head', 'token' or None"),
        ((X, TABLES), {"pairs": "quarters"}, ValueError, "pairs = 'quarters' is not"),
        ((X, TABLES), {"eps": -1.0}, ValueError, "^eps = -1 is not in"),
        ((X, TABLES), {"eps": "small"}, TypeError, "eps = 'small' is not a number"),
        ((X, TABLES), {"scale": float("inf")}, ValueError, "^scale = inf is not finite"),
        ((X.int(), TABLES), {}, ValueError, "x has dtype torch.int32"),
        ((torch.randn(1, 3, 2, 33), None), {}, ValueError, "^x.shape = .*: the head dim, 33, is not even"),
        ((torch.randn(1, 3, 2, 1026), None), {}, ValueError, "^x.shape = .*: the head dim, 1026, is not in"),
        ((torch.randn(1, 1, 17, 1024), None), {"norm": "token"}, ValueError, "^x.shape = .*: the number of heads, 17, times dim 1024 exceeds 16384"),
        ((torch.randn(1, 0, 2, 32), None), {}, ValueError, r"^x.shape = .*: the length of axis 0, 0, is not in"),
    ],
)
def test_bad_input(arguments, named, error, text):
    with pytest.raises(error, match=text):
        nt.norm_rope(*arguments, **named)


def test_bad_tables():
    with pytest.raises(ValueError, match=r"dims\[1\] = 3 is not an even number"):
        nt.rotary_tables((3, 4), (2, 3))
    with pytest.raises(ValueError, match="lengths has 1 entry, dims 2"):
        nt.rotary_tables((3,), (2, 2))
    with pytest.raises(ValueError, match=r"lengths\[0\] = 0 is less than 1"):
        nt.rotary_tables((0,), (2,))
    with pytest.raises(TypeError, match=r"lengths\[0\] = 3.5 is not an integer"):
        nt.rotary_tables((3.5,), (2,))
    with pytest.raises(ValueError, match=r"base = -1.0 is not in \(0, infinity\)"):
        nt.rotary_tables((3,), (2,), -1.0)
    with pytest.raises(ValueError, match="dtype = torch.int32 is not a floating-point type"):
        nt.rotary_tables((3,), (2,), dtype=torch.int32)
