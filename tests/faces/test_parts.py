"""Pictures of many small parts, whose headers would take seconds, are refused before they are decoded."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedvisage.base.errors import BadFile
from fedvisage.faces.pictures import read_picture

PICTURE = np.random.default_rng(0).integers(0, 256, (300, 200, 3)).astype(np.uint8)


def encode(kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(PICTURE).save(out, kind, **options)
    return out.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")


def png_with(*chunks: bytes) -> bytes:
    whole = encode("PNG")
    return whole[:33] + b"".join(chunks) + whole[33:]  # after the header of 25 bytes, and the signature of 8


def jpeg_with(segments: bytes) -> bytes:
    return b"\xff\xd8" + segments + encode("JPEG")[2:]


def tiff_of(strips: int, order: str = "II") -> bytes:
    """Return a grey TIFF of 16 columns, whose rows are strips with the same bytes."""
    sign = "<" if order == "II" else ">"
    shorts = {258: 8, 259: 1, 262: 1, 277: 1}
    longs = {256: (1, 16), 257: (1, strips), 273: (strips, 0), 278: (1, 1), 279: (strips, 0)}
    lists = 8 + 2 + 12 * (len(shorts) + len(longs)) + 4
    longs[273], longs[279] = (strips, lists), (strips, lists + 4 * strips)
    fields = [struct.pack(f"{sign}HHIHH", tag, 3, 1, value, 0) for tag, value in shorts.items()]
    fields += [struct.pack(f"{sign}HHII", tag, 4, *value) for tag, value in longs.items()]
    fields.sort(key=lambda field: struct.unpack_from(f"{sign}H", field))
    numbers = [lists + 8 * strips] * strips + [16] * strips
    head = order.encode() + struct.pack(f"{sign}HIH", 42, 8, len(fields))
    return head + b"".join(fields) + bytes(4) + struct.pack(f"{sign}{2 * strips}I", *numbers) + bytes(range(16))


def with_incomplete_directory(tiff: bytes) -> bytes:
    """Move the directory of nine entries to the end of the file, and have it state a hundred."""
    return tiff[:4] + len(tiff).to_bytes(4, "little") + tiff[8:] + (100).to_bytes(2, "little") + tiff[10:118]


@pytest.mark.parametrize("order", ["II", "MM"])
def test_tiff_with_some_strips_is_read(order: str) -> None:
    assert (read_picture(tiff_of(64, order)) == np.arange(16)[None, :, None]).all()


def test_jpeg_with_many_scans_is_refused() -> None:
    """Every scan takes a pass over the whole picture, and 14 bytes suffice for one."""
    whole = encode("JPEG", progressive=True)
    last = whole[whole.rfind(b"\xff\xda") : -2]
    assert read_picture(whole[:-2] + last * 5 + whole[-2:]).shape == PICTURE.shape
    with pytest.raises(BadFile, match="scans"):
        read_picture(whole[:-2] + last * 100 + whole[-2:])


@pytest.mark.parametrize("compression", [1, 2])
def test_run_length_bmp_is_refused(compression: int) -> None:
    """Pillow decodes them in Python: 10 MB take two seconds."""
    pixels = 300 * 200
    header = struct.pack("<IiiHHIIiiII", 40, 200, 300, 1, 8 // compression, compression, 2 * pixels, 0, 0, 1, 0)
    start = 14 + len(header) + 4
    bmp = b"BM" + struct.pack("<IHHI", start + 2 * pixels, 0, 0, start) + header + bytes(4) + b"\1\0" * pixels
    with pytest.raises(BadFile, match="run lengths"):
        read_picture(bmp)


@pytest.mark.parametrize(
    "content",
    [
        png_with(chunk(b"tEXt", b"a\0b") * 100_000),
        png_with(chunk(b"IDAT", b"") * 100_000),
        jpeg_with(b"\xff\xfe\0\2" * 100_000),
        jpeg_with(b"\xff" * 100_000),
        jpeg_with(b"\xff\0" * 100_000),
        jpeg_with(b"a" * 100_000),
        tiff_of(100_000),
        tiff_of(100_000, "MM"),
        with_incomplete_directory(tiff_of(100_000)),
    ],
)
def test_picture_of_many_parts_is_refused(content: bytes) -> None:
    with pytest.raises(BadFile, match="parts"):
        read_picture(content)


@pytest.mark.parametrize(
    "content",
    [
        encode("PNG"),
        encode("TIFF"),
        encode("TIFF", compression="tiff_lzw", strip_size=600),
        encode("TIFF", big_tiff=True),
        png_with(*(chunk(b"tEXt", b"a\0b") for _ in range(900))),
        encode("JPEG", quality=95, progressive=True, comment=b"a comment"),
        jpeg_with(b"\xff\xfe\0\2" * 900),
        b"\xff\xd8" + b"\xff" * 16 + encode("JPEG")[2:],
    ],
)
def test_picture_with_some_metadata_is_read(content: bytes) -> None:
    assert read_picture(content).shape == PICTURE.shape


@pytest.mark.parametrize(
    "content",
    [
        *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II+\0" + b"\xff" * 40, b"MM\0*" + b"\xff" * 40),
        *(encode("PNG")[:40], encode("JPEG")[:300], tiff_of(64)[:40]),
    ],
)
def test_incomplete_picture_is_refused(content: bytes) -> None:
    with pytest.raises(BadFile):
        read_picture(content)
