"""From a variational state and a Hamiltonian to the residual and the rows that methods understand."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Inexact, Num
from netket.operator import AbstractOperator
from netket.vqs import VariationalState

from .._checks import Given, one_of, real_scalar
from .._contracts import AbstractJacobian, Linearisation, Params
from ..operators import jacobian, realify
from ._local import (
    Configurations,
    LocalEnergies,
    apply_function,
    check_state,
    configurations,
    local_energies_of,
)

Mode: TypeAlias = Literal["real", "complex"]


class LogPsi(eqx.Module):
    """θ, σ ↦ log ψ_θ(σ) for one configuration, or its real part."""

    apply: Callable = eqx.field(static=True)
    model_state: Any
    real: bool = eqx.field(static=True)

    def __call__(self, params: Params, sample: Num[Array, " sites"]) -> Inexact[Array, ""]:
        """The amplitude's logarithm."""
        out = self.apply({"params": params, **self.model_state}, sample[None])[0]
        return out.real if self.real else out


class Settings(NamedTuple):
    """How the rows are made; hashable, so that a compiled step depends on it."""

    mode: Mode
    holomorphic: bool
    block_size: int | None
    memory_limit: int | None
    precision: str
    factor_dtype: Any
    gram_dtype: Any

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `sg.jacobian`."""
        return {name: getattr(self, name) for name in self._fields[2:]}


class LiftedJacobian(AbstractJacobian):
    """Centred rows √w_i (J_i − wᵀJ) whose kernel is made definite where it vanishes.

    √w is orthogonal to these rows, to those of the real and of the imaginary parts each on its own. The
    residual and J φ are orthogonal to it as well, so K may be given any eigenvalue there and the step
    stays the same; `gram` gives it `lift` times the mean of K's diagonal. Small damping then meets one
    (or two) zero eigenvalues less, which rounding would make negative.

    `snapgrad.netket.linearise` makes it:

    - `inner`: the centred and weighted rows.
    - `root`: √w, one number for each configuration.
    - `lift`: the eigenvalue of the kernel along √w, over the mean of its diagonal.

    ```python
    import netket as nk
    import snapgrad.netket as sgn

    hilbert = nk.hilbert.Spin(0.5, 4)
    hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(4), h=1.0)
    vstate = nk.vqs.FullSumState(hilbert, nk.models.RBM(param_dtype=float))
    lin = sgn.linearise(vstate, hamiltonian, lift=1.0)
    lin.jacobian.gram() @ lin.jacobian.root             # along √w: one multiple of it, where it was zero
    ```
    """

    inner: AbstractJacobian
    root: Float[Array, " p"]
    lift: Float[Array, ""]

    @property
    def shape(self) -> tuple[int, int]:
        """`(k, n)`: how many rows there are, and how many numbers the parameters hold."""
        return self.inner.shape

    def gram(self) -> Float[Array, "k k"]:
        """Returns the lifted kernel, J Jᵀ + ν √w √wᵀ for each output, one number for each two rows."""
        K = self.inner.gram()
        outputs = K.shape[0] // self.root.size
        null = (self.lift * jnp.mean(jnp.diagonal(K))).astype(K.dtype) * jnp.outer(self.root, self.root)
        block = jnp.eye(outputs, dtype=K.dtype)
        return K + (null[:, None, :, None] * block[None, :, None, :]).reshape(K.shape)

    def mv(self, tangent: Params) -> Float[Array, " k"]:
        """Multiplies the Jacobian with a tangent φ shaped like the parameters; returns J φ, one number per
        row.
        """
        return self.inner.mv(tangent)

    def rmv(self, cotangent: Float[Array, " k"]) -> Params:
        """Multiplies the transposed Jacobian with one number per row; returns Jᵀ u, like the parameters."""
        return self.inner.rmv(cotangent)

    def dense(self) -> Float[Array, "k n"]:
        """Returns the centred rows as one matrix."""
        return self.inner.dense()


class ResidualAt(eqx.Module):
    """The residual on the same configurations at params − step."""

    energies: LocalEnergies
    params: Params
    root: Float[Array, " p"]
    mode: Mode = eqx.field(static=True)

    def __call__(self, step: Params) -> Float[Array, " k"]:
        """2√w(E_loc − ⟨E⟩) there, under the same weights."""
        local = self.energies(jax.tree.map(lambda p, s: p - s, self.params, step))
        # Where ψ has underflowed, the weight is zero and the local energy anything.
        return _residual(jnp.where(self.root > 0, local, 0), self.root, self.mode)


def linearise(
    variational_state: Given[VariationalState, ""],
    hamiltonian: Given[AbstractOperator, ""],
    *,
    weights: Given[ArrayLike, " k"] | None = None,
    mode: Mode | None = None,
    holomorphic: bool = False,
    lift: Given[ArrayLike, ""] = 0.0,
    block_size: int | None = None,
    memory_limit: int | str | None = None,
    precision: str = "highest",
    factor_dtype: Given[DTypeLike | None, ""] = None,
    gram_dtype: Given[DTypeLike | None, ""] = None,
) -> Linearisation:
    """Residual 2(E_loc − ⟨E⟩)√w and centred rows √w ∂log ψ, on the state's current configurations.

    w = 1/k for Monte Carlo samples, |ψ|² for a full-summation state. J Jᵀ is then the kernel, Jᵀ J the
    quantum geometric tensor and Jᵀ r the gradient of the energy. Parameters may be real, complex or both;
    the gradient of a complex one is ∂E/∂x + i ∂E/∂y, as in NetKet.

    **Arguments:**

    - `variational_state`: a `netket.vqs.MCState` or `FullSumState`.
    - `hamiltonian`: a Hermitian NetKet operator.
    - `weights`: the weights of the samples, where they were not drawn from |ψ|²; any positive scale.
    - `mode`: `"complex"` gives two rows a configuration, for the real and imaginary part; `"real"` leaves
      the phase out. By default as the output of the model is.
    - `holomorphic`: states that log ψ is holomorphic in parameters that are all complex: one backward
      pass then serves both rows. Checked at the current parameters.
    - `lift`: see `LiftedJacobian`; 0 leaves the kernel as it is.
    - `memory_limit`: bytes, or text such as `"2GiB"`, for the kernel as well as for the local energies.
    - `block_size`, `precision`, `factor_dtype`, `gram_dtype`: as in `sg.jacobian`.

    ```python
    import netket as nk
    import snapgrad.netket as sgn

    hilbert = nk.hilbert.Spin(0.5, 4)
    hamiltonian = nk.operator.IsingJax(hilbert, nk.graph.Chain(4), h=1.0)
    vstate = nk.vqs.FullSumState(hilbert, nk.models.RBM(param_dtype=float))
    lin = sgn.linearise(vstate, hamiltonian)
    method = sg.Spring(1e-3, 0.9)
    direction, state = method.direction(lin, method.init(vstate.parameters))
    vstate.parameters = jax.tree.map(lambda p, d: p - 0.02 * d, vstate.parameters, direction)
    ```

    **Returns:** a `sg.Linearisation` whose Jacobian is a `LiftedJacobian`. `TypeError` or `ValueError` if the
    Hamiltonian is not Hermitian or belongs to another Hilbert space, or if an option does not fit the model.
    """
    check_state(variational_state, hamiltonian)
    settings = make_settings(
        variational_state, mode, holomorphic, block_size, memory_limit, precision, factor_dtype, gram_dtype
    )
    found = configurations(variational_state, hamiltonian, weights, settings.memory_limit)
    lift = real_scalar("lift", lift, low=0)
    log_psi = log_psi_of(variational_state, settings)
    energies = local_energies_of(
        variational_state, hamiltonian, found.samples, getattr(variational_state, "chunk_size", None)
    )
    return rows(log_psi, variational_state.parameters, found, settings, lift, energies)


def rows(
    log_psi: LogPsi,
    params: Params,
    found: Configurations,
    settings: Settings,
    lift: Float[Array, ""],
    energies: LocalEnergies | None = None,
) -> Linearisation:
    """The linearisation on given configurations; may be compiled. `energies` serve other parameters."""
    w = found.weights
    equal = jnp.full(found.local.shape, 1 / found.local.size, found.local.real.dtype)
    root = jnp.sqrt(equal if w is None else w)
    jac = log_psi_jacobian(log_psi, params, found.samples, settings)
    # With equal weights the two commute, and scaling first costs nothing.
    jac = jac.scale(root[0]).centre() if w is None else jac.centre(w).scale(root)
    after = None if energies is None else ResidualAt(energies, params, root, settings.mode)
    residual = _residual(found.local, root, settings.mode)
    return Linearisation(residual, LiftedJacobian(jac, root, lift), after, has_loss=False)


def _residual(local: Inexact[Array, " p"], root: Float[Array, " p"], mode: Mode) -> Float[Array, " k"]:
    """2√w(E_loc − ⟨E⟩), as many numbers as rows."""
    residual = 2 * root * (local - jnp.sum(root**2 * local))
    return residual.real if mode == "real" else realify(residual)


def log_psi_jacobian(log_psi: LogPsi, params: Params, samples: Num[Array, "k sites"], settings: Settings):
    """∂ log ψ/∂θ at every configuration, neither centred nor weighted."""
    fn = log_psi if settings.mode == "real" else realify(log_psi, holomorphic=settings.holomorphic)
    if not jnp.issubdtype(
        samples.dtype, jnp.inexact
    ):  # NetKet's int8, which a model promotes to its own type
        samples = samples.astype(jnp.finfo(jnp.result_type(*jax.tree.leaves(params))).dtype)
    return jacobian(fn, params, samples, **settings.options)


def log_psi_of(vstate: Any, settings: Settings) -> LogPsi:
    """The model of a state."""
    return LogPsi(apply_function(vstate), dict(vstate.model_state), settings.mode == "real")


def make_settings(
    vstate: Any,
    mode: Mode | None,
    holomorphic: bool,
    block_size: int | None,
    memory_limit: int | str | None,
    precision: str,
    factor_dtype: Any,
    gram_dtype: Any,
) -> Settings:
    """Checked settings, with defaults that depend on the state filled in."""
    few = jnp.asarray(vstate.hilbert.random_state(jax.random.key(0), 3))
    if mode is None:
        out = jax.eval_shape(apply_function(vstate), vstate.variables, few)
        mode = "complex" if jnp.issubdtype(out.dtype, jnp.complexfloating) else "real"
    one_of("mode", mode, ("real", "complex"))
    if holomorphic:
        _check_holomorphic(vstate, few, mode)
    settings = Settings(mode, holomorphic, block_size, None, precision, factor_dtype, gram_dtype)
    options = {**settings.options, "memory_limit": memory_limit}
    # Checks every option, and reads the limit as a number of bytes.
    jac = jacobian(lambda p, x: jnp.sum(x), jnp.zeros(1), few.astype(jnp.result_type(float)), **options)
    return settings._replace(memory_limit=jac.options.memory_limit)


def _check_holomorphic(vstate: Any, samples: Num[Array, "k sites"], mode: Mode) -> None:
    params = vstate.parameters
    if mode != "complex" or not all(map(jnp.iscomplexobj, jax.tree.leaves(params))):
        raise ValueError("`holomorphic` needs mode='complex' and parameters that are all complex.")
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    tangent = [jax.random.normal(key, x.shape, x.dtype) for key, x in zip(keys, leaves, strict=True)]

    def push(factor: complex) -> Inexact[Array, " k"]:
        along = jax.tree.unflatten(tree, [(factor * t).astype(t.dtype) for t in tangent])
        apply = lambda p: apply_function(vstate)({"params": p, **vstate.model_state}, samples)  # noqa: E731
        return jax.jvp(apply, (params,), (along,))[1]

    real, imaginary = push(1), push(1j)
    error = jnp.linalg.norm(imaginary - 1j * real) / jnp.linalg.norm(real)
    if not bool(error < jnp.sqrt(jnp.finfo(real.dtype).eps)):
        raise ValueError(
            f"`holomorphic` is True, but log ψ is not holomorphic at these parameters: its derivatives "
            f"along x and along y differ by {float(error):.1e} from the Cauchy–Riemann equations."
        )
