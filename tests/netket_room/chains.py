"""A chain of four spins, its models and states, shared by the tests of this room.

Compiled programs are found again by the identity of a model and by the shapes of its samples, so every test
takes its states from here: one for each model, put back to the same parameters and samples on every request.
"""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

nk = pytest.importorskip("netket", reason="needs NetKet: pip install 'snapgrad[netket]'")
import flax.linen as nn  # noqa: E402

MARKS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
L, SAMPLES = 4, 24
HILBERT = nk.hilbert.Spin(0.5, L)
# A field along y makes the ground state complex, so that no part of a direction vanishes by symmetry.
CHAIN = nk.operator.Ising(HILBERT, nk.graph.Chain(L), h=0.9).to_local_operator() + sum(
    0.3 * nk.operator.spin.sigmay(HILBERT, i) for i in range(L)
)
HAMILTONIAN = CHAIN.to_jax_operator()


class Mixed(nn.Module):
    """Real weights, complex biases and a term that is not holomorphic."""

    hidden: int = 3

    @nn.compact
    def __call__(self, x):
        normal = nn.initializers.normal(0.3)
        y = nn.Dense(self.hidden, param_dtype=float, kernel_init=normal, bias_init=normal)(x)
        b = self.param("b", normal, (self.hidden,), complex)
        c = self.param("c", normal, (x.shape[-1],), complex)
        return jnp.sum(jnp.log(jnp.cosh(y + b)), axis=-1) + x @ c - jnp.sum(jnp.abs(b) ** 2 * y, axis=-1)


class NotHolomorphic(nn.Module):
    """All parameters complex."""

    @nn.compact
    def __call__(self, x):
        y = nn.Dense(6, param_dtype=complex, kernel_init=nn.initializers.normal(0.3))(x)
        return jnp.sum(jnp.log(jnp.cosh(y)), axis=-1) + jnp.sum(jnp.abs(y), axis=-1) * (0.1 + 0.2j)


MODELS = {
    "real": nk.models.RBM(alpha=2, param_dtype=float),
    "phase": nk.models.RBMModPhase(alpha=2, param_dtype=float),
    "holomorphic": nk.models.RBM(alpha=2, param_dtype=complex),
    "not holomorphic": NotHolomorphic(),
    "few, complex": nk.models.RBM(alpha=1, param_dtype=complex, use_hidden_bias=False),
    "few, mixed": Mixed(1),
    "mixed": Mixed(),
}


@cache
def _sampled(name):
    sampler = nk.sampler.MetropolisLocal(HILBERT, n_chains=4)
    return nk.vqs.MCState(sampler, MODELS[name], n_samples=SAMPLES, seed=1)


@cache
def _summed(name):
    return nk.vqs.FullSumState(HILBERT, MODELS[name], seed=1)


def sampled(name):
    """A state with given samples, not drawn from it: only the equality of steps on them is at stake."""
    return draw(moved(_sampled(name)), 0)


def summed(name):
    """A state that sums over all configurations."""
    return moved(_summed(name))


def draw(vstate, seed):
    rows = np.random.default_rng(seed).integers(0, 2, (4, SAMPLES // 4, L))
    vstate._samples = jnp.asarray(2 * rows - 1, vstate.sampler.dtype)
    return vstate


def moved(vstate):
    """Away from NetKet's initial parameters, which are so small that many derivatives nearly vanish."""
    vstate.parameters = random_like(vstate.parameters, 5, 0.3)
    return vstate


def random_like(tree, seed, scale=1.0):
    rng = np.random.default_rng(seed)

    def draw(x):
        z = rng.normal(size=x.shape) * scale
        return jnp.asarray(z + 1j * rng.normal(size=x.shape) * scale if jnp.iscomplexobj(x) else z)

    return jax.tree.map(draw, tree)


def flat(tree):
    """Real and imaginary parts of every leaf, one after the other."""
    parts = [[x.real, x.imag] if np.iscomplexobj(x) else [x] for x in map(np.asarray, jax.tree.leaves(tree))]
    return np.concatenate([np.ravel(p) for p in itertools.chain(*parts)])


def gap(a, b):
    return np.linalg.norm(flat(a) - flat(b)) / np.linalg.norm(flat(b))


def dense(vstate, mode="complex"):
    """√p (O − ⟨O⟩) and 2√p(E_loc − E), by plain automatic differentiation in real coordinates."""
    samples = jnp.asarray(HILBERT.all_states())
    parts, tree = jax.tree.flatten(vstate.parameters)
    shapes = [(x.shape, jnp.iscomplexobj(x)) for x in parts]

    def unflatten(vector):
        leaves, at = [], 0
        for shape, is_complex in shapes:
            size = int(np.prod(shape))
            piece = vector[at : at + size].reshape(shape)
            at += size
            if is_complex:
                piece = piece + 1j * vector[at : at + size].reshape(shape)
                at += size
            leaves.append(piece)
        return jax.tree.unflatten(tree, leaves)

    def outputs(vector):
        out = vstate._apply_fun({"params": unflatten(vector)}, samples)
        return jnp.stack([out.real, out.imag], axis=1) if mode == "complex" else out.real[:, None]

    J = np.asarray(jax.jit(jax.jacfwd(outputs))(jnp.asarray(flat(vstate.parameters))))  # [states, outputs, n]
    psi = np.exp(np.asarray(vstate._apply_fun(vstate.variables, samples)).astype(complex))
    psi = psi / np.linalg.norm(psi)
    p = np.abs(psi) ** 2
    h_psi = CHAIN.to_dense() @ psi
    energy = np.vdot(psi, h_psi).real
    r = 2 * (h_psi / psi - energy) * np.sqrt(p)
    J = (J - np.einsum("s,son->on", p, J)) * np.sqrt(p)[:, None, None]
    r = np.stack([r.real, r.imag], axis=1) if mode == "complex" else r.real[:, None]
    return J.reshape(-1, J.shape[-1]), r.reshape(-1), energy
