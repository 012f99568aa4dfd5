"""The table of options: static types, defaults and who takes what say the same."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from itertools import chain
from typing import Any, get_args, get_type_hints

import pytest

import ksieve
from ksieve.api import SelectOptions
from ksieve.core import arguments
from ksieve.core.groups import GROUPS
from ksieve.core.options import Options
from ksieve.core.table import TABLE

OF_GROUPS = {kind.__name__: (keyword, kind) for keyword, kinds in GROUPS.items() for kind in kinds}
IDS = [option.name for option in TABLE]
NO_OPTIONS = {"num_rows", "out", "workspace", "plan", "stats"}


def types_of(hint: Any) -> set[Any]:
    """Types of a union, and the values of its literals."""
    parts = get_args(hint)
    return {hint} if not parts or any(isinstance(part, str) for part in parts) else set(chain(*map(types_of, parts)))


def static(option: Any) -> Any:
    """Type that a checker knows of an option."""
    if option.where in OF_GROUPS:
        return get_type_hints(OF_GROUPS[option.where][1])[option.name]
    if option.name in SelectOptions.__annotations__:
        return get_type_hints(SelectOptions, {"Plan": Any})[option.name]
    return get_type_hints(ksieve.plan)[option.name]


def test_groups_have_the_fields_of_the_table():
    for keyword, kinds in GROUPS.items():
        hinted = types_of(get_type_hints(arguments.Ranked)[keyword])
        assert hinted == {*kinds, type(None)}, keyword
    for where, (_, kind) in OF_GROUPS.items():
        of_table = {option.name: option.neutral for option in TABLE if option.where == where}
        of_class = {field.name: field.default for field in fields(kind)}
        assert list(of_class) == list(of_table)
        needed = [name for name, default in of_class.items() if type(default).__name__ == "_MISSING_TYPE"]
        assert of_class == of_table | {name: of_class[name] for name in needed}
        assert all(name in kind.__doc__ for name in of_table)
        assert getattr(ksieve, where) is kind


def test_calls_have_the_keywords_of_the_table():
    plain = {option.name for option in TABLE if option.where == option.name}
    assert plain - {"lengths", "overlap"} == set(SelectOptions.__annotations__) - NO_OPTIONS - GROUPS.keys()
    taken = set(signature(ksieve.plan).parameters) | set(arguments.RANKED)
    assert plain | GROUPS.keys() <= taken
    assert {option.where for option in TABLE} == plain | OF_GROUPS.keys()


@pytest.mark.parametrize("option", TABLE, ids=IDS)
def test_static_types_are_those_of_the_table(option):
    known = types_of(static(option))
    if option.shape:
        assert known - {type(None)} == {Any}
    elif option.kind == "choice":
        words = {value for hint in known for value in get_args(hint)}
        assert words == set(option.takes)
    else:
        assert known - {type(None)} == {bool if option.kind == "flag" else int}


@pytest.mark.parametrize("option", TABLE, ids=IDS)
def test_verify_takes_what_the_table_says(option):
    keyword = OF_GROUPS[option.where][0] if option.where in OF_GROUPS else option.where
    # `counts` of verify are those that an answer came with, and no option of the call that it answers.
    assert (keyword in signature(ksieve.verify).parameters) == (option.judged or keyword == "counts")


def test_fields_of_options_are_neutral_by_default():
    of_class = {field.name: field.default for field in fields(Options)}
    for option in TABLE:
        if option.field and not option.shape:
            assert of_class[option.field] == option.neutral, option.name
        elif option.field:
            assert of_class[option.field] in (False, "none"), option.name
    stated = {option.field for option in TABLE}
    assert of_class.keys() - stated == {"per_row_k", "length_dtype", "order"}
