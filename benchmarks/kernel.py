"""One SPRING update, φ ← μφ + Jᵀ(K + λI)⁻¹(r − μJφ), without the Jacobian, against NetKet's and stored rows.

    python benchmarks/kernel.py                                          # the CPU table
    python benchmarks/kernel.py --case vit-320k:2048:float64 --limit     # MODEL:SAMPLES:DTYPE[:PRECISION]
    python benchmarks/kernel.py --case vit-320k:4096:float32:float16x3 --peers srt stored
    python benchmarks/kernel.py --memory mlp-206k:1024:float32           # compiled, not run

`--list` names the models. NetKet may be installed or lie in a folder on PYTHONPATH; without it only stored
rows are the peer. In float32 all peers run at full precision (`jax.default_matmul_precision("highest")`),
as ours does; with `--peer-precision default` they run as JAX does by itself, which on NVIDIA cards is TF32,
good to three digits. Pin the BLAS threads (OPENBLAS_NUM_THREADS=1) on a shared machine. `--write FILE`
saves the tables and the command.
"""

import argparse
import math
import os
import platform
import sys
import time
from functools import partial

# jaxlib waits for LAPACK calls on its own thread pool: with as many threads as cores, two calls can wait for
# each other for ever.
os.environ.setdefault("NPROC", str(2 * (os.cpu_count() or 1)))

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

from _models import cnn, ferminet, laplacian, mlp, psiformer, vit

from snapgrad.linalg import psd_solve
from snapgrad.operators import jacobian, realify

MOMENTUM = 0.9
DAMPING, ELECTRON_DAMPING = 1e-3, 1e3  # rows of determinants are that much larger
MODELS = {
    "mlp-142k": partial(mlp, [40, 256, 256, 256, 1]),
    "mlp-206k": partial(mlp, [40, 310, 310, 310, 1]),
    "mlp-1m": partial(mlp, [40, 720, 720, 720, 1]),
    "mlp-81m": partial(mlp, [40, 5200, 5200, 5200, 5200, 1]),
    "vit-118k": partial(vit, 60, 4, heads=10),
    "vit-320k": partial(vit, 72, 8, heads=12),
    "vit-softmax-340k": partial(vit, 72, 8, heads=12, softmax=True),
    "vit-complex-30k": partial(vit, 36, 3, heads=6, complex_output=True),
    "vit-complex-325k": partial(vit, 72, 8, heads=12, complex_output=True),
    "cnn-19k": partial(cnn, 16, 4),
    "cnn-74k": partial(cnn, 32, 4),
    "ferminet-6": partial(ferminet, 6),
    "ferminet-8": partial(ferminet, 8),
    "ferminet-14": partial(ferminet, 14),
    "psiformer-6": partial(psiformer, 6),
    "psiformer-8": partial(psiformer, 8),
    "psiformer-14": partial(psiformer, 14),
    "pinn-34k": partial(laplacian, 5, 128, 3),
    "pinn-529k": partial(laplacian, 5, 512, 3),
}
DEFAULT = [
    "mlp-142k:512:float64",
    "mlp-1m:256:float64",
    "vit-118k:512:float32",
    "vit-complex-30k:256:float64",
    "cnn-19k:512:float32",
    "ferminet-6:256:float32",
    "psiformer-6:128:float32",
    "pinn-34k:512:float64",
]


class Case:
    """A model with something to update: samples, energies and the last increment."""

    def __init__(self, text):
        name, k, *rest = text.split(":")
        self.name, self.k, self.dtype = name, int(k), rest[0] if rest else "float64"
        self.precision = rest[1] if len(rest) > 1 else "highest"
        model = MODELS[name](self.k, dtype=self.dtype)
        self.fn, self.size = model.fn, model.size
        electrons = name.startswith(("ferminet", "psiformer"))
        self.damping = ELECTRON_DAMPING if electrons else DAMPING
        self.complex = jnp.issubdtype(
            jax.eval_shape(self.fn, model.params, model.points[0]).dtype, jnp.complexfloating
        )
        key = jax.random.key(3)
        increment = jax.tree.map(lambda p: 1e-2 * jax.random.normal(key, p.shape, p.dtype), model.params)
        energies = jax.random.normal(key, (self.k,), self.dtype)
        if self.complex:
            energies = jax.lax.complex(energies, jax.random.normal(jax.random.key(4), (self.k,), self.dtype))
        self.args = model.params, increment, model.points, energies

    @property
    def head(self):
        """The first columns of its lines."""
        precision = "" if self.precision == "highest" else f", {self.precision}"
        return f"| {self.name} | {self.size:,} | {self.k} | {self.dtype}{precision} |"

    def jacobian(self, params, samples):
        """Ours."""
        fn = realify(self.fn) if self.complex else self.fn
        return jacobian(fn, params, samples, precision=self.precision)

    def residual(self, energies):
        """As NetKet scales and centres it; real and imaginary parts beside each other."""
        r = 2 * (energies - jnp.mean(energies)) * self.k**-0.5
        return jnp.stack([r.real, r.imag], axis=-1).reshape(-1) if self.complex else r


def spring(case, params, increment, samples, energies):
    """Ours: the kernel of centred rows."""
    jac = case.jacobian(params, samples).centre().scale(case.k**-0.5)
    r = case.residual(energies)
    z = psd_solve(jac.gram(), r - MOMENTUM * jac.mv(increment), case.damping, "cholesky")
    return jax.tree.map(lambda phi, step: MOMENTUM * phi + step, increment, jac.rmv(z))


def stored(case, params, increment, samples, energies):
    """The same with rows in memory, as vmapped gradients give them."""
    flatten = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]  # noqa: E731
    parts = (lambda z: z.real, lambda z: z.imag) if case.complex else (lambda z: z,)
    rows = [jax.vmap(jax.grad(lambda p, x, f=f: f(case.fn(p, x))), (None, 0))(params, samples) for f in parts]
    J = jnp.stack([jax.vmap(flatten)(part) for part in rows], axis=1)
    J = ((J - jnp.mean(J, axis=0, keepdims=True)) * case.k**-0.5).reshape(-1, J.shape[2])
    phi, unravel = jax.flatten_util.ravel_pytree(increment)
    K = J @ J.T + case.damping * jnp.eye(J.shape[0], dtype=J.dtype)
    return unravel(MOMENTUM * phi + cholesky(K, case.residual(energies) - MOMENTUM * J @ phi) @ J)


def cholesky(A, b):
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(A), b)


class Compiled:
    """An update, compiled for a case."""

    def __init__(self, fn, case):
        self.args = case.args
        self.compiled = jax.jit(partial(fn, case)).lower(*self.args).compile()

    def __call__(self):
        """Run it once."""
        return self.compiled(*self.args)


class NetKet:
    """One of NetKet's jitted updates, called as its driver calls it."""

    def __init__(self, fn, flat, chunk_size, case):
        params, increment, samples, energies = case.args
        flatten = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]  # noqa: E731
        abstract = isinstance(energies, jax.ShapeDtypeStruct)
        old = (jax.eval_shape(flatten, increment) if abstract else flatten(increment)) if flat else increment
        if chunk_size is not None:  # NetKet wants a divisor
            chunk_size = math.gcd(chunk_size, energies.shape[0])
        apply = OnVariables(case.fn, samples.shape[1:])
        flat_samples = jax.eval_shape if abstract else lambda f, x: f(x)
        samples = flat_samples(lambda x: x.reshape(x.shape[0], -1), samples)
        self.fn, self.args = fn, (apply, energies, {"p": params}, {}, samples)
        self.options = {"diag_shift": case.damping, "solver_fn": cholesky, "momentum": MOMENTUM}
        self.options |= {"mode": "complex" if case.complex else "real", "chunk_size": chunk_size}
        self.options["old_updates"] = old if flat else {"p": old}
        if isinstance(fn, partial):  # the timing decorator and a keyword stand before the jitted function
            self.options |= fn.keywords
        self.compiled = getattr(fn, "func", fn).__wrapped__.lower(*self.args, **self.options).compile()

    def __call__(self):
        """Run it once."""
        return self.fn(*self.args, **self.options)[0]["p"]


class OnVariables:
    """A model as NetKet wants it: of a dictionary of parameters, and of many flat samples at once."""

    def __init__(self, fn, shape):
        self.fn = lambda p, x: fn(p, x.reshape(shape))

    def __call__(self, variables, samples):
        """The outputs."""
        return jax.vmap(self.fn, (None, 0))(variables["params"]["p"], samples)


def all_peers():
    """Stored rows, and NetKet's two sample-space updates in the variants a user can choose."""
    peers = {"stored": partial(Compiled, stored)}
    try:
        from netket._src.ngd.sr_srt_common import srt
        from netket._src.ngd.srt_onthefly import srt_onthefly
    except ImportError as reason:
        print(f"NetKet is not importable ({reason}): its rows are left out.\n")
        return peers
    return peers | {
        "srt": partial(NetKet, srt, True, None),
        "onthefly": partial(NetKet, srt_onthefly, False, None),
        "onthefly-128": partial(NetKet, srt_onthefly, False, 128),
    }


LABELS = {
    "stored": "rows stored",
    "srt": "NetKet srt",
    "onthefly": "NetKet srt_onthefly",
    "onthefly-128": "NetKet srt_onthefly, chunks of 128",
}


class Measured:
    """Wall and processor seconds of the median call, peak bytes, the result; nothing if out of memory."""

    def __init__(self, build, repeats):
        self.wall = self.processor = self.bytes = self.result = None
        try:
            start = time.perf_counter()
            run = build()
            self.compile = time.perf_counter() - start
            self.result = jax.block_until_ready(run())
            times = []
            for _ in range(repeats):
                start = time.perf_counter(), time.process_time()
                jax.block_until_ready(run())
                times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
                self.result = None
                return
            raise
        self.wall, self.processor = (sorted(column)[repeats // 2] for column in zip(*times, strict=True))
        self.bytes = peak_bytes(run.compiled)


def peak_bytes(compiled):
    """XLA's account of temporaries and output."""
    analysis = compiled.memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def difference(a, b):
    """Relative difference of two updates."""
    a, b = (jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (a, b))
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))


def updates(cases, peers, options):
    columns = "time, ms | processor, ms | peak, MiB | compile, s | × ours | difference"
    yield f"| model | n | k | dtype | update | {columns} |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for text in cases:
        case = Case(text)
        mine = Measured(lambda: Compiled(spring, case), options.repeats)  # noqa: B023
        if mine.result is None:
            yield f"{case.head} **snapgrad** | out of memory | | | | | |"
            continue
        yield f"{case.head} **snapgrad** | {cost(mine)} | 1 | |"
        ratios = []
        for name, build in peers.items():
            with jax.default_matmul_precision(options.peer_precision):
                theirs = Measured(lambda: build(case), options.repeats)  # noqa: B023
            if theirs.result is None:
                yield f"{case.head} {LABELS[name]} | out of memory | | | | | |"
                continue
            ratios.append(theirs.wall / mine.wall)
            gap = difference(mine.result, theirs.result)
            yield f"{case.head} {LABELS[name]} | {cost(theirs)} | {ratios[-1]:.2f} | {gap:.1e} |"
            theirs.result = None
        if ratios:
            yield f"{case.head} *best of these* | | | | | **{min(ratios):.2f}** | |"
        if options.limit:
            yield f"{case.head} {limit(case, mine.wall)}"


def cost(found):
    times = f"{1e3 * found.wall:.4g} | {1e3 * found.processor:.4g}"
    return f"{times} | {found.bytes / 2**20:.0f} | {found.compile:.1f}"


def limit(case, mine):
    """The least time: the update's multiply-adds at the machine's GEMM rate, and one Cholesky solve."""
    params, _, samples, _ = case.args
    explained = case.jacobian(params, samples).explain()
    rows, side = explained.rows, 8192 if jax.default_backend() == "gpu" else 2048
    A = jax.random.normal(jax.random.key(1), (side, side), case.dtype)
    gemm = jax.jit(partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST))
    rate = 2 * side**3 / Measured(lambda: Ready(gemm, A, A), 5).wall
    K = jnp.eye(rows, dtype=case.dtype) + jnp.ones((rows, rows), case.dtype) / rows
    by_cholesky = jax.jit(partial(psd_solve, damping=case.damping, solver="cholesky"))
    solve = Measured(lambda: Ready(by_cholesky, K, K[0]), 5).wall
    # Forward, backward, J φ and Jᵀ u, and one half of the kernel.
    flops = explained.product_flops + explained.flops
    least = flops / rate + solve
    return (
        f"*limit: {flops / 1e9:.4g} Gflop at {rate / 1e12:.3g} Tflop/s and a solve of {1e3 * solve:.3g} ms* "
        f"| {1e3 * least:.3g} | | | | {least / mine:.2f} | |"
    )


class Ready:
    """A compiled function with its arguments."""

    def __init__(self, fn, *args):
        self.compiled, self.args = fn.lower(*args).compile(), args

    def __call__(self):
        """Run it once."""
        return self.compiled(*self.args)


def memory_only(cases, peers):
    """Peak bytes of a compiled update; nothing is run."""
    yield "| model | n | k | dtype | update | peak, MiB |"
    yield "|---|---|---|---|---|---|"
    for text in cases:
        case = Case(text)
        case.args = jax.eval_shape(lambda: case.args)  # noqa: B023
        yield f"{case.head} **snapgrad** | {peak_bytes(Compiled(spring, case).compiled) / 2**20:.0f} |"
        for name, build in peers.items():
            yield f"{case.head} {LABELS[name]} | {peak_bytes(build(case).compiled) / 2**20:.0f} |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", nargs="*", help="MODEL:SAMPLES:DTYPE[:PRECISION]")
    parser.add_argument("--memory", nargs="*", help="the same, compiled but not run")
    parser.add_argument("--peers", nargs="*", choices=list(LABELS), help="all by default")
    parser.add_argument("--peer-precision", default="highest", choices=["highest", "default"])
    parser.add_argument(
        "--limit", action="store_true", help="compare with the GEMM rate and one Cholesky solve"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", help="file for the tables")
    parser.add_argument("--list", action="store_true", help="name the models")
    options = parser.parse_args()
    if options.list:
        print("\n".join(MODELS))
        return
    if options.case is options.memory is None:
        options.case, options.memory, options.limit = DEFAULT, ["mlp-206k:1024:float32"], True
    peers = all_peers()
    wanted = peers if options.peers is None else options.peers
    peers = {name: peers[name] for name in wanted if name in peers}

    lines = [
        "# Kernel benchmarks",
        "",
        f"`python {' '.join(sys.argv)}`",
        "",
        f"{jax.devices()[0].device_kind} on {platform.machine()}, {os.cpu_count()} cores; "
        + f"JAX {jax.__version__}"
        + (f", NetKet {sys.modules['netket'].__version__}" if "netket" in sys.modules else "")
        + f". Median of {options.repeats} compiled calls; processor time is over all threads, which other "
        "work on the machine does not change (on a GPU it says nothing); peak memory is XLA's account of "
        "temporaries and output; peers run at precision "
        + f"{options.peer_precision}; the difference is that of the updates, relative.",
    ]
    print("\n".join(lines))
    sections = []
    if options.case:
        sections.append(("Full SPRING update", updates(options.case, peers, options)))
    if options.memory:
        sections.append(("Peak memory of the update", memory_only(options.memory, peers)))
    for title, table in sections:
        lines += ["", f"## {title}", ""]
        print("\n".join(lines[-3:]))
        for line in table:
            lines.append(line)
            print(line, flush=True)
    if options.write:
        with open(options.write, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
