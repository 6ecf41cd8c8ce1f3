"""What cannot be pickled is found, and the path that is told leads to the very object."""

from __future__ import annotations

import functools
import io
import sqlite3
import sys
import threading
import types
from collections import defaultdict, deque

import pytest

from tokenmill.diagnosis.examining.answers import Obstacle
from tokenmill.diagnosis.examining.inside import pickling

LOCK = threading.Lock()
BYTES = {bytes([byte]): byte for byte in range(256)}


class Holder:
    """Holds whatever it is given."""

    def __init__(self, **held):
        self.__dict__.update(held)

    def method(self, text):
        """Something to bind."""
        return text

    def __call__(self, text):
        """Something to send."""
        return text


class Slotted:
    """Holds things in slots, one of them private."""

    __slots__ = ("__hidden", "item")

    def __init__(self, item, hidden=None):
        self.item = item
        self.__hidden = hidden


class Heir(Slotted):
    """Has slots of its base, and a dict."""

    def __init__(self, item, other):
        super().__init__(item)
        self.other = other


class Chooses:
    """Says itself what is pickled of it: not the lock that it also holds."""

    def __init__(self, item):
        self.unused = threading.Lock()
        self.item = item

    def __getstate__(self):
        return {"item": self.item}


class Refuses:
    """Cannot be pickled because it says so."""

    def __reduce__(self):
        raise ValueError("not me")


def closure(value):
    def tokenize(text):
        return value, text

    return tokenize


def with_default(value):
    def tokenize(text, item=value, *, other=None):
        return text, item, other

    return tokenize


def with_keyword_default(value):
    def tokenize(text, *, item=value):
        return text, item

    return tokenize


def uses_global(text):
    with LOCK:
        return text


def with_attribute(value):
    def tokenize(text):
        return text

    vars(tokenize)["item"] = value
    return tokenize


def in_a_cycle(value):
    one, two = Holder(), Holder(item=value)
    vars(one).update(other=two, others=[one, two])
    vars(two).update(other=one)
    return one


SHAPES = {
    "closure": closure,
    "default": with_default,
    "keyword default": with_keyword_default,
    "attribute of a function": with_attribute,
    "attribute": lambda value: Holder(item=value),
    "attribute with a strange name": lambda value: Holder(**{"a b": value}),
    "slot": Slotted,
    "private slot": lambda value: Slotted(1, value),
    "slot of a base": lambda value: Heir(value, 1),
    "dict beside slots": lambda value: Heir(1, value),
    "chosen state": Chooses,
    "dict by str": lambda value: {"key": value},
    "dict by int": lambda value: {7: value},
    "dict by bytes": lambda value: {b"{}": value},
    "dict by tuple": lambda value: {("a", 1): value},
    "defaultdict": lambda value: defaultdict(list, key=value),
    "list": lambda value: [1, "two", value],
    "tuple": lambda value: (1, value),
    "deque": lambda value: deque([1, value]),
    "set": lambda value: {1, value},
    "partial's function": lambda value: functools.partial(Holder(item=value)),
    "partial's argument": lambda value: functools.partial(print, 1, value),
    "partial's keyword": lambda value: functools.partial(print, end=value),
    "bound method": lambda value: Holder(item=value).method,
    "nested": lambda value: functools.partial(Holder(items=[{"deep": Slotted((1, Holder(item=value)))}]).method, 1),
    "cycle": in_a_cycle,
}
NOT_BY_EXPRESSION = {"set": "an element of tokenize"}
BY_VALUE = {"closure", "default", "keyword default", "attribute of a function"}
SENT_BY_PICKLE = [shape for shape in SHAPES if shape not in BY_VALUE]  # it sends functions by name only


def way(name):
    if name != "pickle":
        pytest.importorskip(name)
    return next(pickling.installed_picklers((name,)))


def find(name, value) -> Obstacle:
    chosen = way(name)
    with pytest.raises(Exception, match=r"\w"):
        chosen.dumps(value)
    return pickling.obstacle(chosen, value, "tokenize")


def core():
    """An object of tiktoken's native code, which no library can pickle."""
    tiktoken = pytest.importorskip("tiktoken")
    return tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=BYTES, special_tokens={})._core_bpe


def at(path, root, **variables):
    return eval(path.replace(".a b", ".__dict__['a b']"), {"tokenize": root, **variables})


@pytest.mark.parametrize("shape", SENT_BY_PICKLE)
def test_the_path_to_a_lock_leads_to_that_very_lock(shape):
    """Through anything that a function can hold things in, the path evaluates to the object that cannot be pickled."""
    lock = threading.Lock()
    root = SHAPES[shape](lock)
    found = find("pickle", root)
    if shape in NOT_BY_EXPRESSION:
        assert found.path == NOT_BY_EXPRESSION[shape]
    else:
        assert at(found.path, root) is lock
    assert (found.kind, found.sort, found.type) == ("resource", "lock", "_thread.lock")


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "set"])
def test_the_path_is_the_same_by_dill(shape):
    """Dill pickles locks, but not the objects of tiktoken's native code."""
    native = core()
    root = SHAPES[shape](native)
    found = find("dill", root)
    if shape in NOT_BY_EXPRESSION:
        assert found.path == NOT_BY_EXPRESSION[shape]
    else:
        assert at(found.path, root, value=native, item=native) is native
    assert (found.kind, found.sort, found.type) == ("native", "tokenizer", "CoreBPE")


def test_a_path_through_a_closure_has_the_names_of_the_script():
    """What a function uses is called as the function calls it."""
    encoder = Holder(inner=Holder(core=core()))
    found = find("dill", closure(encoder))
    assert found.path == "value.inner.core"


def test_a_global_that_the_function_uses_is_found_by_its_name():
    """A function that is sent by value takes its globals along."""
    scope = {"LOCK": core(), "__name__": "__main__"}
    function = types.FunctionType(uses_global.__code__, scope, "tokenize")
    function.__module__ = "__main__"
    found = find("dill", function)
    assert found.path == "LOCK"


def open_file():
    return open(__file__)


@pytest.mark.parametrize(
    ("make", "name", "kind", "sort"),
    [
        (open_file, "pickle", "resource", "other"),
        (lambda: sqlite3.connect(":memory:"), "pickle", "resource", "other"),
        (lambda: (number for number in range(3)), "pickle", "resource", "other"),
        (lambda: sys, "pickle", "resource", "other"),
        (Refuses, "pickle", "resource", "other"),
        (threading.local, "pickle", "resource", "other"),
        (lambda: memoryview(b"abc"), "pickle", "native", "native"),
        (BYTES.keys, "pickle", "native", "native"),
    ],
)
def test_each_sort_of_thing_is_called_by_its_name(make, name, kind, sort):
    """What is found tells a file from a socket from native code, for each wants another fix."""
    value = make()
    try:
        found = find(name, Holder(item=value))
        assert (found.path, found.kind, found.sort) == ("tokenize.item", kind, sort)
    finally:
        if isinstance(value, io.IOBase | sqlite3.Connection):
            value.close()


@pytest.mark.parametrize("value", [lambda text: text, closure(1)], ids=["lambda", "inner function"])
def test_functions_without_a_name_are_told_apart_from_what_they_hold(value):
    """Pickle sends functions by name; without one the function itself is what cannot be sent."""
    found = find("pickle", Holder(step=value))
    assert (found.path, found.kind) == ("tokenize.step", "nameless")
    assert found.type == ("lambda" if value.__name__ == "<lambda>" else "function defined in closure")


def test_a_class_without_a_name_is_found_through_its_object():
    """An object of a class that is defined in a function cannot be sent, because the class cannot."""

    class Local:
        pass

    found = find("pickle", Holder(item=Local()))
    assert found.path == "the class of tokenize.item"
    assert found.kind == "nameless"


def test_what_cannot_be_reached_is_named_by_what_holds_it():
    """Where a lock exists only while its holder is pickled, the holder is named."""
    found = find("pickle", Holder(items=[Makes()]))
    assert found.path == "tokenize.items[0]"


class Makes:
    """Puts a new lock into what is pickled."""

    def __getstate__(self):
        return {"lock": threading.Lock()}


def test_importing_dill_does_not_change_what_pickle_is_said_to_do():
    """Dill teaches pickle's Python version its own tricks; the search for an obstacle must not fall for them."""
    pytest.importorskip("dill")
    step = lambda text: text  # noqa: E731
    root = Holder(step=step)
    found = find("pickle", root)
    assert at(found.path, root) is step


def test_the_largest_part_is_found():
    """Of a heavy function, the part that weighs most is named, as deep inside as it is one part."""
    root = Holder(small="x" * 100, tables={"ranks": [b"\x00" * 3_000_000, 1]})
    part = pickling.largest(way("pickle"), root, "tokenize")
    assert part is not None
    assert part.path == "tokenize.tables['ranks'][0]"
    assert part.size_bytes >= 3_000_000


def test_nothing_stands_out_where_all_parts_are_small():
    """No part is named if none is most of the weight."""
    root = Holder(**{f"part{index}": bytes([index]) * 1000 for index in range(10)})
    assert pickling.largest(way("pickle"), root, "tokenize") is None


def test_there_is_no_path_to_what_is_not_held():
    """A search that finds nothing says so, also in a structure that contains itself."""
    assert pickling.find_path(in_a_cycle(LOCK), object(), "tokenize") is None
