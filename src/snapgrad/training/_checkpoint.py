"""Trees of arrays in files: written atomically, read without pickle, checked before they are used."""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from .._files import write_atomic

FORMAT = 1
"""Raised whenever files of an earlier format can no longer be read."""
_MAGIC = b"snapgrad checkpoint\n"


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
    """A line of magic, a line of JSON (`about`, the leaves and a checksum), and the arrays one by one."""
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


def read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a checkpoint and its arrays as bytes, checked for damage."""
    content = path.read_bytes()
    if not content.startswith(_MAGIC):
        raise ValueError(f"{path} is not a snapgrad checkpoint.")
    line, _, arrays = content[len(_MAGIC) :].partition(b"\n")
    try:
        header = json.loads(line)
        form, digest = header["format"], header["sha256"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged: its header cannot be read.") from None
    if form != FORMAT:
        raise ValueError(
            f"{path} has checkpoint format {form}, and this version of snapgrad reads format {FORMAT}: "
            f"read it with the version that wrote it."
        )
    if hashlib.sha256(arrays).hexdigest() != digest:
        raise ValueError(f"{path} is damaged or cut off: its checksum is not the stored one.")
    return header, arrays


def read_checkpoint(path: Path, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """The stored tree and what was stored about it."""
    header, arrays = read_header(path)
    _same_leaves(path, header["leaves"], _described(like))
    numbers = _numbers(like)
    try:
        tree = eqx.tree_deserialise_leaves(io.BytesIO(arrays), numbers)
    except RuntimeError as error:  # what is there is not the array that the header promises
        raise ValueError(f"{path} is damaged: its arrays cannot be read ({error}).") from None
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
