"""How the reference reads docstrings and classes: formulas stay as they are, fields are arguments."""

import re
from typing import Any

import griffe


class FieldsAsArguments(griffe.Extension):
    """Gives equinox modules and named tuples without an `__init__` the one that their fields make."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called by griffe for each class that it has read."""
        del kwargs
        bases = {str(base).rpartition(".")[2] for base in cls.bases}
        if "__init__" in cls.members or not (bases & {"Module", "NamedTuple"} or _abstract(bases)):
            return
        fields = [m for m in cls.members.values() if m.is_attribute and "property" not in m.labels]
        fields = [
            field for field in fields if field.annotation is not None and not field.name.startswith("_")
        ]
        if not fields:
            return
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for field in fields:
            parameters.append(
                griffe.Parameter(
                    field.name,
                    annotation=field.annotation,
                    default=_default(field.value),
                    kind=griffe.ParameterKind.positional_or_keyword,
                )
            )
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters)))


class WhatMayBeGiven(griffe.Extension):
    """Shows `Given[ArrayLike, "m n"]` as `Float[ArrayLike, "m n"]`, `Given[Callable, ""]` as `Callable`."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Called by griffe once all is read: only then does a function know its overloads."""
        del kwargs
        self._show(pkg)

    def _show(self, parent: Any) -> None:
        for member in parent.members.values():
            if member.is_alias:
                continue
            if member.is_function:
                for one in (member, *(member.overloads or ())):
                    for parameter in one.parameters:
                        parameter.annotation = _given(parameter.annotation)
            elif member.is_module or member.is_class:
                self._show(member)


def _given(annotation: Any) -> Any:
    if isinstance(annotation, griffe.ExprBinOp):
        annotation.left, annotation.right = _given(annotation.left), _given(annotation.right)
    if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Given":
        if "ArrayLike" not in str(annotation.slice):
            return annotation.slice.elements[0]
        annotation.left = "Float"
    elif isinstance(annotation, griffe.ExprSubscript):
        annotation.slice = _given(annotation.slice)
    return annotation


class Formulas(griffe.Extension):
    """Keeps the star of θ* from being read as emphasis."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each object that it reads."""
        del kwargs
        if obj.docstring is not None:
            parts = re.split(r"(```.*?```|`[^`]*`)", obj.docstring.value, flags=re.DOTALL)
            parts[::2] = [re.sub(r"(?<![\w*])(θ|[a-z])\*(?!\*)", r"\1\\*", part) for part in parts[::2]]
            obj.docstring.value = "".join(parts)


def _abstract(bases: set[str]) -> bool:
    return any(base.startswith("Abstract") for base in bases)


def _default(value: Any) -> Any:
    """What a field is if nothing is given: `eqx.field(default=…)` is unpacked."""
    if not (isinstance(value, griffe.ExprCall) and str(value.function).endswith("field")):
        return value
    for argument in value.arguments:
        if isinstance(argument, griffe.ExprKeyword) and argument.name == "default":
            return argument.value
        if isinstance(argument, griffe.ExprKeyword) and argument.name == "default_factory":
            return f"{argument.value}()"
    return None
