"""The one place that knows how JAX writes its programs down; everything else sees names and values.

Tested with JAX 0.10 to 0.12. The names of call-like equations, and what `bind` wants, differ between them.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import equinox as eqx
import jax
from jax.core import Tracer
from jax.core import eval_jaxpr as eval_jaxpr
from jax.extend.core import ClosedJaxpr as ClosedJaxpr
from jax.extend.core import Jaxpr as Jaxpr
from jax.extend.core import JaxprEqn as JaxprEqn
from jax.extend.core import Literal as Literal
from jax.extend.core import Var as Var
from jax.extend.core import unsafe_am_i_under_a_jit_DO_NOT_USE

_CALLS = {"jit", "pjit", "closed_call", "core_call", "core_closed_call", "remat", "remat2", "checkpoint"}
_REMAT = {"remat", "remat2", "checkpoint"}


def is_tracer(value: Any) -> bool:
    """Whether a value belongs to a trace that is under way."""
    return isinstance(value, Tracer)


def shape(atom: Any) -> tuple[int, ...]:
    """The shape of a variable or literal."""
    return atom.aval.shape


def dtype(atom: Any) -> Any:
    """The dtype of a variable or literal."""
    return atom.aval.dtype


def value(literal: Any) -> Any:
    """The number a literal stands for."""
    return literal.val


def called(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The program an equation merely calls (`jit`, `checkpoint`), if it is such an equation."""
    if eqn.primitive.name not in _CALLS:
        return None
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    if inner is None:
        return None
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def call_name(eqn: JaxprEqn) -> str:
    """The name of the function that an equation calls by `jit`; empty for other equations."""
    return str(eqn.params.get("name", "")) if eqn.primitive.name in ("jit", "pjit") else ""


def loop_body(eqn: JaxprEqn) -> ClosedJaxpr:
    """The program of one step of a `scan`."""
    body = eqn.params["jaxpr"]
    return body if isinstance(body, ClosedJaxpr) else ClosedJaxpr(body, ())


def loop_split(eqn: JaxprEqn) -> tuple[int, int]:
    """How many of a `scan`'s operands are constant, and how many are carried."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry, _ = eqn.params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))


def is_recomputation(eqn: JaxprEqn) -> bool:
    """Whether XLA must not merge this call with an earlier one: the backward pass of `jax.checkpoint`."""
    params = eqn.params
    return (
        eqn.primitive.name in _REMAT
        and bool(params.get("differentiated", True))
        and params.get("prevent_cse", True) is not False
    )


def bind(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """The outputs of one equation."""
    params = eqn.primitive.get_bind_params(eqn.params)
    functions, params = params if isinstance(params, tuple) else ((), params)
    with eqn.ctx.manager:
        out = eqn.primitive.bind(*functions, *values, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def inner_programs(eqn: JaxprEqn) -> list[Jaxpr]:
    """Every program held in an equation's parameters."""
    found = []
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, Jaxpr):
                found.append(item)
    return found


def is_reverse_only(eqn: JaxprEqn) -> bool:
    """Whether JAX can differentiate this equation backwards only (`jax.custom_vjp`)."""
    return eqn.primitive.name.startswith("custom_vjp")


def jit(fn: Callable) -> Callable:
    """`equinox.filter_jit`, unless the caller is being compiled already.

    A function that closes over traced values would otherwise stay, with them, in JAX's cache.
    """
    compiled = eqx.filter_jit(fn)

    @wraps(fn)
    def call(*args: Any) -> Any:
        return (fn if unsafe_am_i_under_a_jit_DO_NOT_USE() else compiled)(*args)

    return call


def shard_map(fn: Callable, mesh: Any, in_specs: Any, out_specs: Any) -> Callable:
    """`jax.shard_map` without the check that replicated outputs are: collectives here are explicit.

    Another library may have set a mesh of its own for the whole process, as NetKet does; ours goes before it.
    """
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    @wraps(fn)
    def call(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return mapped(*args)

    return call
