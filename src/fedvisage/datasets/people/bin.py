"""Verification pairs in one file: InsightFace's format of LFW, CFP-FP, CFP-FF, AgeDB-30, CALFW, CPLFW and VGG2-FP.

The file states whether two pictures are of one person, but not the person's identity. So every pair has its own people:
one, or two. Such a set is evaluated by its list of pairs, in ten folds in the file's order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedvisage.base.errors import BadFile, UserError
from fedvisage.data.lists import Pair, image_name
from fedvisage.datasets.people.layout import FOLDS, Layout, Photograph, PhotographList, cut_into_folds, list_by_person
from fedvisage.datasets.people.recordio import find_file
from fedvisage.faces.pictures import BYTES_LIMIT

# A safe reader of one form of pickle.

VALUES_LIMIT = 1 << 21
"""Maximum number of values in a file: lists of pairs have some ten thousand."""

_SHORT = 64
"""Maximum length in bytes of a text that is read, such as the name of an encoding."""

_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_NUMPY = {
    (module, name) for module in _MODULES for name in ("scalar", "dtype", "ndarray", "_reconstruct", "_frombuffer")
}
_NAMES = {("_codecs", "encode"), *_NUMPY}


@dataclass(frozen=True)
class Portion:
    """A range of bytes in a file; with `text`, it is Latin-1 text in UTF-8, and each character represents one byte."""

    path: Path
    offset: int
    length: int
    text: bool = False

    def read(self) -> bytes:
        """Return the bytes."""
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
            raise BadFile("is text, not an image") from None


@dataclass
class PickleSymbol:
    """A symbol for a name in the file, with the arguments and the state of the object built from it."""

    name: str
    arguments: tuple[Any, ...] | None = None
    state: Any = None


class InvalidPickle(Exception):
    """The reason why the file is not read."""


_MARK = object()


@dataclass
class _PickleReader:
    """Interprets the steps of a pickle, a list of pictures and a list of truth values, over inert values.

    A pickle is a program. This reader interprets only the steps that build bytes, numbers and lists; the few names that
    writers need for bytes and truth values are kept as symbols and never looked up, imported or called. Every other
    step is refused. Pictures stay in the file: the reader keeps only their positions.
    """

    path: Path
    file: IO[bytes]
    size: int
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    values: int = 0

    def run(self) -> Any:
        if self.take(1) != b"\x80" or (protocol := self.number("B")) not in (2, 3, 4, 5):
            raise InvalidPickle("it does not start like a pickle of protocol 2 to 5")
        del protocol
        while (step := self.take(1)) != b".":
            action = _STEPS.get(step)
            if action is None:
                raise InvalidPickle(f"step {step!r} at byte {self.file.tell() - 1:,} is not supported")
            action(self)
        if len(self.stack) != 1 or self.file.tell() != self.size:
            raise InvalidPickle("it continues after its end")
        return self.stack[0]

    def take(self, count: int) -> bytes:
        content = self.file.read(count)
        if len(content) != count:
            raise InvalidPickle("the file is cut off; copy it again")
        return content

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, form: str) -> int:
        form = f"<{form}"
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def push(self, value: Any) -> None:
        self.values += 1
        if self.values > VALUES_LIMIT:
            raise InvalidPickle(f"it has more than {VALUES_LIMIT:,} values")
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise InvalidPickle("a step is missing its value")
        return self.stack.pop()

    def to_mark(self) -> list[Any]:
        """Return the values pushed since the last mark."""
        values: list[Any] = []
        while self.stack and self.stack[-1] is not _MARK:
            values.append(self.stack.pop())
        if not self.stack:
            raise InvalidPickle("a step is missing its mark")
        self.stack.pop()
        return values[::-1]

    def top_list(self) -> list[Any]:
        if not self.stack or not isinstance(self.stack[-1], list):
            raise InvalidPickle("a step appends to something other than a list")
        return self.stack[-1]

    def portion(self, form: str, text: bool = False) -> None:
        length = self.number(form)
        offset = self.file.tell()
        if length < 0 or offset + length > self.size:
            raise InvalidPickle(f"{length:,} bytes at byte {offset:,} are more than the file contains; copy it again")
        self.file.seek(length, 1)
        self.push(Portion(self.path, offset, length, text))

    def short(self, value: Any) -> bytes:
        """Return a short text or bytes."""
        if not isinstance(value, Portion) or value.length > _SHORT:
            raise InvalidPickle("a name is not a short string")
        position = self.file.tell()
        self.file.seek(value.offset)
        content = self.take(value.length)
        self.file.seek(position)
        return content

    def push_symbol(self, module: bytes, name: bytes) -> None:
        pair = module.decode("latin1"), name.decode("latin1")
        if pair not in _NAMES:
            raise InvalidPickle(f"it names {'.'.join(pair)[:100]!r}, which images and booleans do not need")
        self.push(PickleSymbol(pair[1]))

    def line(self) -> bytes:
        content = self.file.readline(_SHORT)
        if not content.endswith(b"\n"):
            raise InvalidPickle("a name has no end")
        return content[:-1]

    def recall(self, key: int) -> None:
        if key not in self.memo:
            raise InvalidPickle("a step requests a value that was not stored")
        self.push(self.memo[key])

    def keep(self, key: int) -> None:
        if not self.stack or self.stack[-1] is _MARK:
            raise InvalidPickle("a step is missing its value")
        self.memo[key] = self.stack[-1]

    def tuple_of(self, count: int) -> None:
        self.push(tuple([self.pop() for _ in range(count)][::-1]))

    def reduce(self) -> None:
        arguments, name = self.pop(), self.pop()
        if not isinstance(name, PickleSymbol) or name.arguments is not None or not isinstance(arguments, tuple):
            raise InvalidPickle("a step calls an unknown object")
        if name.name == "encode":
            text, encoding = arguments if len(arguments) == 2 else (None, None)
            if not (isinstance(text, Portion) and text.text) or self.short(encoding) not in (b"latin1", b"latin-1"):
                raise InvalidPickle("bytes have an unknown encoding")
            self.push(text)
        else:
            self.push(PickleSymbol(name.name, arguments))

    def build(self) -> None:
        state = self.pop()
        top = self.stack[-1] if self.stack else None
        if not isinstance(top, PickleSymbol) or top.arguments is None:
            raise InvalidPickle("a step sets the state of something stateless")
        top.state = state

    def append(self, values: list[Any]) -> None:
        self.top_list().extend(values)


def _push_value(value: Any) -> Callable[[_PickleReader], None]:
    return lambda reader: reader.push(value)


def _global_of_stack(reader: _PickleReader) -> None:
    name, module = reader.pop(), reader.pop()
    reader.push_symbol(reader.short(module), reader.short(name))


def _append_value(reader: _PickleReader) -> None:
    value = reader.pop()
    reader.append([value])


_STEPS: dict[bytes, Callable[[_PickleReader], None]] = {
    b"\x95": lambda reader: reader.skip(8),  # the length of a frame, which is not needed
    b"(": lambda reader: reader.stack.append(_MARK),
    b"]": lambda reader: reader.push([]),
    b")": _push_value(()),
    b"N": _push_value(None),
    b"\x88": _push_value(True),
    b"\x89": _push_value(False),
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
    b"a": _append_value,
    b"c": lambda reader: reader.push_symbol(reader.line(), reader.line()),
    b"\x93": _global_of_stack,
    b"R": lambda reader: reader.reduce(),
    b"b": lambda reader: reader.build(),
}
"""The supported steps, by their letters in the description of the format (Python's ``pickletools``)."""


def interpret_pickle(path: Path, file: IO[bytes], size: int) -> tuple[Any, Callable[[Any], bytes]]:
    """Interpret the steps of an open file; return the built value, and a reader of its short texts.

    An unknown step raises :class:`InvalidPickle`.
    """
    reader = _PickleReader(path, file, size)
    return reader.run(), reader.short


ENDING = ".bin"

Short = Callable[[Any], bytes]
"""Reads a short text of a file."""


def scan(layout: Layout, source: Path) -> PhotographList:
    """List the pictures of a file and its pairs."""
    path = find_file(source, ENDING, layout)
    pictures, same = read_pickle(path)
    if len(pictures) != 2 * len(same) or not same:
        raise UserError(str(path), f"has {len(pictures):,} pictures for {len(same):,} pairs; each pair needs two")
    pairs = [_pair(number, alike) for number, alike in enumerate(same)]
    notes = (
        f"{len(pairs):,} pairs, {sum(same):,} of one person; identities are only known within pairs: evaluate with"
        " --pairs, and ignore the other metrics of such a set",
    )
    photographs = _photographs(layout, path, pictures, pairs)
    return list_by_person(photographs, pairs={"": cut_into_folds(pairs, FOLDS)}, notes=notes)


def _pair(number: int, same: bool) -> Pair:
    """Name the pictures of a pair: two of one person, or one of each of two people."""
    name = f"pair{number:06d}"
    return ((name, 1), (name, 2)) if same else ((f"{name}a", 1), (f"{name}b", 1))


def _photographs(
    layout: Layout, path: Path, pictures: Sequence[Portion], pairs: Sequence[Pair]
) -> Iterator[Photograph]:
    prefix = f"{layout.kind}/{path.stem}"
    for place, (name, number) in enumerate(image for pair in pairs for image in pair):
        yield Photograph(image_name(name, number), f"{prefix}/{name}", pictures[place])


def read_pickle(path: Path) -> tuple[list[Portion], list[bool]]:
    """Return the positions of a file's pictures, and its truth values; raise UserError for any other file."""
    try:
        with path.open("rb") as file:
            return _as_lists(*interpret_pickle(path, file, path.stat().st_size))
    except InvalidPickle as refused:
        raise UserError(str(path), f"is not an InsightFace .bin file of pairs: {refused}") from None


def _as_lists(value: Any, short: Short) -> tuple[list[Portion], list[bool]]:
    """Return the list of pictures and the list of truth values."""
    if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(item, list) for item in value):
        raise InvalidPickle("it does not contain two lists")
    return [_picture(item, short) for item in value[0]], [_truth_value(item, short) for item in value[1]]


def _picture(value: Any, short: Short) -> Portion:
    if isinstance(value, PickleSymbol) and value.name == "_reconstruct":
        _, shape, kind, _, value = _check_tuple(value.state, 5)
        _plain_bytes(shape, kind, value, short)
    elif isinstance(value, PickleSymbol) and value.name == "_frombuffer":
        value, kind, shape, _ = _check_tuple(value.arguments, 4)
        _plain_bytes(shape, kind, value, short)
    if not isinstance(value, Portion):
        raise InvalidPickle("an image is not bytes")
    return value


def _check_tuple(values: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(values, tuple) or len(values) != count:
        raise InvalidPickle("an array has an unknown encoding")
    return values


def _plain_bytes(shape: Any, kind: Any, content: Any, short: Short) -> None:
    """Refuse an array that is not a row of bytes."""
    sizes = [size for size in shape if size != 1] if isinstance(shape, tuple) else None
    if _kind(kind, short) != b"u1" or sizes is None or len(sizes) > 1 or not isinstance(content, Portion):
        raise InvalidPickle("an image is an array that is not a row of bytes; store the encoded file")


def _kind(value: Any, short: Short) -> bytes:
    if not isinstance(value, PickleSymbol) or value.name != "dtype" or not value.arguments:
        raise InvalidPickle("an array has an unknown type")
    return short(value.arguments[0])


def _truth_value(value: Any, short: Short) -> bool:
    if isinstance(value, PickleSymbol) and value.name == "scalar" and len(value.arguments or ()) == 2:
        kind, content = value.arguments  # type: ignore[misc]  # there are two
        if _kind(kind, short) == b"b1":
            value = {b"\0": False, b"\1": True}.get(short(content), value)
    if value in (0, 1) and isinstance(value, bool | int):
        return bool(value)
    raise InvalidPickle("the label of a pair is neither true nor false")


def pack(root: Path) -> None:
    """Write a small copy: two pairs of one person, and two pairs of different people."""
    from fedvisage.datasets.small_copies import encode_portrait  # needs the renderer

    pictures = [encode_portrait(*face) for face in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 0), (0, 0))]
    root.mkdir(parents=True, exist_ok=True)
    (root / "people.bin").write_bytes(write_pickle(pictures, [True, False, True, False]))


def write_pickle(pictures: Sequence[bytes], same: Sequence[bool]) -> bytes:
    """Return the file of some pairs, with the steps that Python 2 used."""
    content = b"".join(b"T" + struct.pack("<i", len(item)) + item for item in pictures)
    return b"\x80\x02](" + content + b"e](" + b"".join(b"\x88" if item else b"\x89" for item in same) + b"e\x86."


LAYOUT = Layout(
    kind="bin",
    title="verification pairs in one file",
    page="https://github.com/deepinsight/insightface/tree/master/recognition/_datasets_",
    expects="lfw.bin                                aligned crops and which pairs are of one person",
    scan=scan,
    file=(".bin", b"\x80("),
    aligned=True,
    benchmark=True,
    pack=pack,
)
