"""What users write, for the type checker: `make lint` reads it in standard mode, nothing runs it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import snapgrad as sg
from snapgrad import pinn

# A residual function and data.


def decay(params: dict[str, Array], row: tuple[Array, Array]) -> Array:
    t, y = row
    return params["a"] * jnp.exp(-params["rate"] * t) - y


t = jnp.linspace(0, 2, 50)
data = (t, jnp.exp(-t))
result = sg.least_squares(decay, {"a": jnp.ones(()), "rate": jnp.ones(())}, data, steps=20)
reason: str = result.reason
last: float = float(result.history["loss"][-1])
errors = sg.covariance(decay, result.params, data).errors

# A model, stop rules, checkpoints, a callback.

model = eqx.nn.MLP(1, 1, 8, 2, key=jax.random.key(0))
problem = sg.LeastSquares(lambda model, row: model(row[0]) - row[1], (t[:, None], t[:, None]), model)
fitted = sg.fit(
    problem,
    jax.random.key(1),
    steps=100,
    seconds=60,
    tol=1e-6,
    patience=50,
    method=sg.Auto(damping=1e-3),
    sampler=sg.sampling.Uniform(50, sample_size=10),
    checkpoint="runs/a",
    progress=True,
    callback=lambda record, state: record["loss"] < 1e-3,
)
sg.save("model.snap", fitted.params)
restored = sg.load("model.snap", fitted.params)

# Other losses.

labels = sg.LossProblem(
    model=lambda w, row: row[0] @ w,
    loss=lambda v, row: optax.losses.sigmoid_binary_cross_entropy(v, row[1]),
    data=(jnp.ones((8, 3)), jnp.ones(8)),
    init=jnp.zeros(3),
)

# Fixed settings, schedules, samplers, sweeps.

llq = sg.problems.gaussian_llq(jax.random.key(0), 200, 20)
methods: list[sg.AbstractMethod] = [
    sg.SNG(1e-3),
    sg.Spring(damping=1e-3, momentum=0.9, solver="cg"),
    sg.Spring(jnp.asarray(1e-3), 0.9, solver=sg.CG(rank=32)),
    sg.TwoBatch(1.0),
    sg.SGD(),
]
samplers: list[sg.AbstractSampler] = [
    sg.sampling.Uniform(200, sample_size=5),
    sg.sampling.AllRows(200),
    sg.sampling.SquaredVolume.from_matrix(np.ones((8, 3)), 2, damping=1.0),
]
for method, sampler in zip(methods, samplers, strict=False):
    run = sg.run(
        llq,
        jax.random.key(1),
        method=method,
        sampler=sampler,
        optimizer=optax.cosine_decay_schedule(0.1, 100),
        steps=100,
    )


def final_error(damping: Float[Array, ""]) -> Array:
    run = sg.run(llq, jax.random.key(1), method=sg.SNG(damping), sampler=samplers[0], optimizer=0.3, steps=50)
    return run.history["relative_error"][-1]


sweep = jax.vmap(final_error)(jnp.logspace(-6, 1, 8))

# An optax loop of one's own.

tx = sg.as_optax(sg.Auto(), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)))
params = {"a": jnp.ones(()), "rate": jnp.ones(())}
state = tx.init(params)
lin = sg.linearise(decay, params, data)
updates, state = tx.update(None, state, params, linearisation=lin)
params = optax.apply_updates(params, updates)
refused: int = int(state.rejected)

# Jacobians.

jac = sg.jacobian(lambda w, x: jnp.tanh(x @ w), jnp.ones(3), jnp.ones((8, 3)))
kernel: Float[Array, "k k"] = jac.gram()
both = sg.stack([jac.scale(jnp.ones(8)), jac.centre()])
print(jac.explain(), both.shape)

# A PDE.

box = pinn.Box([0, 0], [1, 1])
pde = pinn.PINN(
    pinn.MLP([2, 32, 1]),
    [
        pinn.Block("interior", lambda u, x: pinn.laplacian(u, x) + 1.0, box, points=400),
        pinn.Block("boundary", lambda u, x: u(x), box.boundary(), points=80),
    ],
    unknowns={"diffusivity": 1.0},
)
solution = pinn.solve(pde, jax.random.key(0), seconds=10)
values: Array = solution(jnp.zeros((5, 7, 2)))

# Linear systems and theory.

A = np.random.default_rng(0).normal(size=(50, 5))
found = sg.kaczmarz(A, A @ np.ones(5), sample_size=3, momentum=0.5, tol=1e-6)
alpha = sg.theory.alpha(A, sample_size=3)
gamma = sg.theory.gamma(A, sample_size=3, key=jax.random.key(0))
rate: float = sg.theory.predicted_rate("sng", alpha=alpha, gamma=gamma, curvature=(0.1, 1.0)).rate

# Advice.

report = sg.diagnose(llq, jax.random.key(0), sample_sizes=[2, 4], seconds=4)
text: str = str(report)
run = sg.run(llq, jax.random.key(2), method=report.method(), sampler=report.sampler(), steps=10)


# A method of one's own.


class HeavyBall(sg.AbstractMethod):
    damping: Float[Array, ""]
    momentum: Float[Array, ""]

    def init(self, params: Array) -> Array:
        return jnp.zeros_like(params)

    def propose(self, lin: sg.Linearisation, state: Array) -> tuple[Array, Array]:
        step = sg.methods.pinv_apply(lin.jacobian, lin.residual, self.damping)
        state = self.momentum * state + step
        return state, state


# Shapes, and time in slabs.

plate = (box - pinn.Ball([0.5, 0.5], radius=0.2)) & pinn.HalfSpace([0, 0.9], normal=[0, 1])
holes: Array = plate.contains([[0.5, 0.5], [0.1, 0.1]])
rim = plate.boundary(normals=True, where=lambda x: x[1] < 1e-9)
size: float = float(plate.volume)
domain = pinn.SpaceTime(pinn.Polygon([[0, 0], [1, 0], [0, 1]]), start=0, end=1)
rod = pinn.SpaceTime(pinn.Box([0], [1]), start=0, end=1)
rising = pinn.Hard.box(pinn.network(rod, (16,)), rod, initial=lambda x: jnp.sin(jnp.pi * x[1]))
evolving = pinn.Evolving(pinn.Equinox(lambda key: eqx.nn.MLP(2, 1, 8, 2, key=key)), rod, lambda x: x[1])
heat = pinn.PINN(
    evolving,
    [pinn.Block("heat", lambda u, x: pinn.time_derivative(u, x) - pinn.laplacian(u, x), rod, points=100)],
)
marched = pinn.march(heat, jax.random.key(0), slabs=[0, 0.5, 1], steps=20, optimizer=optax.adam(1e-3))
later: Array = marched(jnp.array([0.75, 0.5]))


class Bumps:
    """A network of one's own."""

    def init(self, key: Array) -> dict[str, Array]:
        return {"at": jax.random.normal(key, (20, 2)), "height": jnp.zeros(20)}

    def __call__(self, params: dict[str, Array], x: Array) -> Array:
        return jnp.exp(-jnp.sum((x[None] - params["at"]) ** 2, axis=1)) @ params["height"]


own: pinn.Network = Bumps()
pinn.PINN(pinn.Fourier.random(own, 2, 10), pde.blocks, fields={"k": Bumps()})

# Molecules.

lih = sg.molecules.Molecule([("Li", (0, 0, 0)), ("H", (0, 0, 1.5955))], unit="angstrom", spin=0)
net = sg.molecules.FermiNet(lih, width=16, layers=2, determinants=2, dtype=jnp.float64)
atom = sg.molecules.VMC(net, walkers=64)
ground = sg.molecules.solve(atom, jax.random.key(0), steps=10)
energy: float = float(ground.evaluation.energy)
sg.molecules.solve("H2", jax.random.key(0), seconds=60, ansatz="psiformer", optimizer=0.5)
sign, log = net.sign_log(net.init(jax.random.key(1)), jnp.ones((4, 3)))
