"""torch.func: vmap against a loop, grad and jvp against autograd, and what is made of them."""

import nhood.torch as nt
import pytest
import torch
from test_gradients import CALLS, function, inputs
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

MAPPED = 3
AXES = ((3, 4), (2, 1), (1, 2), (False, False))


def same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def looped(call, in_dims, tensors):
    """What vmap stands for."""
    rows = [
        call(*(t if dim is None else t.select(dim, i) for dim, t in zip(in_dims, tensors))) for i in range(MAPPED)
    ]
    return tuple(torch.stack(parts) for parts in zip(*rows))


def mapped(tensors, which, dim=0):
    """Some of the tensors with an axis more, and where it is."""
    torch.manual_seed(1)
    in_dims = tuple(dim if name in which else None for name in tensors)
    values = [
        t.detach() if at is None else torch.randn(*t.shape[:at], MAPPED, *t.shape[at:], dtype=t.dtype)
        for at, t in zip(in_dims, tensors.values())
    ]
    return in_dims, values


def problem(name):
    shape, axes, *rest = CALLS[name]
    return axes, inputs(shape, axes, **(rest[0] if rest else {}))


@pytest.mark.parametrize("which", ["all", "query", "key value", "query bias additional_keys"])
@pytest.mark.parametrize("name", CALLS)
def test_vmap(name, which):
    axes, tensors = problem(name)
    which = [n for n in tensors if which == "all" or n in which.split()]
    call = function(axes, tensors, return_lse=True)
    for dim in (0, 1):
        in_dims, values = mapped(tensors, which, dim)
        for got, expected in zip(vmap(call, in_dims)(*values), looped(call, in_dims, values)):
            same(got, expected)


def test_vmap_twice():
    axes, tensors = problem("bias")
    query, key, value, bias = (t.detach() for t in tensors.values())
    queries, biases = torch.stack([query, -query]), torch.stack([bias, bias.sin(), bias.cos()])

    def call(query, bias):
        return nt.na2d(query, key, value, **axes, bias=bias)

    got = vmap(lambda q: vmap(lambda b: call(q, b))(biases))(queries)
    same(got, torch.stack([torch.stack([call(q, b) for b in biases]) for q in queries]))


@pytest.mark.parametrize("name", CALLS)
def test_gradients_per_sample(name):
    """Also by tensors that all samples share."""
    axes, tensors = problem(name)
    call = function(axes, tensors, return_lse=True)

    def loss(*values):
        out, lse = call(*values)
        return out.square().sum() + lse.sin().sum()

    gradients = grad(loss, tuple(range(len(tensors))))
    in_dims, values = mapped(tensors, ["query", "additional_values"])
    for got, expected in zip(vmap(gradients, in_dims)(*values), looped(gradients, in_dims, values)):
        same(got, expected)
    leaves = [t.detach().requires_grad_() for t in tensors.values()]
    for got, expected in zip(gradients(*leaves), torch.autograd.grad(loss(*leaves), leaves)):
        same(got, expected)


@pytest.mark.parametrize("name", ["causal", "bias", "additional"])
def test_products_with_jacobian_and_hessian(name):
    axes, tensors = problem(name)
    call = function(axes, tensors, return_lse=True)
    primals = tuple(t.detach() for t in tensors.values())
    tangents = tuple(torch.randn_like(t) for t in primals)

    def loss(*values):
        out, lse = call(*values)
        return out.square().sum() + lse.sin().sum()

    gradients = grad(loss, tuple(range(len(primals))))
    along = sum((g * t).sum() for g, t in zip(gradients(*primals), tangents))
    same(jvp(loss, primals, tangents)[1], along)
    forward_over_reverse = jvp(gradients, primals, tangents)[1]
    reverse_over_reverse = vjp(gradients, *primals)[1](tangents)
    expected = torch.autograd.functional.hvp(loss, primals, tangents)[1]
    for one, other, known in zip(forward_over_reverse, reverse_over_reverse, expected):
        same(one, known)
        same(other, known)


@pytest.mark.parametrize("transform", [hessian, lambda f: jacrev(jacrev(f)), lambda f: jacrev(jacfwd(f))])
def test_hessian(transform):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 3, 1, 2, dtype=torch.float64)

    def loss(x):
        return nt.na2d(x, x.sin(), x, (2, 3)).square().sum()

    same(transform(loss)(x), torch.autograd.functional.hessian(loss, x))


def test_unfused():
    torch.manual_seed(0)
    x, bias = torch.randn(MAPPED, 2, 4, 5, 2, 3, dtype=torch.float64), torch.randn(2, 5, 5, dtype=torch.float64)

    def loss(x, bias):
        return nt.na2d_av(nt.na2d_qk(x, x.sin(), 3, bias=bias).softmax(-1), x, 3).square().sum()

    gradients = grad(loss, (0, 1))
    for got, expected in zip(vmap(gradients, (0, None))(x, bias), looped(gradients, (0, None), (x, bias))):
        same(got, expected)
    same(hessian(loss)(x[0, :1, :3, :3, :1], bias[:1]), hessian_by_autograd(loss, x[0, :1, :3, :3, :1], bias[:1]))


def hessian_by_autograd(loss, x, bias):
    return torch.autograd.functional.hessian(lambda x: loss(x, bias), x)


def test_ensembles_of_layers():
    """Parameters are mapped, the input is not."""
    torch.manual_seed(0)
    layers = [nt.NeighborhoodAttention2D(16, 2, 3, rel_pos_bias=True, dtype=torch.float64) for _ in range(MAPPED)]
    parameters, buffers = torch.func.stack_module_state(layers)
    x = torch.randn(2, 4, 5, 16, dtype=torch.float64)
    got = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,)))(parameters, buffers)
    same(got, torch.stack([layer(x) for layer in layers]))


def test_operators():
    torch.manual_seed(0)
    query, out, d_out = torch.randn(3, MAPPED, 2, 7, 9, 4, 8, dtype=torch.float64)
    key, value = torch.randn(2, 2, 7, 9, 2, 8, dtype=torch.float64)
    lse, bias = torch.randn(MAPPED, 2, 7, 9, 4).double(), torch.randn(4, 5, 7).double()
    attn = torch.randn(MAPPED, 2, 7, 9, 4, 12).double()
    na, ops = (None, None), torch.ops.nhood
    calls = [
        (lambda q, b: ops.na(q, key, value, b, *na, *AXES, None, False, True), (query, bias)),
        (lambda q, b: ops.na(q, key, value, b, *na, *AXES, None, False, False), (query, None)),
        (
            lambda q, o, l, d: ops.na_backward(
                q, key, value, bias, *na, o, l, d, None, *AXES, None, False, [True, False, True, True, False, False]
            ),
            (query, out, lse, d_out),
        ),
        (lambda q, b: [ops.na_qk(q, key, b, *AXES, None, False, False)], (query, bias)),
        (lambda a: [ops.na_av(a, value, *AXES, False)], (attn,)),
        (lambda a, d: [ops.na_in(a, d, *AXES, 2, False)], (attn, d_out)),
    ]
    for call, tensors in calls:
        in_dims = tuple(0 if t is not None and t is not bias else None for t in tensors)
        for got, expected in zip(vmap(call, in_dims)(*tensors), looped(call, in_dims, tensors), strict=True):
            same(got, expected)


@pytest.mark.parametrize("transform", [vmap, lambda call: grad(lambda x: call(x[0]).sum())], ids=["vmap", "grad"])
def test_compiled(transform):
    torch.compiler.reset()
    torch.manual_seed(0)
    x = torch.randn(MAPPED, 2, 4, 5, 2, 3, dtype=torch.float64)
    call = transform(lambda q: nt.na2d(q, q.sin(), q.cos(), 3))
    same(torch.compile(call, fullgraph=True, backend="aot_eager")(x), call(x))


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_forward_mode(fullgraph, backend):
    torch.compiler.reset()
    torch.manual_seed(0)
    x, tangent = torch.randn(2, 2, 4, 5, 2, 3, dtype=torch.float64)

    def step(x, tangent):
        return jvp(lambda q: nt.na2d(q, q.sin(), q.cos(), 3), (x,), (tangent,))[1]

    same(torch.compile(step, fullgraph=fullgraph, backend=backend)(x, tangent), step(x, tangent))


def batched_calls():
    """Functions of one small tensor that make calls of all kinds."""
    torch.manual_seed(0)
    bias = torch.randn(2, 3, 3, dtype=torch.float64)
    extra = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    layer = nt.NeighborhoodAttention2D(4, 2, 2, rel_pos_bias=True, dtype=torch.float64)
    table = torch.randn(2, 1, 2, dtype=torch.float64)

    def of_bias(x):
        y = x.cos()
        table = bias * x.mean()
        return nt.na2d(x, y, y.exp(), 2, bias=table)

    def with_additional(x):
        out, lse = nt.na2d(x, x.cos(), x, 2, additional_keys=extra, additional_values=x[:, 0], return_lse=True)
        return out * lse.unsqueeze(-1)

    def dense(x):
        x = x.flatten(1, 2)
        return nt.attention(x, x.cos(), x, is_causal=True)

    def unfused(x):
        return nt.na2d_av(nt.na2d_qk(x, x.cos(), 2).softmax(-1), x, 2)

    return {
        "bias": of_bias,
        "additional": with_additional,
        "layer": lambda x: layer(x.flatten(-2)),
        "dense": dense,
        "unfused": unfused,
        "norm_rope": lambda x: nt.norm_rope(x, [table * x.sum(), None], x[0, 0, 0, 0] + 1),
    }


@pytest.mark.parametrize("name", batched_calls())
def test_gradients_in_batches(name):
    """torch.autograd's own vmap, which is not that of torch.func."""
    call = batched_calls()[name]
    x = torch.randn(1, 2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    out = call(x)
    many = torch.randn(3, *out.shape, dtype=torch.float64)
    got = torch.autograd.grad(out, x, many, is_grads_batched=True, retain_graph=True)[0]
    same(got, torch.stack([torch.autograd.grad(out, x, one, retain_graph=True)[0] for one in many]))
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    same(jacobian(call, x, vectorize=True), jacobian(call, x))
    same(jacobian(call, x, vectorize=True, strategy="forward-mode"), jacobian(call, x))

    def loss(x):
        return call(x).sin().sum()

    expected = hessian(loss, x)
    same(hessian(loss, x, vectorize=True), expected)
    same(hessian(loss, x, vectorize=True, outer_jacobian_strategy="forward-mode"), expected)
