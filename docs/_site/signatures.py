"""Signatures of classes whose arguments are their fields: equinox modules and named tuples."""

from typing import Any

import griffe


class FieldsAsArguments(griffe.Extension):
    """Gives a class without an `__init__` the one that its annotated fields make."""

    def on_class_instance(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Called by griffe for each class that it reads."""
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
