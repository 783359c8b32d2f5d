"""Mutations of a folder of pictures: decompression bombs, incomplete files, polyglots, links, hostile names."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
from campaigns.hostile.case import pick
from campaigns.hostile.files import is_small, replace_file, secret_path
from PIL import Image

Make = Callable[[np.random.Generator], bytes]

NAMES = (
    "..", "...", "-rf", "a b", "a\nb.png", "\x1b[2J.png", "%d.png", "{name}.png", "x" * 220 + ".png", "\u202egnp.png",
    "con.png",
    "a\\..\\b.png", " .png", "é.png", "e\u0301.png", "=cmd|calc.png", '"quoted".png', "a,b.png", "~.png", "$HOME.png",
    ".png", "A.PNG",
)  # fmt: skip


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, *more: bytes, depth: int = 8, colour: int = 2) -> bytes:
    """Return a PNG with any header."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [chunk(b"IHDR", head), *more, chunk(b"IDAT", data), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def encode(draws: np.random.Generator, form: str, mode: str = "RGB", **options: object) -> bytes:
    """Return a valid picture."""
    pixels = draws.integers(0, 256, (24, 24, 3), dtype=np.uint8)
    out = BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, form, **options)
    return out.getvalue()


def bomb(draws: np.random.Generator) -> bytes:
    """A few kilobytes that decompress to gigabytes."""
    side = int(pick(draws, (8001, 60_000, 2**31 - 1, 2**32 - 1)))
    return png(side, side, zlib.compress(bytes(1 << 22)))


def long_row(draws: np.random.Generator) -> bytes:
    """A picture with more data than its size needs."""
    return png(24, 24, zlib.compress(bytes(1 << 24)))


def text_bomb(draws: np.random.Generator) -> bytes:
    """A picture with a comment of 64 MiB."""
    packed = zlib.compress(bytes(1 << 26))
    return png(
        24,
        24,
        zlib.compress(bytes(24 * 73)),
        chunk(b"zTXt", b"Comment\0\0" + packed),
        chunk(b"iCCP", b"x\0\0" + packed),
    )


def odd_header(draws: np.random.Generator) -> bytes:
    """A picture of an invalid or rare depth and colour type."""
    depth, colour = int(pick(draws, (0, 1, 2, 3, 8, 16, 255))), int(pick(draws, (0, 1, 2, 3, 4, 6, 7)))
    return png(int(pick(draws, (0, 1, 24, 16))), 24, zlib.compress(bytes(24 * 200)), depth=depth, colour=colour)


def incomplete(draws: np.random.Generator) -> bytes:
    """A valid picture that is truncated or has changed bytes."""
    data = bytearray(encode(draws, pick(draws, ("PNG", "JPEG", "BMP", "WEBP", "TIFF"))))
    if draws.random() < 0.4:
        return bytes(data[: int(draws.integers(len(data)))])
    for _ in range(int(draws.integers(1, 12))):
        data[int(draws.integers(len(data)))] = int(draws.integers(256))
    return bytes(data)


def polyglot(draws: np.random.Generator) -> bytes:
    """A picture that is also a file of another format."""
    tail = pick(draws, (b"PK\x05\x06" + bytes(18), b"<script>alert(1)</script>", b"%PDF-1.7\n", b"#!/bin/sh\nid\n"))
    return encode(draws, pick(draws, ("PNG", "JPEG", "BMP"))) + tail


def other_format(draws: np.random.Generator) -> bytes:
    """A file of a format that the program does not read."""
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 24 24\n(x) run\n"
    plain = (
        svg,
        eps,
        b"P6 24 24 255\n" + bytes(24 * 72),
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"II*\0" + bytes(4),
        b"",
    )
    return pick(draws, (*plain, encode(draws, "GIF"), encode(draws, "ICO"), draws.bytes(300)))


def tiff_tags(draws: np.random.Generator) -> bytes:
    """A TIFF with arbitrary values and offsets in its tags."""
    entries = [(256, 4, 1, 24), (257, 4, 1, 24), (258, 3, 1, 8), (259, 3, 1, int(pick(draws, (1, 5, 7, 8, 65535)))),
               (262, 3, 1, 1), (273, 4, 1, int(pick(draws, (8, 2**31, 2**32 - 1)))), (277, 3, 1, int(pick(draws, (1,
               3, 65535)))),
               (278, 4, 1, int(pick(draws, (0, 24, 2**32 - 1)))), (279, 4, int(pick(draws, (1, 2**31))),
               2**30)]  # fmt: skip
    raw = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    again = int(pick(draws, (0, 8, 2**31)))
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + raw + struct.pack("<I", again) + bytes(600)


def animation(draws: np.random.Generator) -> bytes:
    """A picture with several frames."""
    frames = [Image.fromarray(draws.integers(0, 256, (24, 24, 3), dtype=np.uint8)) for _ in range(3)]
    out = BytesIO()
    frames[0].save(out, pick(draws, ("PNG", "WEBP", "TIFF", "GIF")), save_all=True, append_images=frames[1:])
    return out.getvalue()


def rare_mode(draws: np.random.Generator) -> bytes:
    """A picture of a rare colour mode."""
    form, mode = pick(
        draws,
        (
            ("JPEG", "CMYK"),
            ("PNG", "RGBA"),
            ("PNG", "LA"),
            ("PNG", "P"),
            ("PNG", "1"),
            ("TIFF", "F"),
            ("TIFF", "I"),
            ("TIFF", "LAB"),
        ),
    )
    return encode(draws, form, mode)


def rotation(draws: np.random.Generator) -> bytes:
    """A JPEG with a valid or invalid orientation."""
    exif = Image.Exif()
    exif[0x0112] = int(pick(draws, (0, 1, 3, 6, 8, 9, 65535)))
    data = exif.tobytes()
    return encode(draws, "JPEG", exif=data if draws.random() < 0.5 else data[: int(draws.integers(6, len(data)))])


PICTURES: tuple[Make, ...] = (
    bomb, long_row, text_bomb, odd_header, incomplete, incomplete, polyglot, other_format, tiff_tags, animation,
    rare_mode, rotation,
)  # fmt: skip


def mutate_folder(root: Path, draws: np.random.Generator) -> str:
    """Add an invalid entry to a folder, or change an entry."""
    way = pick(draws, ("picture", "picture", "picture", "name", "link", "odd", "video", "deep", "class"))
    files = sorted(path for path in root.rglob("*") if path.suffix in (".png", ".avi") and is_small(path))
    if not files:
        return "nothing"
    path = pick(draws, files)
    if way == "picture":
        make = pick(draws, PICTURES)
        path.write_bytes(make(draws))
        return f"{make.__name__} as {path.suffix}"
    if way == "odd":
        return replace_file(path, draws)
    if way == "video":
        return _mutate_video(root, draws)
    return _move(root, path, way, draws)


def _move(root: Path, path: Path, way: str, draws: np.random.Generator) -> str:
    """Rename or move a file, or create a link beside it."""
    try:
        if way == "name":
            name = pick(draws, NAMES)
            raw = os.fsencode(path.parent) + (b"/\xff\xfe.png" if draws.random() < 0.1 else b"/" + os.fsencode(name))
            os.rename(os.fsencode(path), raw)
            return f"name {name!r}"
        if way == "link":
            target = pick(
                draws,
                (
                    secret_path(path),
                    secret_path(path).parent,
                    root,
                    path.parent.parent,
                    Path("/dev/zero"),
                    Path("/proc/self/mem"),
                ),
            )
            path.with_name(f"link{int(draws.integers(9))}.png").symlink_to(target)
            return f"link to {target.name}"
        if way == "deep":
            place = path.parent.joinpath(*["d"] * int(draws.integers(1, 60)))
            place.mkdir(parents=True)
        else:
            place = root / pick(
                draws, ("attack", "real", "fake/x", "attack/../x", "neither", "real/s0\x07", "attack/Print!/s0", ".")
            )
            place.mkdir(parents=True, exist_ok=True)
        path.rename(place / f"moved{int(draws.integers(9))}{path.suffix}")
    except OSError:
        return "nothing"
    return way


def _mutate_video(root: Path, draws: np.random.Generator) -> str:
    path = root / "real" / "s0" / "clip.avi"
    if not is_small(path) or path.stat().st_size < 80:
        return "nothing"
    data, way = bytearray(path.read_bytes()), pick(draws, ("cut", "bytes", "playlist", "sizes", "other"))
    if way == "cut":
        data = data[: int(draws.integers(len(data)))]
    elif way == "bytes":
        for _ in range(int(draws.integers(1, 40))):
            data[int(draws.integers(len(data)))] = int(draws.integers(256))
    elif way == "playlist":
        data = bytearray(f"#EXTM3U\n#EXTINF:1,\nfile://{secret_path(path)}\n".encode())
    elif way == "sizes":
        for at in (32, 36, 48, 64, 68):
            data[at : at + 4] = int(pick(draws, (0, 1, 2**31 - 1, 2**32 - 1))).to_bytes(4, "little")
    else:
        data = bytearray(b"RIFF\xff\xff\xff\xffAVI " + draws.bytes(400))
    path.write_bytes(data)
    return f"video {way}"
