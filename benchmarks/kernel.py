"""One SPRING update, φ ← μφ + Jᵀ(K + λI)⁻¹(r − μJφ), without the Jacobian, against NetKet's with it.

    python benchmarks/kernel.py                                # the two CPU cases, memory, PINN rows
    python benchmarks/kernel.py --case 40,720,720,720,1:2048 --ceilings
    python benchmarks/kernel.py --case 40,5200,5200,5200,5200,1:4096 --dtype float32 --no-peer --ceilings
    python benchmarks/kernel.py --pinn 5,512,3:2048

A case is the layer widths of a tanh network and the number of samples. NetKet may be installed or lie in
a folder on PYTHONPATH; without it only our own times are measured. Pin the BLAS threads
(OPENBLAS_NUM_THREADS=1) on a shared machine. `--write FILE` saves the tables and the command.
"""

import argparse
import itertools
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

from snapgrad.linalg import psd_solve
from snapgrad.operators import jacobian

DAMPING, MOMENTUM = 1e-3, 0.9


def parameters(key, sizes, dtype):
    keys = jax.random.split(key, len(sizes))
    return {
        f"layer{i}": {"kernel": jax.random.normal(k, (a, b), dtype) / a**0.5, "bias": jnp.zeros(b, dtype)}
        for i, (k, (a, b)) in enumerate(zip(keys, itertools.pairwise(sizes), strict=False))
    }


def network(params, x):
    *hidden, last = (params[name] for name in sorted(params, key=lambda name: int(name[5:])))
    for layer in hidden:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return (x @ last["kernel"] + last["bias"])[..., 0]


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def spring(params, increment, samples, energies):
    """Ours: the kernel of centred rows, scaled as NetKet scales them."""
    k = samples.shape[0]
    jac = jacobian(network, params, samples).centre().scale(k**-0.5)
    r = 2 * (energies - jnp.mean(energies)) * k**-0.5
    z = psd_solve(jac.gram(), r - MOMENTUM * jac.mv(increment), DAMPING, "cholesky")
    return jax.tree.map(lambda phi, step: MOMENTUM * phi + step, increment, jac.rmv(z))


class Ours:
    """The update, compiled for some arguments."""

    def __init__(self, fn, args):
        self.args = args
        self.compiled = jax.jit(fn).lower(*args).compile()

    def __call__(self):
        """Run it once."""
        return self.compiled(*self.args)


class NetKet:
    """One of NetKet's jitted updates, called as its driver calls it."""

    def __init__(self, fn, flat, chunk_size, args):
        params, increment, samples, energies = args
        flatten = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]  # noqa: E731
        abstract = isinstance(energies, jax.ShapeDtypeStruct)
        old = (jax.eval_shape(flatten, increment) if abstract else flatten(increment)) if flat else increment
        if chunk_size is not None:  # NetKet wants a divisor
            chunk_size = math.gcd(chunk_size, energies.shape[0])
        self.fn, self.args = fn, (on_variables, energies, params, {}, samples)
        self.options = {"diag_shift": DAMPING, "solver_fn": cholesky, "mode": "real", "momentum": MOMENTUM}
        self.options |= {"old_updates": old, "chunk_size": chunk_size}
        if isinstance(fn, partial):  # the timing decorator and a keyword stand before the jitted function
            self.options |= fn.keywords
        self.compiled = getattr(fn, "func", fn).__wrapped__.lower(*self.args, **self.options).compile()

    def __call__(self):
        """Run it once."""
        return self.fn(*self.args, **self.options)[0]


def netket_modes():
    """NetKet's two sample-space updates, in the variants a user can choose; empty if it is missing."""
    try:
        from netket._src.ngd.sr_srt_common import srt
        from netket._src.ngd.srt_onthefly import srt_onthefly
    except ImportError as reason:
        print(f"NetKet is not importable ({reason}): its rows are left out.\n")
        return {}
    return {
        "srt": partial(NetKet, srt, True, None),
        "srt_onthefly": partial(NetKet, srt_onthefly, False, None),
        "srt_onthefly, chunks of 128": partial(NetKet, srt_onthefly, False, 128),
    }


def on_variables(variables, samples):
    return network(variables["params"], samples)


def cholesky(A, b):
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(A), b)


def measure(build, repeats):
    """Wall and processor seconds of the fastest call, peak bytes, the result; all None if out of memory."""
    try:
        run = build()
        result = jax.block_until_ready(run())
        wall, processor = [], []
        for _ in range(repeats):
            start = time.perf_counter(), time.process_time()
            jax.block_until_ready(run())
            wall.append(time.perf_counter() - start[0])
            processor.append(time.process_time() - start[1])
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
            return None, None, None, None
        raise
    return min(wall), min(processor), peak_bytes(run.compiled), result


def peak_bytes(compiled):
    """XLA's account of temporaries and output."""
    analysis = compiled.memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def problem(sizes, k, dtype):
    key = jax.random.key(0)
    params = parameters(key, sizes, dtype)
    samples = jnp.sign(jax.random.normal(key, (k, sizes[0]), dtype))
    increment = jax.tree.map(lambda p: 1e-2 * jax.random.normal(key, p.shape, p.dtype), params)
    return params, increment, samples, jax.random.normal(key, (k,), dtype)


def difference(a, b):
    """Relative difference of two updates."""
    a, b = (jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (a, b))
    return float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))


def updates(cases, dtypes, peers, repeats, ceilings):
    columns = "time, ms | processor, ms | peak, MiB | × ours (time, processor) | difference"
    yield f"| widths | n | k | dtype | update | {columns} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (sizes, k), dtype in itertools.product(cases, dtypes):
        args = problem(sizes, k, dtype)
        head = f"| {'-'.join(map(str, sizes))} | {count(args[0]):,} | {k} | {dtype} |"
        mine, work, memory, result = measure(lambda: Ours(spring, args), repeats)  # noqa: B023
        if mine is None:
            yield f"{head} **snapgrad** | out of memory | | | | |"
            continue
        yield f"{head} **snapgrad** | {1e3 * mine:.4g} | {1e3 * work:.4g} | {memory / 2**20:.0f} | 1 | |"
        others = []
        for name, build in peers.items():
            seconds, labour, memory, theirs = measure(lambda: build(args), repeats)  # noqa: B023
            if seconds is None:
                yield f"{head} {name} | out of memory | | | | |"
                continue
            others.append((seconds / mine, labour / work))
            cost = f"{1e3 * seconds:.4g} | {1e3 * labour:.4g} | {memory / 2**20:.0f}"
            ratio = "{:.1f}, {:.1f}".format(*others[-1])
            yield f"{head} {name} | {cost} | {ratio} | {difference(result, theirs):.1e} |"
            del theirs
        if others:
            wall, processor = (min(ratios) for ratios in zip(*others, strict=True))
            yield f"{head} *best of NetKet* | | | | **{wall:.1f}**, {processor:.1f} | |"
        if ceilings:
            yield f"{head} {ceiling(sizes, k, dtype, mine)}"


def ceiling(sizes, k, dtype, mine):
    """The least time: the update's multiply-adds at the machine's GEMM rate, and one Cholesky solve."""
    side = 8192 if jax.default_backend() == "gpu" else 2048
    A = jax.random.normal(jax.random.key(1), (side, side), dtype)
    gemm = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    rate = 2 * side**3 / measure(lambda: Ours(gemm, (A, A)), 5)[0]
    K = jnp.eye(k, dtype=dtype) + jnp.ones((k, k), dtype) / k
    by_cholesky = partial(psd_solve, damping=DAMPING, solver="cholesky")
    solve = measure(lambda: Ours(by_cholesky, (K, K[0])), 5)[0]
    pairs = list(itertools.pairwise(sizes))
    # Forward, backward, J φ and Jᵀ u: one matrix product each a layer; half of the symmetric kernel.
    flops = 8 * k * sum(a * b for a, b in pairs) + k * k * sum(a + b for a, b in pairs)
    least = flops / rate + solve
    return (
        f"*limit: {flops / 1e9:.4g} Gflop at {rate / 1e12:.3g} Tflop/s and a solve of {1e3 * solve:.3g} ms* "
        f"| {1e3 * least:.3g} | | | {least / mine:.2f} | |"
    )


def laplacian_forward(params, x):
    """Δu at one point: value, d slopes and the Laplacian pushed through each layer together."""
    layers = [params[name] for name in sorted(params, key=lambda name: int(name[5:]))]
    h = jnp.concatenate([x[None], jnp.eye(x.size, dtype=x.dtype), jnp.zeros_like(x)[None]])
    for i, layer in enumerate(layers):
        h = h @ layer["kernel"]
        value, slope, second = h[:1] + layer["bias"], h[1:-1], h[-1:]
        if i < len(layers) - 1:
            t = jnp.tanh(value)
            d1 = 1 - t**2
            second = d1 * second - 2 * t * d1 * jnp.sum(slope**2, axis=0, keepdims=True)
            value, slope = t, d1 * slope
        h = jnp.concatenate([value, slope, second])
    return h[-1, 0]


def laplacian_hvp(params, x):
    """The same, as vmapped Hessian-vector products."""
    gradient = jax.grad(network, argnums=1)
    along = lambda v: v @ jax.jvp(lambda x: gradient(params, x), (x,), (v,))[1]  # noqa: E731
    return jnp.sum(jax.vmap(along)(jnp.eye(x.size, dtype=x.dtype)))


def structured(fn, params, points):
    """The kernel from factors."""
    return jacobian(fn, params, points).gram()


def materialised(fn, params, points):
    """The kernel from stored rows."""
    with jax.default_matmul_precision("highest"):
        rows = jax.vmap(jax.grad(fn), (None, 0))(params, points)
        blocks = [leaf.reshape(points.shape[0], -1) for leaf in jax.tree.leaves(rows)]
        return sum(block @ block.T for block in blocks)


def pinn_rows(cases, dtypes, repeats):
    yield "| Laplacian | d | width | n | k | dtype | kernel | time, ms | peak, MiB | × ours | difference |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    forms = {"forward": laplacian_forward, "Hessian products": laplacian_hvp}
    for (shape, k), dtype, form in itertools.product(cases, dtypes, forms):
        d, width, depth = shape
        params = parameters(jax.random.key(0), [d, *[width] * depth, 1], dtype)
        points = jax.random.uniform(jax.random.key(1), (k, d), dtype)
        fn = forms[form]
        head = f"| {form} | {d} | {width} | {count(params):,} | {k} | {dtype} |"
        args = params, points
        mine, _, memory, K = measure(lambda: Ours(partial(structured, fn), args), repeats)  # noqa: B023
        yield f"{head} **snapgrad** | {1e3 * mine:.4g} | {memory / 2**20:.0f} | 1 | |"
        theirs, _, memory, dense = measure(lambda: Ours(partial(materialised, fn), args), repeats)  # noqa: B023
        if theirs is None:
            yield f"{head} J formed | out of memory | | | |"
        else:
            gap = difference(K, dense)
            cost = f"{1e3 * theirs:.4g} | {memory / 2**20:.0f} | {theirs / mine:.1f}"
            yield f"{head} J formed | {cost} | {gap:.1e} |"


def memory_only(cases, peers):
    """Peak bytes of a compiled float32 update; nothing is run."""
    yield "| widths | n | k | dtype | update | peak, MiB |"
    yield "|---|---|---|---|---|---|"
    for sizes, k in cases:
        args = jax.eval_shape(partial(problem, sizes, k, "float32"))
        head = f"| {'-'.join(map(str, sizes))} | {count(args[0]):,} | {k} | float32 |"
        for name, build in {"**snapgrad**": partial(Ours, spring), **peers}.items():
            yield f"{head} {name} | {peak_bytes(build(args).compiled) / 2**20:.0f} |"


def case(text):
    widths, k = text.split(":")
    return [int(w) for w in widths.split(",")], int(k)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--case", nargs="*", type=case, help="WIDTHS:SAMPLES, for example 40,720,720,720,1:256"
    )
    parser.add_argument("--memory", nargs="*", type=case, help="the same, compiled in float32 but not run")
    parser.add_argument("--pinn", nargs="*", type=case, help="DIMENSION,WIDTH,DEPTH:POINTS")
    parser.add_argument("--dtype", nargs="*", default=["float64"], choices=["float32", "float64"])
    parser.add_argument("--no-peer", action="store_true", help="leave NetKet out")
    parser.add_argument(
        "--ceilings", action="store_true", help="compare with the GEMM rate and one Cholesky solve"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", help="file for the tables")
    options = parser.parse_args()
    if options.case is options.memory is options.pinn is None:
        options.case = [case("40,256,256,256,1:512"), case("40,720,720,720,1:256")]
        options.memory = [case("40,310,310,310,1:1024")]
        options.pinn = [case("5,128,3:512")]
    peers = {} if options.no_peer else netket_modes()

    lines = [
        "# Kernel benchmarks",
        "",
        f"`python {' '.join(sys.argv)}`",
        "",
        f"{jax.devices()[0].device_kind} on {platform.machine()}, {os.cpu_count()} cores; "
        + f"JAX {jax.__version__}"
        + (f", NetKet {sys.modules['netket'].__version__}" if "netket" in sys.modules else "")
        + f". Fastest of {options.repeats} compiled calls; processor time is over all threads, which other "
        "work on the machine does not change (on a GPU it says nothing); peak memory is XLA's account of "
        "temporaries and output.",
    ]
    print("\n".join(lines))
    sections = []
    if options.case:
        table = updates(options.case, options.dtype, peers, options.repeats, options.ceilings)
        sections.append(("Full SPRING update", table))
    if options.memory:
        sections.append(("Peak memory of the update", memory_only(options.memory, peers)))
    if options.pinn:
        sections.append(("Kernel of PINN rows", pinn_rows(options.pinn, options.dtype, options.repeats)))
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
