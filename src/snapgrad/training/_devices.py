"""Training on several devices: what is spread over them, what each has whole, and what processes agree on."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

_FAILED, _NOTHING, _TEXT = range(3)


def spread(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Within a compiled step: arrays shared out by their first axis, even where it does not divide evenly."""
    if mesh is None:
        return tree
    by_rows = NamedSharding(mesh, P(mesh.axis_names[0]))

    def one(leaf: Any) -> Any:
        plain = eqx.is_array(leaf) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        shared = plain and leaf.ndim > 0 and leaf.shape[0] >= mesh.size
        return jax.lax.with_sharding_constraint(leaf, by_rows) if shared else leaf

    return jax.tree.map(one, tree)


def gathered(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Within a compiled step: every array whole on every device."""
    if mesh is None:
        return tree
    whole = NamedSharding(mesh, P())
    return jax.tree.map(
        lambda leaf: jax.lax.with_sharding_constraint(leaf, whole) if eqx.is_array(leaf) else leaf, tree
    )


def placed(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """The arrays of a tree on every device of the mesh, those of other processes included."""
    if mesh is None:
        return tree
    arrays, rest = eqx.partition(tree, eqx.is_array)
    whole = NamedSharding(mesh, P())
    if whole.is_fully_addressable:
        return eqx.combine(jax.device_put(arrays, whole), rest)
    # Each process brings its own copy: `device_put` would compare them, one leaf after the other.
    return eqx.combine(jax.jit(lambda tree: tree, out_shardings=whole)(jax.tree.map(_free, arrays)), rest)


def _free(leaf: jax.Array) -> Any:
    """The array without a device of its own."""
    if not isinstance(leaf, jax.Array) or not leaf.committed or not leaf.is_fully_addressable:
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_free(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
    return np.asarray(leaf)


def local(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Arrays that every device has whole, as arrays of one device of this process."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf, tree)


def within(mesh: Mesh | None) -> AbstractContextManager[Any]:
    """A context in which programs are of this mesh, whatever others have set for the whole process."""
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


class FirstProcessError(RuntimeError):
    """Something went wrong on the first process, which says so itself; this is what the others say.

    **Arguments:** `words`, those of the first process.

    ```python
    try:
        sg.training.Team(None).told(lambda: None)
    except sg.training.FirstProcessError as error:
        print(error)
    ```
    """

    def __init__(self, words: str):
        super().__init__(f"the first process of this run failed: {words}")


class Team:
    """The processes whose devices a mesh holds. The first one reads, writes and keeps the time for all.

    **Arguments:**

    - `mesh`: devices of all processes, or of this one alone, else `ValueError`: others could not follow. None
      is this process alone.

    **Attributes:** `leads`, whether this is the first process, and `several`, whether there are others.

    ```python
    team = sg.training.Team(jax.make_mesh((jax.device_count(),), ("rows",)))
    if team.leads:
        print("only once, on however many processes")
    team.told(lambda: "what the first process reads from a file")       # everywhere
    team.agree(0.3)                                                     # the clock of the first process
    ```
    """

    def __init__(self, mesh: Mesh | None):
        here = jax.process_index() if mesh is not None else 0
        owners = {device.process_index for device in mesh.devices.flat} if mesh is not None else {here}
        self.several = len(owners) > 1
        self.leads = not self.several or here == 0
        if owners != {here} and len(owners) < jax.process_count():
            raise ValueError(
                f"`mesh` must hold devices of all {jax.process_count()} processes, or of this one alone "
                f"(process {here}); got devices of {sorted(owners)}."
            )

    def agree(self, *numbers: float) -> tuple[float, ...]:
        """Returns the numbers that the first process gives, on all processes."""
        if not self.several:
            return numbers
        return tuple(multihost_utils.broadcast_one_to_all(np.array(numbers, float)).tolist())

    @contextmanager
    def together(self) -> Iterator[Callable[[], None]]:
        """A context in which interruptions wait until all processes ask at the same place, by calling what it
        yields. They then come to all.

        One that left on its own would let the others wait for it for minutes.
        """
        if not self.several or threading.current_thread() is not threading.main_thread():
            yield lambda: None
            return
        came: list[int] = []
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, lambda number, _: came.append(number)) for kind in kinds}

        def restore() -> None:
            for kind, handler in before.items():
                signal.signal(kind, handler)

        def asked() -> None:
            number = int(np.max(multihost_utils.process_allgather(np.array(max(came, default=0)))))
            if number:
                restore()
                signal.raise_signal(number)

        try:
            yield asked
        finally:
            restore()

    def told(self, do: Callable[[], str | None]) -> str | None:
        """Calls `do` on the first process alone, and returns on all of them what it returned there.

        An error that it raises is raised on all.
        """
        if not self.several:
            return do()
        failure: Exception | None = None
        text = None
        if self.leads:
            try:
                text = do()
            except Exception as error:  # raised again below, once the others know
                failure, text = error, str(error)
        content = (text or "").encode()
        kind = _FAILED if failure is not None else _NOTHING if text is None else _TEXT
        kind, length = multihost_utils.broadcast_one_to_all(np.array([kind, len(content)])).tolist()
        content = np.frombuffer(content if self.leads else bytes(length), np.uint8)
        text = np.asarray(multihost_utils.broadcast_one_to_all(content), np.uint8).tobytes().decode()
        if failure is not None:
            raise failure
        if kind == _FAILED:
            raise FirstProcessError(text or "")
        return None if kind == _NOTHING else text

    def shared(self, tree: PyTree) -> PyTree:
        """Returns a tree with its arrays as the first process has them."""
        if not self.several:
            return tree
        arrays, rest = eqx.partition(tree, eqx.is_array)
        return eqx.combine(jax.tree.map(jnp.asarray, multihost_utils.broadcast_one_to_all(arrays)), rest)
