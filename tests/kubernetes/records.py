"""Any record, for property tests: made from the types of its fields, within what JSON and an API server hold."""

from types import UnionType
from typing import Any, Union, get_args, get_origin

from hypothesis import strategies as st
from msgspec import Struct

from sentinel.util.documents import fields_of

# No NUL and no lone surrogates: neither is JSON that every program reads.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
# 53 bits: what a JSON number is sure to hold.
WHOLE = st.integers(-(2**53), 2**53)
TIME = st.floats(1e9, 4e9, allow_nan=False)
NUMBER = st.floats(-1e15, 1e15, allow_nan=False)
LOCAL = {"launch"}  # never in a record of a job on Kubernetes


def records(record: type[Struct]) -> st.SearchStrategy[Any]:
    fields = {
        one.name: _values(one.type, one.time, one.default)
        for one in fields_of(record)
        if one.name not in LOCAL
    }
    return st.builds(record, **fields)


def _values(hint: Any, is_time: bool, default: Any = None) -> st.SearchStrategy[Any]:
    if get_origin(hint) in (Union, UnionType):
        return st.one_of([_values(one, is_time) for one in get_args(hint)])
    if get_origin(hint) in (tuple, list):
        args = get_args(hint)
        if args[-1] is ... or get_origin(hint) is list:
            lists = st.lists(_values(args[0], is_time), max_size=3)
            return lists.map(tuple) if get_origin(hint) is tuple else lists
        return st.tuples(*[_values(one, is_time) for one in args])
    if get_origin(hint) is dict:
        return st.dictionaries(TEXT, _values(get_args(hint)[1], is_time), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return records(hint)
    if hint is type(None):
        return st.none()
    if hint is float:
        return TIME if is_time else NUMBER
    if hint is int:
        return WHOLE
    if hint is str:
        return TEXT
    return st.booleans() if hint is bool else st.sampled_from(list(hint))
