"""Samples of different sizes whose lengths are an array, within a bound: as with lengths that are static, by a program that is compiled
once."""

import jax
import jax.export
import jax.monitoring
import jax.numpy as jnp
import nhood
import nhood.jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from nhood.jax._bounded import lengths_of

TOKENS = 800
BATCHES = [
    [(14, 9), (0, 0), (5, 30), (7, 9)],
    [(6, 8), (0, 0), (0, 0), (0, 0)],
    [(16, 32), (5, 7), (9, 7), (5, 7)],
    [(0, 0)] * 4,
    [(10, 20), (8, 25), (10, 20), (8, 25)],  # all tokens
]
ASKED = dict(kernel_size=(5, 7), stride=(2, 1), is_causal=(False, True))
BOUND = (16, 32)
CASES = [
    (TOKENS, BOUND, ASKED, BATCHES),
    (TOKENS, BOUND, dict(kernel_size=2, dilation=(1, 2), scale=0.7), BATCHES),
    (90, (50,), dict(kernel_size=5, dilation=2, stride=3), [[(30,), (17,), (43,)], [(0,), (10,), (11,)]]),
    (300, (4, 8, 9), dict(kernel_size=(3, 3, 2), is_causal=(True, False, False)), [[(4, 8, 9)], [(3, 5, 7)], [(3, 4, 2)]]),
]
every_case = pytest.mark.parametrize("case", CASES, ids=["2-D", "dilated", "1-D", "3-D"])

compiled: list = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
)


def drawn(tokens=TOKENS, dtype=np.float64, seed=7, rank=2):
    random = np.random.default_rng(seed)
    shapes = (4, 8), (2, 8), (2, 6)
    return tuple(jnp.asarray(random.standard_normal((1, tokens, *shape)), dtype) for shape in shapes)


def within(*given, bound=BOUND, **asked):
    *arrays, layouts = given
    return nhood.jax.neighborhood_attention_varlen(
        *arrays, layouts=layouts, bound=bound, return_lse=True, **(asked or ASKED)
    )


def known(batch, asked=ASKED):
    """The same of lengths that are static, of all tokens."""
    layouts = [of for of in batch if 0 not in of]
    tokens = sum(int(np.prod(of)) for of in layouts)

    def attend(*arrays):
        own = [x[:, :tokens] for x in arrays]
        out, lse = nhood.jax.neighborhood_attention_varlen(*own, layouts=layouts, return_lse=True, **asked)
        rest = arrays[0].shape[1] - tokens
        return jnp.pad(out, ((0, 0), (0, rest), (0, 0), (0, 0))), jnp.pad(lse, ((0, 0), (0, rest), (0, 0)), constant_values=-jnp.inf)

    return attend


ON_CPU = jax.default_backend() == "cpu"
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def equal(got, expected):
    """To the bit on a CPU; GPUs compute static lengths by other kernels."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        tolerance = 0 if ON_CPU else TOLERANCES[str(one.dtype)]
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=tolerance, atol=tolerance)


def near(got, expected, rtol=1e-8):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-9)


def both(function, *arrays):
    """Results and gradients."""
    results, pull = jax.vjp(function, *arrays)
    return results, pull(tuple((jnp.arange(x.size) % 7 - 3).astype(x.dtype).reshape(x.shape) for x in results))


def check_results(tokens, bound, asked, batches, dtype):
    arrays = drawn(tokens, dtype)
    program = jax.jit(lambda x, lengths: both(lambda *own: within(*own, lengths, bound=bound, **asked), *x))
    for batch in batches:
        equal(program(arrays, jnp.asarray(batch, jnp.int32)), both(known(batch, asked), *arrays))
    assert program._cache_size() == 1


@every_case
def test_results_and_gradients_are_those_of_static_lengths(case):
    """To the bit, and of any number of batches by one program."""
    check_results(*case, "float32")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype):
    check_results(*CASES[0][:3], BATCHES[:1], dtype)


def test_lengths_of_64_bits():
    arrays = drawn()
    equal(jax.jit(within)(*arrays, jnp.asarray(BATCHES[0], jnp.int64)), within(*arrays, jnp.asarray(BATCHES[0], jnp.int32)))


def test_one_program_serves_all_lengths():
    arrays, lengths = drawn(dtype=np.float32), [jnp.asarray(batch, jnp.int32) for batch in BATCHES]
    traced = []

    def loss(arrays, lengths):
        traced.append(0)
        return (within(*arrays, lengths)[0] ** 2).sum()

    step = jax.jit(jax.value_and_grad(loss))
    jax.block_until_ready(step(arrays, lengths[0]))
    before = len(compiled)
    losses = {float(step(arrays, of)[0]) for of in lengths}
    assert len(losses) == len(BATCHES) and len(traced) == 1 and len(compiled) == before
    assert jax.jit(jax.grad(loss)).lower(arrays, lengths[0]).as_text().count("custom_call @nhood(") == 2
    jax.block_until_ready(step(arrays, jnp.zeros((5, 2), jnp.int32)))  # one sample more is another program
    assert len(compiled) > before


def test_without_jit_and_of_numpy():
    arrays = drawn()
    expected = known(BATCHES[0])(*arrays)
    equal(within(*arrays, jnp.asarray(BATCHES[0])), expected)
    equal(within(*map(np.asarray, arrays), np.asarray(BATCHES[0])), expected)
    out = nhood.jax.neighborhood_attention_varlen(*arrays, layouts=np.asarray(BATCHES[0]), bound=BOUND, deterministic=True, **ASKED)
    equal(out, expected[0])


def loss_of(function):
    def of(*arrays):
        out, lse = function(*arrays)
        return (out**2).sum() + jnp.sin(jnp.where(jnp.isfinite(lse), lse, 0)).sum()

    return of


def by_lengths(function):
    """A program of arrays, directions and lengths."""
    return jax.jit(lambda arrays, along, lengths: function(lambda *x: within(*x, lengths), arrays, along))


@every_case
def test_forward_mode(case):
    tokens, bound, asked, batches = case
    arrays, along = drawn(tokens), drawn(tokens, seed=8)
    program = jax.jit(lambda lengths: jax.jvp(lambda *x: within(*x, lengths, bound=bound, **asked), arrays, along))
    for batch in batches[:2]:
        near(program(jnp.asarray(batch)), jax.jit(lambda batch=batch: jax.jvp(known(batch, asked), arrays, along))())
    assert program._cache_size() == 1


def second_derivatives(function, arrays, along):
    """Reverse over reverse, and forward over reverse."""
    gradient = jax.grad(loss_of(function), (0, 1, 2))
    cubes = jax.grad(lambda *x: sum((g**3).sum() for g in gradient(*x)), (0, 1, 2))
    return cubes(*arrays), jax.jvp(gradient, arrays, along)[1]


def test_second_derivatives():
    arrays, along = drawn(), drawn(seed=8)
    program = by_lengths(second_derivatives)
    for batch in BATCHES[:2]:
        expected = jax.jit(lambda batch=batch: second_derivatives(known(batch), arrays, along))()
        near(program(arrays, along, jnp.asarray(batch)), expected)
    assert program._cache_size() == 1


def test_some_derivatives_in_half_precision():
    """The slots of the windows are summed in float32."""
    arrays, along = drawn(dtype="bfloat16"), drawn(dtype="bfloat16", seed=8)
    got = jax.jvp(lambda *x: within(*x, jnp.asarray(BATCHES[0])), arrays, along)[1]
    expected = jax.jvp(known(BATCHES[0]), arrays, along)[1]
    for one, other in zip(got, expected):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), rtol=2e-2, atol=2e-2)


def test_tokens_behind_the_samples_are_never_read():
    """They may be anything, in all derivatives, too."""
    arrays, along, lengths = drawn(), drawn(seed=8), jnp.asarray(BATCHES[0])
    tokens = sum(x * y for x, y in BATCHES[0])
    spoilt = tuple(x.at[:, tokens:].set(jnp.nan) for x in arrays)

    def every(attend, arrays, along):
        first = attend(*arrays), jax.grad(loss_of(attend), (0, 1, 2))(*arrays), jax.jvp(attend, arrays, along)
        return first, second_derivatives(attend, arrays, along)

    program = by_lengths(every)
    equal(program(spoilt, along, lengths), program(arrays, along, lengths))


@pytest.mark.parametrize("which", ["all", "query", "lengths", "arrays"])
def test_vmap(which):
    """The same samples become part of the heads, in one call; samples of their own are computed one after the other."""
    chosen = [BATCHES[0], BATCHES[2], BATCHES[4]]
    arrays = drawn()
    mapped = [which != "lengths", which in ("all", "arrays"), which in ("all", "arrays"), which in ("all", "lengths")]
    axes = (1, 0, 4, 1)
    many = [jnp.stack([x, 2 * x, x - 1], axis) if own else x for x, own, axis in zip(arrays, mapped, axes)]
    many.append(jnp.stack([jnp.asarray(batch) for batch in chosen], 1) if mapped[3] else jnp.asarray(chosen[0]))
    in_axes = tuple(axis if own else None for own, axis in zip(mapped, axes))

    def each(attend):
        def of(*given):
            results, pull = jax.vjp(lambda *x: attend(*x, given[3]), *given[:3])
            return results, pull(tuple(jnp.cos(x) for x in jax.tree.map(jnp.nan_to_num, results)))

        return of

    got = jax.jit(jax.vmap(each(within), in_axes))(*many)
    for i in range(3):
        own = [jnp.take(x, i, axis) if is_mapped else x for x, axis, is_mapped in zip(many, axes, mapped)]
        near([x[i] for x in jax.tree.leaves(got)], jax.tree.leaves(each(within)(*own)))
    text = jax.jit(jax.vmap(within, in_axes)).lower(*many).as_text()
    assert text.count("custom_call @nhood(") == 1 and ("while" in text) == mapped[3]


def test_vmap_within_vmap_and_its_derivatives():
    arrays, lengths = drawn(), jnp.asarray(BATCHES[0])
    given = [jnp.stack([jnp.stack([x, 2 * x]), jnp.stack([x + 1, x]), jnp.stack([-x, x])]) for x in arrays]
    of_lengths = jnp.stack([jnp.asarray(BATCHES[i]) for i in (0, 2, 4)])
    attend, one = jax.vmap(jax.vmap(within, (0, 0, 0, None))), jax.jit(within)
    expected = [[one(*[x[i, j] for x in given], of_lengths[i]) for j in (0, 1)] for i in (0, 1, 2)]
    got = jax.jit(attend)(*given, of_lengths)
    for i in (0, 1):
        near(got[i], jnp.stack([jnp.stack([row[i] for row in rows]) for rows in expected]))
    along = [jnp.ones_like(x) for x in arrays]
    jvp = jax.vmap(lambda q: jax.jvp(lambda x: within(x, *arrays[1:], lengths), (q,), (along[0],))[1])
    near(jax.jit(jvp)(given[0][0])[0][1], jax.jvp(lambda x: within(x, *arrays[1:], lengths), (given[0][0][1],), (along[0],))[1][0])


def test_in_loops_and_rematerialised():
    """Layers of a scan, whose activations are computed again."""
    x, lengths = drawn()[0], jnp.asarray(BATCHES[0])

    @jax.checkpoint
    def layer(x, weight):
        return x + weight * within(x, x, x, lengths)[0], None

    def run(x, weights):
        return (jax.lax.scan(layer, x, weights)[0] ** 2).sum()

    def unrolled(x, weights):
        for weight in weights:
            x = x + weight * known(BATCHES[0])(x, x, x)[0]
        return (x**2).sum()

    weights = jnp.asarray([0.3, -0.2, 0.5])
    near(*[jax.jit(jax.value_and_grad(f, (0, 1)))(x, weights) for f in (run, unrolled)])


def mesh_of(kind, count=2):
    return jax.make_mesh((count,), ("x",), axis_types=(kind,))


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_every_device_has_samples_of_its_own():
    chosen = [BATCHES[0], BATCHES[2]]
    arrays = [jnp.concatenate([x, 2 * x]) for x in drawn()]
    lengths, along = jnp.asarray(chosen), drawn(seed=8)

    def local(attend, *arrays):
        return attend(*arrays), jax.grad(loss_of(attend), (0, 1, 2))(*arrays), jax.jvp(attend, arrays, along)[1]

    spec = PartitionSpec("x")
    program = jax.shard_map(
        lambda *x: local(lambda *own: within(*own, x[3][0]), *x[:3]), mesh=mesh_of(AxisType.Auto), in_specs=spec, out_specs=spec
    )
    got = jax.jit(program)(*arrays, lengths)
    for i in (0, 1):
        expected = jax.jit(lambda *x, i=i: local(known(chosen[i]), *x))(*[x[i : i + 1] for x in arrays])
        near(jax.tree.map(lambda x, i=i: x[i : i + 1], got), expected)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_sharded_arrays_are_gathered():
    arrays, lengths = drawn(), jnp.asarray(BATCHES[0])
    mesh = mesh_of(AxisType.Auto)
    spread = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec(None, None, "x")))
    near(jax.jit(lambda *x: both(lambda *own: within(*own, lengths), *x))(*spread), both(known(BATCHES[0]), *arrays))
    mesh = mesh_of(AxisType.Explicit)
    with jax.sharding.set_mesh(mesh):
        spread = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec(None, None, "x")))
        whole = jax.device_put((*arrays, lengths), NamedSharding(mesh, PartitionSpec()))
        with pytest.raises(ValueError, match="query has the sharding .*: on an explicit mesh, samples within a bound"):
            jax.jit(within)(*spread, whole[3])
        cut = jax.device_put(lengths, NamedSharding(mesh, PartitionSpec("x")))
        with pytest.raises(ValueError, match="layouts has the sharding"):
            jax.jit(within)(*whole[:3], cut)
        near(jax.jit(within)(*whole), known(BATCHES[0])(*arrays))


def test_nothing():
    """No tokens, no samples, and samples without tokens."""
    along = (jnp.ones((1, 0, 4, 8)), jnp.ones((1, 0, 2, 8)), jnp.ones((1, 0, 2, 6)))
    for lengths in (jnp.zeros((3, 2), jnp.int32), jnp.zeros((0, 2), jnp.int32)):
        f = lambda *x, lengths=lengths: within(*x, lengths)  # noqa: E731
        (out, lse), gradients = jax.jit(lambda *x, f=f: both(f, *x))(*along)
        assert out.shape == (1, 0, 4, 6) and lse.shape == (1, 0, 4) and [x.shape for x in gradients] == [x.shape for x in along]
        assert jax.jvp(f, along, along)[1][0].shape == out.shape
        (out, lse), gradients = jax.jit(lambda *x, f=f: both(f, *x))(*drawn())
        assert (out == 0).all() and (lse == -jnp.inf).all() and all([(x == 0).all() for x in gradients])
        assert all([(x == 0).all() for x in jax.jvp(f, drawn(), drawn())[1]])
    none = jax.vmap(within, (0, 0, 0, 0))(*[jnp.zeros((0, *x.shape)) for x in drawn()], jnp.zeros((0, 4, 2), jnp.int32))
    assert none[0].shape == (0, 1, TOKENS, 4, 6)


OF_PROGRAMS = ValueError, jax.errors.JaxRuntimeError
"""by where JAX meets the error, in the call or in waiting for it"""


def refused(text, arrays, lengths, end):
    """Samples of which those before token `end` are legal."""
    if ON_CPU:
        with pytest.raises(OF_PROGRAMS, match=text):
            jax.block_until_ready(jax.jit(within)(*arrays, lengths))
        return
    for x in jax.jit(within)(*arrays, lengths):
        assert jnp.isnan(x[:, end:]).all() and jnp.isfinite(x[:, :end]).all()


@pytest.mark.parametrize("which", ["short", "long", "too many", "negative", "some axes", "int32"])
def test_illegal_samples(which):
    """An error where the library computes on a CPU; NaN from the sample on where a GPU or JAX's own operations do."""
    rows, text = {
        "short": ([[9, 9], [4, 9], [0, 0]], r"member 1: layouts\[1\]\[0\] = 4 is not in \[5, 16\]"),
        "long": ([[9, 9], [9, 33], [7, 9]], r"member 1: layouts\[1\]\[1\] = 33 is not in \[7, 32\]"),
        "too many": ([[9, 9], [16, 32], [16, 32]], "member 2 ends behind the 800 tokens of query, at token 1105"),
        "negative": ([[9, 9], [-9, 9], [7, 9]], r"layouts\[1\]\[0\] = -9 is not in"),
        "some axes": ([[9, 9], [0, 9], [7, 9]], r"layouts\[1\]\[0\] = 0 is not in"),
        "int32": ([[9, 9], [2**31 - 1, 2**31 - 1], [7, 9]], r"layouts\[1\]\[0\] = 2147483647 is not in"),
    }[which]
    arrays, lengths = drawn(), jnp.asarray(rows, jnp.int32)
    end = 9 * 9 + (16 * 32 if which == "too many" else 0)
    refused(text, arrays, lengths, end)
    legal = [(9, 9), (16, 32)][: 2 if which == "too many" else 1]
    along, f = drawn(seed=8), lambda *x: within(*x, lengths)
    tangents = jax.jit(lambda *x: jax.jvp(f, x, along)[1])(*arrays)
    expected = jax.jvp(known(legal), arrays, along)[1]
    for one, other in zip(tangents, expected):
        near(one[:, :end], other[:, :end])
        assert jnp.isnan(one[:, end:]).all()


def test_lengths_of_numpy_do_not_wrap():
    """Where JAX has no int64."""
    with jax.enable_x64(False):
        for value, shown in ((2**32 + 9, 2**31 - 1), (9 - 2**32, -(2**31))):
            text = rf"layouts\[1\]\[0\] = {shown} is not in"
            refused(text, drawn(dtype=np.float32), lengths_of(np.array([[9, 9], [value, 9]])), 81)
        near(within(*drawn(dtype=np.float32), np.asarray(BATCHES[0])), known(BATCHES[0])(*drawn(dtype=np.float32)))


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(layouts=[(14, 9)]), r"bound = \(16, 32\): it goes with layouts, an array of int32 or int64, and with one kernel_size"),
        (dict(kernel_size=None, kernel_sizes=[5]), r"bound = \(16, 32\): it goes with layouts"),
        (dict(strides=[1]), r"bound = \(16, 32\): it goes with layouts"),
        (dict(kernel_size=None), "kernel_size = None: with a bound it is that of all samples"),
        (dict(layouts=jnp.asarray([[14.0, 9.0]])), r"layouts is float64 of shape \(1, 2\), expected int32 or int64 of \[samples, 2\]"),
        (dict(layouts=jnp.asarray([[14, 9]], jnp.int16)), "layouts is int16 of shape"),
        (dict(layouts=jnp.asarray([[14]])), r"layouts is int64 of shape \(1, 1\), expected int32 or int64 of \[samples, 2\]"),
        (dict(layouts=jnp.asarray([14, 9])), r"layouts is int64 of shape \(2,\), expected"),
        (dict(layouts=jnp.zeros((65537, 2), jnp.int32)), "the number of samples is 65537, at most 65536"),
        (dict(bound=(16, 32, 4, 4)), "has 4 axes, expected 1, 2 or 3"),
        (dict(bound=64), "bound = 64 is not a sequence"),
        (dict(bound=(4, 32)), "kernel_size = 5 exceeds the 4 tokens of axis 0"),
        (dict(bound=(0, 32)), r"bound\[0\] = 0 is less than 1"),
        (dict(bound=(16.5, 32)), "bound = 16.5"),
        (dict(stride=(6, 1)), "stride = 6 exceeds kernel_size 5 of axis 0"),
        (dict(kernel_size=nhood.Windows.cut(16, 5)), "kernel_size"),
        (dict(scale=float("nan")), "scale = nan is not finite"),
    ],
)
def test_what_is_not_legal_is_named(change, text):
    """While the call is traced."""
    given = dict(layouts=jnp.asarray(BATCHES[0]), bound=BOUND, **ASKED)
    with pytest.raises((ValueError, TypeError), match=text):
        jax.eval_shape(lambda *x: nhood.jax.neighborhood_attention_varlen(*x, **{**given, **change}), *drawn())


def test_arrays_that_are_not_legal():
    query, key, value = drawn()
    lengths = jnp.asarray(BATCHES[0])
    for arrays, text in (
        ((query, key[:, :700], value[:, :700]), "query has 800 tokens, key has 700: with a bound they are the same ones"),
        ((query, key.astype(jnp.float32), value), "key has dtype float32, expected float64"),
        ((query.repeat(2, 0), key, value), "the batch is 2, expected 1"),
        ((query[:, :, :3], key, value), "heads"),
    ):
        with pytest.raises(ValueError, match=text):
            jax.eval_shape(within, *arrays, lengths)
    attend = lambda x, of: nhood.jax.neighborhood_attention_varlen(x, x, x, 5, layouts=of)  # noqa: E731
    for of in (lambda n: n, lambda n: [(n[0, 0], 9)]):
        with pytest.raises(TypeError, match="layouts is traced: make it an array and give a bound"):
            jax.jit(lambda x, n, of=of: attend(x, of(n)))(query, lengths)
    known_lengths = jnp.asarray([[40, 20]])  # an array that is not traced is known
    equal(jax.jit(lambda x: attend(x, known_lengths))(query), attend(query, [(40, 20)]))
    shape = jax.eval_shape(within, query, key, value, jax.ShapeDtypeStruct((4, 2), jnp.int32))
    assert [x.shape for x in shape] == [(1, TOKENS, 4, 6), (1, TOKENS, 4)]


def test_serialised():
    """The program says all: the handlers find its plan where none is at hand, and it serves any lengths."""
    arrays = drawn(dtype=np.float32)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("nhood")]
    program = jax.export.export(jax.jit(within), disabled_checks=allowed)(*arrays, jnp.asarray(BATCHES[0]))
    nhood.clear_cache()
    for batch in BATCHES:
        equal(program.call(*arrays, jnp.asarray(batch)), known(batch)(*arrays))
