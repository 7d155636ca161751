"""The models of the kernel benchmarks, in plain JAX: what people train under natural gradients today.

`vit` is the transformer wavefunction of spin lattices, `cnn` the residual one on a periodic lattice,
`ferminet` and `psiformer` those of electrons, `mlp` a perceptron. Each gives parameters, a batch and
`fn(params, x)` for one point.
"""

import itertools
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Model(NamedTuple):
    """A function of parameters and one point, with parameters and points to try it on."""

    fn: Callable
    params: Any
    points: Any

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.params))


class _Init:
    """Hands out weights, each from its own key."""

    def __init__(self, seed: int, dtype: Any):
        self.keys = (jax.random.fold_in(jax.random.key(seed), i) for i in itertools.count())
        self.dtype = dtype

    def normal(self, *shape: int, scale: float = 1.0) -> Any:
        return scale * jax.random.normal(next(self.keys), shape, self.dtype)

    def dense(self, *shape: int) -> dict[str, Any]:
        return {
            "w": self.normal(*shape, scale=prod(shape[:-1]) ** -0.5),
            "b": self.normal(shape[-1], scale=0.1),
        }

    def norm(self, d: int) -> dict[str, Any]:
        return {"scale": 1 + self.normal(d, scale=0.1), "shift": self.normal(d, scale=0.1)}


def _dense(p, x):
    return x @ p["w"] + p["b"]


def _norm(p, x):
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * p["scale"] + p["shift"]


def _log_cosh(z):
    if jnp.iscomplexobj(z):
        z = jnp.where(z.real < 0, -z, z)
        return z + jnp.log1p(jnp.exp(-2 * z)) - jnp.log(2.0).astype(z.real.dtype)
    return jnp.logaddexp(z, -z) - jnp.log(2.0).astype(z.dtype)


def _attention(p, x, heads):
    """Multi-head attention; the weights of a head are parameters, or come from queries and keys."""
    tokens, d = x.shape
    split = lambda name: _dense(p[name], x).reshape(tokens, heads, d // heads)  # noqa: E731
    if "weights" in p:
        weights = p["weights"]
    else:
        weights = jax.nn.softmax(
            jnp.einsum("ahc,bhc->hab", split("q"), split("k")) * (d // heads) ** -0.5, axis=-1
        )
    return _dense(p["o"], jnp.einsum("hab,bhc->ahc", weights, split("v")).reshape(tokens, d))


def _spins(seed, k, side, dtype):
    return jnp.sign(jax.random.normal(jax.random.key(seed), (k, side, side), dtype))


def mlp(widths, k, dtype="float64"):
    """A tanh network of ±1 inputs."""
    make = _Init(0, dtype)
    params = [make.dense(a, b) for a, b in itertools.pairwise(widths)]

    def fn(params, x):
        for p in params[:-1]:
            x = jnp.tanh(_dense(p, x))
        return _dense(params[-1], x)[0]

    return Model(fn, params, jnp.sign(jax.random.normal(jax.random.key(1), (k, widths[0]), dtype)))


def vit(d, layers, k, dtype="float64", *, heads, side=10, patch=2, softmax=False, complex_output=False):
    """A transformer wavefunction: patches of a spin lattice as tokens, a log cosh of the pooled tokens at
    the end.

    Attention is factored, its weights a function of positions alone, as in the vision transformers of
    NetKet's tutorials; with `softmax` it is that of queries and keys. With `complex_output` amplitude and
    phase come from two projections, as such wavefunctions have them.
    """
    make, tokens = _Init(0, dtype), (side // patch) ** 2

    def block():
        attention = {name: make.dense(d, d) for name in ("qkvo" if softmax else "vo")}
        if not softmax:
            attention["weights"] = make.normal(heads, tokens, tokens, scale=tokens**-0.5)
        return {
            "norm1": make.norm(d),
            "attention": attention,
            "norm2": make.norm(d),
            "up": make.dense(d, 2 * d),
            "down": make.dense(2 * d, d),
        }

    params = {
        "embed": make.dense(patch * patch, d),
        "blocks": [block() for _ in range(layers)],
        "norm": make.norm(d),
        "head": make.dense(d, d),
    }
    if softmax:
        params["place"] = make.normal(tokens, d, scale=0.1)
    if complex_output:
        params["phase"] = make.dense(d, d)

    def fn(params, x):
        n = side // patch
        x = x.reshape(n, patch, n, patch).transpose(0, 2, 1, 3).reshape(tokens, patch * patch)
        x = _dense(params["embed"], x) + params.get("place", 0)
        for p in params["blocks"]:
            x = x + _attention(p["attention"], _norm(p["norm1"], x), heads)
            x = x + _dense(p["down"], jax.nn.gelu(_dense(p["up"], _norm(p["norm2"], x))))
        x = _norm(params["norm"], jnp.sum(x, axis=0))
        z = _dense(params["head"], x)
        if complex_output:
            z = jax.lax.complex(z, _dense(params["phase"], x))
        return jnp.sum(_log_cosh(z))

    return Model(fn, params, _spins(1, k, side, dtype))


def cnn(channels, blocks, k, dtype="float64", *, side=10, window=3):
    """A residual network of periodic convolutions, summed over the lattice at the end."""
    make = _Init(0, dtype)

    def conv(a, b):
        return {
            "w": make.normal(window, window, a, b, scale=(window**2 * a) ** -0.5),
            "b": make.normal(b, scale=0.1),
        }

    params = {
        "first": conv(1, channels),
        "blocks": [[conv(channels, channels) for _ in range(2)] for _ in range(blocks)],
    }

    def apply(p, x):
        edge = window // 2
        x = jnp.pad(x, [(edge, edge), (edge, edge), (0, 0)], mode="wrap")
        numbers = ("NHWC", "HWIO", "NHWC")
        return (
            jax.lax.conv_general_dilated(x[None], p["w"], (1, 1), "VALID", dimension_numbers=numbers)[0]
            + p["b"]
        )

    def fn(params, x):
        x = apply(params["first"], x[..., None])
        for first, second in params["blocks"]:
            x = x + apply(second, jax.nn.gelu(apply(first, jax.nn.gelu(x))))
        return jnp.sum(_log_cosh(jnp.sum(x, axis=(0, 1)) * side**-1.0))

    return Model(fn, params, _spins(1, k, side, dtype))


def _molecule(electrons):
    """Positions and charges of nuclei, and the number of electrons with spin up: Be2+, C or O, N2."""
    charges = jnp.asarray([float(electrons)]) if electrons < 14 else jnp.asarray([7.0, 7.0])
    nuclei = jnp.zeros((1, 3)) if electrons < 14 else jnp.asarray([[0.0, 0, -1.034], [0, 0, 1.034]])
    return nuclei, charges, -(-electrons // 2)


def _orbitals(params, h, distances, up):
    """log|ψ| of a sum of determinants with exponential envelopes, spins up and down apart."""
    signs, logs = 1.0, 0.0
    for spin, rows in (("up", slice(0, up)), ("down", slice(up, None))):
        p, own = params[spin], h[rows]
        count, orbitals = own.shape[0], p["w"].shape[-1]
        values = jnp.einsum("nd,dmo->mno", own, p["w"]) + p["b"][:, None]
        decay = jnp.exp(-distances[rows][:, None, None, :] * jnp.abs(p["decay"])[None])
        envelope = jnp.einsum("nmoi,moi->mno", decay, p["amplitude"])
        assert count == orbitals
        sign, log = jnp.linalg.slogdet(values * envelope)
        signs, logs = signs * sign, logs + log
    most = jax.lax.stop_gradient(jnp.max(logs))
    return most + jnp.log(jnp.abs(jnp.sum(signs * jnp.exp(logs - most))))


def _orbital_params(make, width, nuclei, up, down, determinants):
    def spin(count):
        return {
            "w": make.normal(width, determinants, count, scale=width**-0.5),
            "b": make.normal(determinants, count, scale=0.1),
            "decay": 1 + make.normal(determinants, count, nuclei, scale=0.1),
            "amplitude": 1 + make.normal(determinants, count, nuclei, scale=0.1),
        }

    return {"up": spin(up), "down": spin(down)}


def _walkers(k, electrons, dtype):
    nuclei, charges, _ = _molecule(electrons)
    home = jnp.repeat(nuclei, jnp.asarray(charges, int), axis=0, total_repeat_length=electrons)
    return (home[None] + jax.random.normal(jax.random.key(1), (k, electrons, 3))).astype(dtype)


def ferminet(electrons, k, dtype="float32", *, width=256, pair_width=16, layers=4, determinants=16):
    """FermiNet: streams of electrons and of pairs, each layer fed with means over spins."""
    make = _Init(0, dtype)
    nuclei, _, up = _molecule(electrons)
    nuclei = nuclei.astype(dtype)
    one, two = 4 * nuclei.shape[0], 4
    params: dict[str, Any] = {"layers": []}
    for layer in range(layers):
        p = {"one": make.dense(3 * one + 2 * two, width)}
        if layer < layers - 1:
            p["two"] = make.dense(two, pair_width)
        params["layers"].append(p)
        one, two = width, pair_width
    params["orbitals"] = _orbital_params(make, width, nuclei.shape[0], up, electrons - up, determinants)

    def fn(params, x):
        rays = x[:, None] - nuclei[None]
        distances = jnp.linalg.norm(rays, axis=-1)
        gaps = x[:, None] - x[None] + jnp.eye(electrons, dtype=x.dtype)[..., None]
        lengths = jnp.linalg.norm(gaps, axis=-1) * (1 - jnp.eye(electrons, dtype=x.dtype))
        h = jnp.concatenate([rays, distances[..., None]], axis=-1).reshape(electrons, -1)
        pair = jnp.concatenate([x[:, None] - x[None], lengths[..., None]], axis=-1)
        for p in params["layers"]:
            spins = [slice(0, up), slice(up, None)]
            means = [jnp.broadcast_to(jnp.mean(h[s], axis=0), h.shape) for s in spins]
            pairs = [jnp.mean(pair[:, s], axis=1) for s in spins]
            new = jnp.tanh(_dense(p["one"], jnp.concatenate([h, *means, *pairs], axis=-1)))
            h = h + new if h.shape == new.shape else new
            if "two" in p:
                new = jnp.tanh(_dense(p["two"], pair))
                pair = pair + new if pair.shape == new.shape else new
        return _orbitals(params["orbitals"], h, distances, up)

    return Model(fn, params, _walkers(k, electrons, dtype))


def psiformer(electrons, k, dtype="float32", *, width=256, layers=4, heads=4, determinants=16):
    """Psiformer: self-attention over electrons, and a Jastrow factor for their cusps."""
    make = _Init(0, dtype)
    nuclei, _, up = _molecule(electrons)
    nuclei = nuclei.astype(dtype)
    block = lambda: {**{name: make.dense(width, width) for name in "qkvo"}, "mlp": make.dense(width, width)}  # noqa: E731
    params = {
        "embed": make.dense(4 * nuclei.shape[0] + 1, width),
        "blocks": [block() for _ in range(layers)],
        "orbitals": _orbital_params(make, width, nuclei.shape[0], up, electrons - up, determinants),
        "cusp": 1 + make.normal(2, scale=0.1),
    }
    spin = jnp.where(jnp.arange(electrons) < up, 1.0, -1.0).astype(dtype)

    def fn(params, x):
        rays = x[:, None] - nuclei[None]
        distances = jnp.linalg.norm(rays, axis=-1)
        scaled = jnp.log1p(distances) / distances
        h = jnp.concatenate([rays * scaled[..., None], (distances * scaled)[..., None]], axis=-1)
        h = _dense(params["embed"], jnp.concatenate([h.reshape(electrons, -1), spin[:, None]], axis=-1))
        for p in params["blocks"]:
            h = h + _attention(p, h, heads)
            h = h + jnp.tanh(_dense(p["mlp"], h))
        gaps = jnp.linalg.norm(x[:, None] - x[None] + jnp.eye(electrons, dtype=x.dtype)[..., None], axis=-1)
        off = 1 - jnp.eye(electrons, dtype=x.dtype)
        same = off * (spin[:, None] * spin[None] > 0)
        alpha, beta = params["cusp"]
        jastrow = -0.25 * jnp.sum(same * alpha**2 / (alpha + gaps) / 2) - 0.5 * jnp.sum(
            (off - same) * beta**2 / (beta + gaps) / 2
        )
        return jastrow + _orbitals(params["orbitals"], h, distances, up)

    return Model(fn, params, _walkers(k, electrons, dtype))


def laplacian(d, width, depth, k, dtype="float64"):
    """The rows of a PINN: Δu at a point, with value, slopes and Laplacian pushed forward together."""
    make = _Init(0, dtype)
    params = [make.dense(a, b) for a, b in itertools.pairwise([d, *[width] * depth, 1])]

    def fn(params, x):
        h = jnp.concatenate([x[None], jnp.eye(x.size, dtype=x.dtype), jnp.zeros_like(x)[None]])
        for i, p in enumerate(params):
            h = h @ p["w"]
            value, slope, second = h[:1] + p["b"], h[1:-1], h[-1:]
            if i < len(params) - 1:
                t = jnp.tanh(value)
                d1 = 1 - t**2
                second = d1 * second - 2 * t * d1 * jnp.sum(slope**2, axis=0, keepdims=True)
                value, slope = t, d1 * slope
            h = jnp.concatenate([value, slope, second])
        return h[-1, 0]

    return Model(fn, params, jax.random.uniform(jax.random.key(1), (k, d), dtype))


MODELS = {
    "mlp": mlp,
    "vit": vit,
    "vit-softmax": partial(vit, softmax=True),
    "vit-complex": partial(vit, complex_output=True),
    "cnn": cnn,
    "ferminet": ferminet,
    "psiformer": psiformer,
    "pinn": laplacian,
}
