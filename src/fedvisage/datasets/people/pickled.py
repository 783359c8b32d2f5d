"""Reads the one pickle that is read here, a list of pictures and a list of yes and no, without unpickling anything.

A pickle is a program. This reads its steps and knows only those that build bytes, numbers and lists; the few names
that writers need for bytes and truth values stand for themselves and are never looked up, imported or called. Every
other step is refused. Pictures stay in the file: what is kept of them is where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedvisage.datasets.importers.pictures import BYTES_LIMIT
from fedvisage.datasets.importers.report import BadFile

VALUES_LIMIT = 1 << 21
"""Values that a file may build: lists of pairs have some ten thousand."""

_SHORT = 64
"""Bytes that are looked at as a text, such as the name of an encoding."""

_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_NUMPY = {
    (module, name) for module in _MODULES for name in ("scalar", "dtype", "ndarray", "_reconstruct", "_frombuffer")
}
_NAMES = {("_codecs", "encode"), *_NUMPY}


@dataclass(frozen=True)
class Portion:
    """Bytes that lie in a file; as a text, each stands for one byte and the higher ones are in UTF-8."""

    path: Path
    offset: int
    length: int
    text: bool = False

    def read(self) -> bytes:
        """Return them."""
        if self.length > BYTES_LIMIT:
            raise BadFile(f"larger than {BYTES_LIMIT >> 20} MiB")
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.length)
        if not self.text:
            return content
        try:
            return content.decode().encode("latin1")
        except UnicodeError:
            raise BadFile("is a text and no picture") from None


@dataclass
class Named:
    """A name that a writer uses; what was made with it is told by its arguments."""

    name: str
    arguments: tuple[Any, ...] | None = None
    state: Any = None


class Refused(Exception):
    """Why the file is not read."""


_MARK = object()


@dataclass
class _Reader:
    """Carries out the steps of a file over values that do nothing."""

    path: Path
    file: IO[bytes]
    size: int
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    values: int = 0

    def run(self) -> Any:
        if self.take(1) != b"\x80" or (protocol := self.number("B")) not in (2, 3, 4, 5):
            raise Refused("it does not begin as a pickle of protocol 2 to 5 does")
        del protocol
        while (step := self.take(1)) != b".":
            action = _STEPS.get(step)
            if action is None:
                raise Refused(f"step {step!r} at byte {self.file.tell() - 1:,} is not among those that are read")
            action(self)
        if len(self.stack) != 1 or self.file.tell() != self.size:
            raise Refused("it goes on behind its end")
        return self.stack[0]

    def take(self, count: int) -> bytes:
        content = self.file.read(count)
        if len(content) != count:
            raise Refused("the file is cut off; copy it again")
        return content

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, form: str) -> int:
        form = f"<{form}"
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def push(self, value: Any) -> None:
        self.values += 1
        if self.values > VALUES_LIMIT:
            raise Refused(f"it has more than {VALUES_LIMIT:,} values")
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise Refused("a step lacks its value")
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """Return what was pushed since the last mark."""
        some: list[Any] = []
        while self.stack and self.stack[-1] is not _MARK:
            some.append(self.stack.pop())
        if not self.stack:
            raise Refused("a step lacks its mark")
        self.stack.pop()
        return some[::-1]

    def top_list(self) -> list[Any]:
        if not self.stack or not isinstance(self.stack[-1], list):
            raise Refused("a step adds to something that is no list")
        return self.stack[-1]

    def portion(self, form: str, text: bool = False) -> None:
        length = self.number(form)
        offset = self.file.tell()
        if length < 0 or offset + length > self.size:
            raise Refused(f"{length:,} bytes at byte {offset:,} are more than the file has; copy it again")
        self.file.seek(length, 1)
        self.push(Portion(self.path, offset, length, text))

    def short(self, value: Any) -> bytes:
        """Return a short text or bytes."""
        if not isinstance(value, Portion) or value.length > _SHORT:
            raise Refused("a name is no short text")
        here = self.file.tell()
        self.file.seek(value.offset)
        content = self.take(value.length)
        self.file.seek(here)
        return content

    def named(self, module: bytes, name: bytes) -> None:
        pair = module.decode("latin1"), name.decode("latin1")
        if pair not in _NAMES:
            raise Refused(f"it names {'.'.join(pair)[:100]!r}, which pictures and truth values do not need")
        self.push(Named(pair[1]))

    def line(self) -> bytes:
        content = self.file.readline(_SHORT)
        if not content.endswith(b"\n"):
            raise Refused("a name has no end")
        return content[:-1]

    def recall(self, key: int) -> None:
        if key not in self.memo:
            raise Refused("a step asks for a value that was not kept")
        self.push(self.memo[key])

    def keep(self, key: int) -> None:
        if not self.stack or self.stack[-1] is _MARK:
            raise Refused("a step lacks its value")
        self.memo[key] = self.stack[-1]

    def tuple_of(self, count: int) -> None:
        self.push(tuple([self.pop() for _ in range(count)][::-1]))

    def reduce(self) -> None:
        arguments, name = self.pop(), self.pop()
        if not isinstance(name, Named) or name.arguments is not None or not isinstance(arguments, tuple):
            raise Refused("a step calls something that has no name here")
        if name.name == "encode":
            self._encode(arguments)
        else:
            self.push(Named(name.name, arguments))

    def _encode(self, arguments: tuple[Any, ...]) -> None:
        text, encoding = arguments if len(arguments) == 2 else (None, None)
        if not (isinstance(text, Portion) and text.text) or self.short(encoding) not in (b"latin1", b"latin-1"):
            raise Refused("bytes are written in a form that is not known")
        self.push(text)

    def build(self) -> None:
        state = self.pop()
        top = self.stack[-1] if self.stack else None
        if not isinstance(top, Named) or top.arguments is None:
            raise Refused("a step sets something that has no state here")
        top.state = state

    def append(self, values: list[Any]) -> None:
        self.top_list().extend(values)


def _one(value: Any) -> Callable[[_Reader], None]:
    return lambda reader: reader.push(value)


def _global_of_stack(reader: _Reader) -> None:
    name, module = reader.pop(), reader.pop()
    reader.named(reader.short(module), reader.short(name))


def _appended(reader: _Reader) -> None:
    value = reader.pop()
    reader.append([value])


_STEPS: dict[bytes, Callable[[_Reader], None]] = {
    b"\x95": lambda reader: reader.skip(8),  # the length of a frame, which nobody needs
    b"(": lambda reader: reader.stack.append(_MARK),
    b"]": lambda reader: reader.push([]),
    b")": _one(()),
    b"N": _one(None),
    b"\x88": _one(True),
    b"\x89": _one(False),
    b"K": lambda reader: reader.push(reader.number("B")),
    b"M": lambda reader: reader.push(reader.number("H")),
    b"J": lambda reader: reader.push(reader.number("i")),
    b"U": lambda reader: reader.portion("B"),
    b"T": lambda reader: reader.portion("i"),
    b"C": lambda reader: reader.portion("B"),
    b"B": lambda reader: reader.portion("I"),
    b"\x8e": lambda reader: reader.portion("Q"),
    b"\x96": lambda reader: reader.portion("Q"),
    b"X": lambda reader: reader.portion("I", text=True),
    b"\x8c": lambda reader: reader.portion("B", text=True),
    b"q": lambda reader: reader.keep(reader.number("B")),
    b"r": lambda reader: reader.keep(reader.number("I")),
    b"\x94": lambda reader: reader.keep(len(reader.memo)),
    b"h": lambda reader: reader.recall(reader.number("B")),
    b"j": lambda reader: reader.recall(reader.number("I")),
    b"\x85": lambda reader: reader.tuple_of(1),
    b"\x86": lambda reader: reader.tuple_of(2),
    b"\x87": lambda reader: reader.tuple_of(3),
    b"t": lambda reader: reader.push(tuple(reader.to_mark())),
    b"l": lambda reader: reader.push(reader.to_mark()),
    b"e": lambda reader: reader.append(reader.to_mark()),
    b"a": _appended,
    b"c": lambda reader: reader.named(reader.line(), reader.line()),
    b"\x93": _global_of_stack,
    b"R": lambda reader: reader.reduce(),
    b"b": lambda reader: reader.build(),
}
"""The steps that are read, by their letters in the description of the format (Python's ``pickletools``)."""


def outcome(path: Path, file: IO[bytes], size: int) -> tuple[Any, Callable[[Any], bytes]]:
    """Carry out the steps of an open file; return what they build, and what reads a short text of it.

    Any step that is not known raises :class:`Refused`.
    """
    reader = _Reader(path, file, size)
    return reader.run(), reader.short
