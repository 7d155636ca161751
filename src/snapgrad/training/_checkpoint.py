"""Trees of arrays in files: written atomically, read without pickle, checked before they are used."""

import hashlib
import io
import json
import os
from math import prod
from pathlib import Path
from typing import IO, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .._files import write_atomic

FORMAT = 1
"""Raised whenever files of an earlier format can no longer be read."""
_MAGIC = b"snapgrad checkpoint\n"
_NPY_HEADER = 2**12  # bytes, more than one of NumPy ever takes


def save(path: str | os.PathLike[str], tree: PyTree) -> None:
    """Stores the arrays of a tree, such as trained parameters or the `state` of a result, in one file.

    The file appears whole or not at all. Functions and other leaves that are not arrays or numbers are not
    stored: `sg.load` takes them from the tree that it is given.

    **Arguments:**

    - `path`: where; folders are made as needed.
    - `tree`: any pytree of arrays and numbers.

    `OSError` if the file cannot be written; what was there before is then unharmed.

    ```python
    params = {"w": jnp.ones(4)}
    sg.save("model.snap", params)
    params = sg.load("model.snap", like=params)
    ```
    """
    write_checkpoint(Path(path), tree, {})


def load(path: str | os.PathLike[str], like: PyTree) -> PyTree:
    """Reads a file of `sg.save` into a tree of the same structure.

    **Arguments:**

    - `path`: the file.
    - `like`: a tree with the structure, shapes and dtypes of the stored one, for example fresh parameters.

    **Returns:** a tree like `like` with the stored numbers. `ValueError` if the file is damaged, is not one
    of ours, was written by a later version, or holds a tree of other structure, shapes or dtypes; the message
    names the first difference. `FileNotFoundError` if there is none.

    ```python
    sg.save("weights.snap", {"w": jnp.ones(3)})
    weights = sg.load("weights.snap", like={"w": jnp.zeros(3)})
    ```
    """
    return read_checkpoint(Path(path), like)[0]


def write_checkpoint(path: Path, tree: PyTree, about: dict[str, Any]) -> None:
    """Writes a checkpoint, whole or not at all: a line of magic, a line of JSON, and the arrays one by one.

    **Arguments:**

    - `path`: the file; its folder must exist.
    - `tree`: the arrays.
    - `about`: what JSON can hold, stored beside the leaves' shapes and a checksum.

    ```python
    from pathlib import Path
    sg.training.write_checkpoint(Path("a.snap"), {"w": jnp.ones(3)}, {"step": 7})
    ```
    """
    buffer = io.BytesIO()
    eqx.tree_serialise_leaves(buffer, _numbers(tree))
    arrays = buffer.getvalue()
    header = {
        "format": FORMAT,
        "leaves": _described(tree),
        "sha256": hashlib.sha256(arrays).hexdigest(),
        "about": about,
    }
    write_atomic(path, _MAGIC + json.dumps(header).encode() + b"\n" + arrays)


def read_header(path: Path) -> dict[str, Any]:
    """Returns the header of the checkpoint at `path`, checked for damage; arrays are left where they are.

    `ValueError` says what is wrong with the file.

    ```python
    from pathlib import Path
    sg.training.write_checkpoint(Path("a.snap"), {"w": jnp.ones(3)}, {"step": 7})
    sg.training.read_header(Path("a.snap"))["about"]           # {"step": 7}
    ```
    """
    with path.open("rb") as file:
        return _header(path, file)


def _header(path: Path, file: IO[bytes]) -> dict[str, Any]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError(f"{path} is not a snapgrad checkpoint.")
    try:
        header = json.loads(file.readline())
        form, leaves = header["format"], header["leaves"]
        sound = isinstance(header["sha256"], str) and isinstance(header["about"], dict)
        sound &= all(
            isinstance(name, str) and isinstance(kind, str) and all(type(n) is int and n >= 0 for n in shape)
            for name, shape, kind in (leaves if form == FORMAT else ())
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        header, sound, form = {}, False, FORMAT
    if form != FORMAT:
        raise ValueError(
            f"{path} has checkpoint format {form}, and this version of snapgrad reads format {FORMAT}: "
            f"read it with the version that wrote it."
        )
    if not sound:
        raise ValueError(f"{path} is damaged: its header cannot be read.")
    return header


def read_checkpoint(path: Path, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Returns the tree stored at `path` and what was stored about it.

    `like` is a tree of the same structure, shapes and dtypes; `ValueError` names the first difference.

    ```python
    from pathlib import Path
    sg.training.write_checkpoint(Path("a.snap"), {"w": jnp.ones(3)}, {"step": 7})
    tree, about = sg.training.read_checkpoint(Path("a.snap"), like={"w": jnp.zeros(3)})
    ```
    """
    with path.open("rb") as file:
        header = _header(path, file)
        # Before anything is read, however large the file says it is.
        _same_leaves(path, header["leaves"], _described(like))
        most = sum(16 * prod(shape) + _NPY_HEADER for _, shape, _ in header["leaves"])
        arrays = file.read(most + 1)
    if hashlib.sha256(arrays).hexdigest() != header["sha256"]:
        raise ValueError(f"{path} is damaged or cut off: its checksum is not the stored one.")
    numbers = _numbers(like)
    try:
        tree = eqx.tree_deserialise_leaves(io.BytesIO(arrays), numbers)
    except Exception as error:  # what is there is not the array that the header promises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is damaged: its arrays cannot be read ({reason}).") from None
    tree = jax.tree.map(
        lambda new, old: np.asarray(new) if isinstance(old, np.ndarray) else new, tree, numbers
    )
    return eqx.combine(tree, like), header["about"]


def _is_number(leaf: Any) -> bool:
    return eqx.is_array_like(leaf) or isinstance(leaf, np.generic | np.ndarray)


def _numbers(tree: PyTree) -> PyTree:
    return eqx.filter(tree, _is_number)


def _described(tree: PyTree) -> list[list[Any]]:
    """Path, shape and dtype of every array or number of a tree."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(_numbers(tree)):
        array = eqx.is_array(leaf) or isinstance(leaf, np.generic | np.ndarray)
        kind = str(leaf.dtype) if array else type(leaf).__name__
        found.append([jax.tree_util.keystr(path), list(np.shape(leaf)), kind])
    return found


def _same_leaves(path: Path, stored: list[list[Any]], wanted: list[list[Any]]) -> None:
    for old, new in zip(stored, wanted, strict=False):
        if old != new:
            raise ValueError(
                f"{path} does not fit `like`: it holds {_words(old)}, where {_words(new)} is wanted."
            )
    if len(stored) != len(wanted):
        name = _words((stored if len(stored) > len(wanted) else wanted)[min(len(stored), len(wanted))])
        raise ValueError(
            f"{path} does not fit `like`: it holds {len(stored)} arrays, where {len(wanted)} are wanted; the "
            f"first without a partner is {name}."
        )


def _words(leaf: list[Any]) -> str:
    name, shape, kind = leaf
    return f"{name or 'one array'} of shape {tuple(shape)} and type {kind}"
