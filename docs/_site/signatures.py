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
