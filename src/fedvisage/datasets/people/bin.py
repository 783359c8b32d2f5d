"""Verification pairs in one file: InsightFace's format of LFW, CFP-FP, CFP-FF, AgeDB-30, CALFW, CPLFW and VGG2-FP.

The file states whether two pictures are of one person, but not the person's identity. So every pair has its own people:
one, or two. Such a set is evaluated by its list of pairs, in ten folds in the file's order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
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
_CONSTANTS = {b")": (), b"N": None, b"\x88": True, b"\x89": False}
_NUMBERS = {b"K": "<B", b"M": "<H", b"J": "<i"}
_PORTIONS = {b"U": "<B", b"T": "<i", b"C": "<B", b"B": "<I", b"\x8e": "<Q", b"\x96": "<Q", b"X": "<I", b"\x8c": "<B"}
_TEXTS = (b"X", b"\x8c")
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_KEYS = {b"q": "<B", b"r": "<I", b"h": "<B", b"j": "<I"}
"""Steps of pickles by their letters in the description of the format (Python's ``pickletools``), with their numbers."""


@dataclass
class _PickleReader:
    """Interprets the steps of a pickle, a list of pictures and a list of truth values, over inert values.

    A pickle is a program. This reader interprets only the steps that build bytes, numbers and lists; the few names that
    writers need for bytes and truth values are kept as symbols and never looked up, imported or called. Every other
    step is refused. Pictures stay in the file: the reader keeps only their positions, so that a file of any size needs
    memory for `VALUES_LIMIT` values at most. Python's own ``Unpickler`` would read every picture into memory, and
    reserve as much memory as a file announces.
    """

    path: Path
    file: IO[bytes]
    size: int
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    values: int = 0

    def run(self) -> Any:
        if self.take(1) != b"\x80" or self.number("<B") not in (2, 3, 4, 5):
            raise InvalidPickle("it does not start like a pickle of protocol 2 to 5")
        while (step := self.take(1)) != b".":
            if step in _CONSTANTS:
                self.push(_CONSTANTS[step])
            elif step in _NUMBERS:
                self.push(self.number(_NUMBERS[step]))
            elif step in _PORTIONS:
                length, offset = self.number(_PORTIONS[step]), self.file.tell()
                if length < 0 or offset + length > self.size:
                    fault = f"{length:,} bytes at byte {offset:,} are more than the file contains"
                    raise InvalidPickle(f"{fault}; copy it again")
                self.file.seek(length, 1)
                self.push(Portion(self.path, offset, length, step in _TEXTS))
            elif step in _TUPLES:
                self.push(tuple([self.pop() for _ in range(_TUPLES[step])][::-1]))
            elif step in _KEYS or step == b"\x94":
                self.keep_or_recall(step)
            else:
                self.build(step)
        if len(self.stack) != 1 or self.file.tell() != self.size:
            raise InvalidPickle("it continues after its end")
        return self.stack[0]

    def build(self, step: bytes) -> None:
        """Interpret a step that combines values."""
        match step:
            case b"\x95":
                self.take(8)  # the length of a frame, which is not needed
            case b"(":
                self.push(_MARK)
            case b"]":
                self.push([])
            case b"t":
                self.push(tuple(self.to_mark()))
            case b"l":
                self.push(self.to_mark())
            case b"e" | b"a":
                values = self.to_mark() if step == b"e" else [self.pop()]
                if not self.stack or not isinstance(self.stack[-1], list):
                    raise InvalidPickle("a step appends to something other than a list")
                self.stack[-1].extend(values)
            case b"c":
                self.push_symbol(self.line(), self.line())
            case b"\x93":
                name, module = self.pop(), self.pop()
                self.push_symbol(self.short(module), self.short(name))
            case b"R":
                self.reduce()
            case b"b":
                state = self.pop()
                top = self.stack[-1] if self.stack else None
                if not isinstance(top, PickleSymbol) or top.arguments is None:
                    raise InvalidPickle("a step sets the state of something stateless")
                top.state = state
            case _:
                raise InvalidPickle(f"step {step!r} at byte {self.file.tell() - 1:,} is not supported")

    def keep_or_recall(self, step: bytes) -> None:
        """Store the last value under a key, or push a stored value again."""
        key = self.number(_KEYS[step]) if step in _KEYS else len(self.memo)
        if step in (b"h", b"j"):
            if key not in self.memo:
                raise InvalidPickle("a step requests a value that was not stored")
            self.push(self.memo[key])
        else:
            value = self.memo[key] = self.pop()
            if len(self.memo) > VALUES_LIMIT:
                raise InvalidPickle(f"it stores more than {VALUES_LIMIT:,} values")
            self.stack.append(value)

    def reduce(self) -> None:
        """Keep the arguments of a symbol; text in Latin-1 becomes the bytes that it represents."""
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

    def take(self, count: int) -> bytes:
        content = self.file.read(count)
        if len(content) != count:
            raise InvalidPickle("the file is cut off; copy it again")
        return content

    def number(self, form: str) -> int:
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

    def short(self, value: Any) -> bytes:
        """Return a short text or bytes."""
        if not isinstance(value, Portion) or value.length > _SHORT:
            raise InvalidPickle("a name is not a short string")
        position = self.file.tell()
        self.file.seek(value.offset)
        content = self.take(value.length)
        self.file.seek(position)
        return content

    def line(self) -> bytes:
        content = self.file.readline(_SHORT)
        if not content.endswith(b"\n"):
            raise InvalidPickle("a name has no end")
        return content[:-1]

    def push_symbol(self, module: bytes, name: bytes) -> None:
        pair = module.decode("latin1"), name.decode("latin1")
        if pair not in _NAMES:
            raise InvalidPickle(f"it names {'.'.join(pair)[:100]!r}, which images and booleans do not need")
        self.push(PickleSymbol(pair[1]))


ENDING = ".bin"


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
    names = [name for pair in pairs for name in pair]
    photographs = (
        Photograph(image_name(name, number), f"{layout.kind}/{path.stem}/{name}", picture)
        for (name, number), picture in zip(names, pictures, strict=True)
    )
    return list_by_person(photographs, pairs={"": cut_into_folds(pairs, FOLDS)}, notes=notes)


def _pair(number: int, same: bool) -> Pair:
    """Name the pictures of a pair: two of one person, or one of each of two people."""
    name = f"pair{number:06d}"
    return ((name, 1), (name, 2)) if same else ((f"{name}a", 1), (f"{name}b", 1))


def read_pickle(path: Path) -> tuple[list[Portion], list[bool]]:
    """Return the positions of a file's pictures, and its truth values; raise UserError for any other file."""
    try:
        with path.open("rb") as file:
            reader = _PickleReader(path, file, path.stat().st_size)
            value = reader.run()
            if not isinstance(value, tuple | list) or len(value) != 2 or not all(isinstance(v, list) for v in value):
                raise InvalidPickle("it does not contain two lists")
            pictures, same = value
            return [_picture(item, reader) for item in pictures], [_truth_value(item, reader) for item in same]
    except InvalidPickle as refused:
        raise UserError(str(path), f"is not an InsightFace .bin file of pairs: {refused}") from None


def _picture(value: Any, reader: _PickleReader) -> Portion:
    """Return the bytes of a picture, which may be an array of one row of bytes."""
    if isinstance(value, PickleSymbol) and value.name in ("_reconstruct", "_frombuffer"):
        rebuilt = value.name == "_reconstruct"
        parts, count = (value.state, 5) if rebuilt else (value.arguments, 4)
        if not isinstance(parts, tuple) or len(parts) != count:
            raise InvalidPickle("an array has an unknown encoding")
        shape, kind, value = (parts[1], parts[2], parts[4]) if rebuilt else (parts[2], parts[1], parts[0])
        sizes = [size for size in shape if size != 1] if isinstance(shape, tuple) else [0, 0]
        if _kind(kind, reader) != b"u1" or len(sizes) > 1 or not isinstance(value, Portion):
            raise InvalidPickle("an image is an array that is not a row of bytes; store the encoded file")
    if not isinstance(value, Portion):
        raise InvalidPickle("an image is not bytes")
    return value


def _kind(value: Any, reader: _PickleReader) -> bytes:
    if not isinstance(value, PickleSymbol) or value.name != "dtype" or not value.arguments:
        raise InvalidPickle("an array has an unknown type")
    return reader.short(value.arguments[0])


def _truth_value(value: Any, reader: _PickleReader) -> bool:
    if isinstance(value, PickleSymbol) and value.name == "scalar" and len(value.arguments or ()) == 2:
        kind, content = value.arguments  # type: ignore[misc]  # there are two
        if _kind(kind, reader) == b"b1":
            value = {b"\0": False, b"\1": True}.get(reader.short(content), value)
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
    file=(ENDING, b"\x80("),
    aligned=True,
    benchmark=True,
    pack=pack,
)
