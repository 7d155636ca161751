"""What the tests of methods share: linearisations that are exact, and one compiled step for all of them."""

import equinox as eqx
import jax
import jax.numpy as jnp

import snapgrad as sg


def affine(residual, jacobian):
    """A linearisation that is exact: the residual after a step is r − J · step."""
    residual = jnp.asarray(residual)
    return sg.Linearisation(residual, jacobian, jax.tree_util.Partial(after_step, residual, jacobian))


def after_step(residual, jacobian, step):
    return residual - jacobian.mv(step)


@eqx.filter_jit
def take(method, lin, state):
    """`method.direction`, compiled once for each method and shape; the numbers of a method are arguments."""
    return method.direction(lin, state)
