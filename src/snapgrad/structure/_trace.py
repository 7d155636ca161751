"""The gradient of one row as a program: traced once, evaluated for the values a plan wants from it.

`row_gradient` traces `(θ, x, c) ↦ cᵀ ∂f(θ, x)/∂θ` with JAX's own reverse mode, so custom derivative
rules, casts and rematerialisation are already in it. A `Program` is such a program without nested calls,
plus a list of wanted intermediate values; loops (`scan`) keep a program of their own for their body.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
from jax import lax

from . import compat
from .compat import ClosedJaxpr, JaxprEqn, Literal, Var


class Ref(NamedTuple):
    """A value in a program, perhaps inside a loop of the program that is run."""

    program: "Program"
    atom: Any

    def want(self) -> "Ref":
        """Ask for the value whenever the program is run."""
        if not any(atom is self.atom for atom in self.program.wanted):
            self.program.wanted.append(self.atom)
        return self

    @property
    def marked(self) -> bool:
        """Whether it depends on the inputs that the program was told to mark."""
        return isinstance(self.atom, Var) and self.atom in self.program.marked


class Captured(NamedTuple):
    """The wanted values of a program and, by equation, those of its loops (stacked on a leading axis)."""

    values: list[Any]
    loops: dict[int, "Captured"]

    def get(self, ref: Ref) -> Any:
        """The value of a reference that was wanted."""
        node = self
        for index in ref.program.path:
            node = node.loops[index]
        return next(v for a, v in zip(ref.program.wanted, node.values, strict=True) if a is ref.atom)


class Taken(NamedTuple):
    """Some of the values that were captured, by themselves."""

    refs: Sequence[Ref]
    values: Sequence[Any]

    def get(self, ref: Ref) -> Any:
        """The value of one of the references."""
        return next(v for known, v in zip(self.refs, self.values, strict=True) if known.atom is ref.atom)


class Program:
    """A jaxpr without nested calls, and the list of values that are wanted from it."""

    def __init__(self, closed: ClosedJaxpr, path: tuple[int, ...] = ()):
        flat = jax.make_jaxpr(partial(_inlined, closed))(*_arguments(closed))
        self.jaxpr, self.consts, self.path = flat.jaxpr, flat.consts, path
        self.producer = {var: i for i, eqn in enumerate(self.eqns) for var in eqn.outvars}
        self.wanted: list[Any] = []
        self.loops: dict[int, Program] = {}
        self.sums: set[int] = set()  # carries of this loop body that only add up
        self.marked: set[Var] = set()  # variables that depend on the inputs given to `mark`

    @property
    def eqns(self) -> Sequence[JaxprEqn]:
        """The equations, in order."""
        return self.jaxpr.eqns

    @property
    def traced(self) -> bool:
        """Whether it holds values of a trace that is under way, over which the function was closed."""
        return any(compat.is_tracer(x) for x in self.consts) or any(
            loop.traced for loop in self.loops.values()
        )

    @property
    def active(self) -> bool:
        """Whether anything is wanted from here or from a loop inside."""
        return bool(self.wanted) or any(loop.active for loop in self.loops.values())

    def is_active_loop(self, index: int) -> bool:
        """Whether something is wanted from inside this equation."""
        return index in self.loops and self.loops[index].active

    def loop(self, index: int) -> "Program":
        """The body of the `scan` at this equation, as a program of its own."""
        if index not in self.loops:
            self.loops[index] = Program(compat.loop_body(self.eqns[index]), (*self.path, index))
        return self.loops[index]

    def made_by(self, atom: Any) -> JaxprEqn | None:
        """The equation that a variable is an output of."""
        index = None if isinstance(atom, Literal) else self.producer.get(atom)
        return None if index is None else self.eqns[index]

    def consumers(self, var: Var) -> int:
        """How often a variable is read."""
        reads = sum(atom is var for eqn in self.eqns for atom in eqn.invars)
        return reads + sum(atom is var for atom in self.jaxpr.outvars)

    def mark(self, start: Sequence[bool]) -> None:
        """Find the variables that depend on the inputs marked in `start`."""
        self.marked = {var for var, mark in zip(self.jaxpr.invars, start, strict=True) if mark}
        for index, eqn in enumerate(self.eqns):
            marks = [isinstance(atom, Var) and atom in self.marked for atom in eqn.invars]
            if any(marks):
                outs = self._mark_loop(index, marks) if index in self.loops else [True] * len(eqn.outvars)
                self.marked |= {var for var, mark in zip(eqn.outvars, outs, strict=True) if mark}

    def _mark_loop(self, index: int, marks: list[bool]) -> list[bool]:
        body, (consts, carry) = self.loops[index], compat.loop_split(self.eqns[index])
        while True:  # a carry may spread the mark to others: at most one round each
            body.mark(marks)
            outs = [isinstance(v, Var) and v in body.marked for v in body.jaxpr.outvars]
            spread = [a or b for a, b in zip(marks[consts : consts + carry], outs[:carry], strict=True)]
            if spread == marks[consts : consts + carry]:
                return outs
            marks = [*marks[:consts], *spread, *marks[consts + carry :]]

    def workspace(self) -> int:
        """The most numbers alive at once while the program is run equation by equation."""
        needed = self._needed(())
        last = {a: i for i, eqn in enumerate(self.eqns) for a in eqn.invars if isinstance(a, Var)}
        forever = {a for a in self.wanted if isinstance(a, Var)}
        alive, most = 0, 0
        ends: dict[int, int] = {}
        for index, eqn in enumerate(self.eqns):
            if not (self.is_active_loop(index) or any(var in needed for var in eqn.outvars)):
                continue
            for var in eqn.outvars:
                alive += prod(compat.shape(var))
                if var not in forever:
                    ends[last.get(var, index)] = ends.get(last.get(var, index), 0) + prod(compat.shape(var))
            inside = 0
            if self.is_active_loop(index):
                body = self.loops[index]
                inside = body.workspace()
                alive += eqn.params["length"] * sum(prod(compat.shape(a)) for a in body.wanted)
            most = max(most, alive + inside)
            alive -= ends.pop(index, 0)
        return most

    def run(self, *args: Any) -> Captured:
        """Run the program and return the values that are wanted from it."""
        return self._run(args, ())[1]

    def _run(self, args: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], Captured]:
        needed = self._needed(outputs)
        env = dict(zip(self.jaxpr.constvars, self.consts, strict=True))
        env |= dict(zip(self.jaxpr.invars, args, strict=True))
        read = partial(_read, env)
        loops: dict[int, Captured] = {}
        for index, eqn in enumerate(self.eqns):
            if self.is_active_loop(index):
                keep = [var in needed for var in eqn.outvars]
                outs, loops[index] = _run_loop(eqn, self.loops[index], [read(a) for a in eqn.invars], keep)
            elif any(var in needed for var in eqn.outvars):
                outs = compat.bind(eqn, [read(a) for a in eqn.invars])
            else:
                continue
            env |= dict(zip(eqn.outvars, outs, strict=True))
        return [read(a) for a in outputs], Captured([read(a) for a in self.wanted], loops)

    def _needed(self, outputs: Sequence[Any]) -> set[Var]:
        needed = {atom for atom in (*self.wanted, *outputs) if isinstance(atom, Var)}
        for index in reversed(range(len(self.eqns))):
            eqn = self.eqns[index]
            if self.is_active_loop(index) or any(var in needed for var in eqn.outvars):
                needed |= {atom for atom in eqn.invars if isinstance(atom, Var)}
        return needed


def row_gradient(fn: Callable, params: list[Any], x: Any, cotangent: Any) -> Program:
    """The program `(params, x, c) ↦ cᵀ ∂f/∂params` of one point, from abstract arguments."""

    def gradient(params, x, c):
        return jax.vjp(lambda p: fn(p, x), params)[1](c)[0]

    return Program(jax.make_jaxpr(gradient)(params, x, cotangent))


def reverse_only(fn: Callable, *args: Any) -> bool:
    """Whether `fn` holds a `custom_vjp`, which forward mode refuses."""

    def search(jaxpr) -> bool:
        return any(
            compat.is_reverse_only(eqn) or any(map(search, compat.inner_programs(eqn))) for eqn in jaxpr.eqns
        )

    return search(jax.make_jaxpr(fn)(*args).jaxpr)


def _inlined(closed: ClosedJaxpr, *args: Any) -> list[Any]:
    """Evaluate with every `jit` and `checkpoint` written out."""
    env = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env |= dict(zip(closed.jaxpr.invars, args, strict=True))
    for eqn in closed.jaxpr.eqns:
        values = [_read(env, atom) for atom in eqn.invars]
        inner = compat.called(eqn)
        if inner is None:
            outs = compat.bind(eqn, values)
        else:
            if compat.is_recomputation(eqn):  # keeps the memory that `checkpoint` was asked to save
                values = lax.optimization_barrier(values)
            outs = _inlined(inner, *values)
        env |= dict(zip(eqn.outvars, outs, strict=True))
    return [_read(env, atom) for atom in closed.jaxpr.outvars]


def _run_loop(
    eqn: JaxprEqn, body: Program, values: list[Any], keep: list[bool]
) -> tuple[list[Any], Captured]:
    """A `scan` that also stacks what is wanted from its body, without the sums nobody reads."""
    consts, carry = compat.loop_split(eqn)
    outvars = body.jaxpr.outvars
    idle = {i for i in body.sums if not keep[i]}
    outputs = [
        var for i, var in enumerate(outvars) if (i < carry and i not in idle) or (i >= carry and keep[i])
    ]

    def step(state, x):
        outs, captured = body._run([*values[:consts], *state, *x], outputs)
        outs = iter(outs)
        state = [old if i in idle else next(outs) for i, old in enumerate(state)]
        return state, (list(outs), captured)

    state, (ys, captured) = lax.scan(
        step,
        values[consts : consts + carry],
        values[consts + carry :],
        length=eqn.params["length"],
        reverse=eqn.params["reverse"],
        unroll=eqn.params["unroll"],
    )
    ys = iter(ys)
    return [*state, *(next(ys) if k else None for k in keep[carry:])], captured


def _arguments(closed: ClosedJaxpr) -> list[jax.ShapeDtypeStruct]:
    return [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
        for v in closed.jaxpr.invars
    ]


def _read(env: dict, atom: Any) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]
