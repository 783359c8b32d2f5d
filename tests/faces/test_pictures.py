"""Decoding of image files that may be damaged, unusual or hostile, such as ones of many small parts."""

import io
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pillow_heif as heif
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.datasets.importers.files import picture

from fedvisage.base.errors import BadFile
from fedvisage.faces.pictures import ENDINGS, TooLarge, open_picture, read_picture, read_reduced

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 200, 3)).astype(np.uint8))


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")


def png_with(*chunks: bytes) -> bytes:
    whole = encode(NOISE, "PNG")
    return whole[:33] + b"".join(chunks) + whole[33:]  # after the header of 25 bytes, and the signature of 8


def jpeg_with(segments: bytes) -> bytes:
    return b"\xff\xd8" + segments + encode(NOISE, "JPEG")[2:]


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
    whole = encode(NOISE, "JPEG", progressive=True)
    last = whole[whole.rfind(b"\xff\xda") : -2]
    assert read_picture(whole[:-2] + last * 5 + whole[-2:]).shape == (300, 200, 3)
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
        encode(NOISE, "PNG"),
        encode(NOISE, "TIFF"),
        encode(NOISE, "TIFF", compression="tiff_lzw", strip_size=600),
        encode(NOISE, "TIFF", big_tiff=True),
        png_with(*(chunk(b"tEXt", b"a\0b") for _ in range(900))),
        encode(NOISE, "JPEG", quality=95, progressive=True, comment=b"a comment"),
        jpeg_with(b"\xff\xfe\0\2" * 900),
        b"\xff\xd8" + b"\xff" * 16 + encode(NOISE, "JPEG")[2:],
    ],
)
def test_picture_with_some_metadata_is_read(content: bytes) -> None:
    assert read_picture(content).shape == (300, 200, 3)


@pytest.mark.parametrize(
    "content",
    [
        *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II+\0" + b"\xff" * 40, b"MM\0*" + b"\xff" * 40),
        *(encode(NOISE, "PNG")[:40], encode(NOISE, "JPEG")[:300], tiff_of(64)[:40]),
    ],
)
def test_incomplete_picture_is_refused(content: bytes) -> None:
    with pytest.raises(BadFile):
        read_picture(content)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_keep_every_byte(kind: str) -> None:
    np.testing.assert_array_equal(read_picture(encode(Image.fromarray(picture(1)), kind)), picture(1))


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA"])
def test_grey_palette_and_opaque_images_become_rgb(mode: str) -> None:
    decoded = read_picture(encode(Image.fromarray(picture(1)).convert(mode)))
    assert decoded.shape == (24, 24, 3)
    assert decoded.dtype == np.uint8


def test_exif_orientation_is_applied() -> None:
    image = Image.fromarray(picture(1, height=20, width=30))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was turned: the stored picture has to go a quarter to the right
    decoded = read_picture(encode(image, "PNG", exif=exif))
    np.testing.assert_array_equal(decoded, np.rot90(picture(1, height=20, width=30), k=-1))


@pytest.mark.parametrize(("most", "divisor"), [(1280, 1), (1279, 2), (320, 2), (319, 4), (40, 8)])
def test_large_jpegs_are_decoded_at_reduced_scale(most: int, divisor: int) -> None:
    image = Image.fromarray(picture(1, height=32, width=40)).resize((400, 320), Image.Resampling.BICUBIC)
    exif = image.getexif()
    exif[0x0112] = 6
    content = encode(image, "JPEG", quality=95, exif=exif)
    reduced, stated = read_reduced(content, most * 100)
    assert (reduced.shape[:2], stated) == ((400 // divisor, 320 // divisor), divisor)
    expected = np.asarray(image.resize(reduced.shape[:2], Image.Resampling.BOX).rotate(-90, expand=True))
    assert np.abs(reduced.astype(int) - expected).mean() < 5


def test_irreducible_pictures_are_limited_in_pixels() -> None:
    image = Image.fromarray(picture(1, height=30, width=40))
    for content in (encode(image), encode(image, "JPEG", progressive=True)):
        with pytest.raises(TooLarge):
            read_reduced(content, 1199)
        assert read_reduced(content, 1200)[0].shape == (30, 40, 3)


@pytest.mark.parametrize("ending", [".png", ".tiff"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_more_than_8_bits_per_channel_are_refused_in_every_format(ending: str, channels: int) -> None:
    deep = np.random.default_rng(0).integers(0, 1 << 16, (24, 24, channels), dtype=np.uint16)
    deep[..., 3:] = 65535
    for pixels, bits in ((deep, 16), ((deep >> 8).astype(np.uint8), 8)):
        content = cv2.imencode(ending, pixels)[1].tobytes()
        if bits == 8:
            assert read_picture(content).shape == (24, 24, 3)
            continue
        with pytest.raises(BadFile, match="8 bits per channel; convert"):
            read_picture(content)


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_picture_becomes_rgb(kind: str) -> None:
    red = read_picture(encode(Image.new("RGB", (32, 32), (200, 30, 30)).convert("CMYK"), kind, quality=95))
    assert np.abs(red.astype(int) - (200, 30, 30)).max() < 4


@pytest.mark.parametrize(
    ("content", "keyword"),
    [
        (b"", "an empty file; give JPEG"),
        (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf", "an AVIF picture; give JPEG"),
        (b"\0\0\0\x18ftypheic" + bytes(100), "a damaged HEIC picture; give JPEG"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "a video; give JPEG"),
        (b"RIFF\0\0\0\0AVI LIST", "a video; give JPEG"),
        (b"some text", "not an image; give JPEG"),
    ],
)
def test_unusable_file_is_described_by_its_format(content: bytes, keyword: str) -> None:
    with pytest.raises(BadFile, match=keyword):
        read_picture(content)


@pytest.mark.parametrize(
    ("image", "kind", "keyword"),
    [
        (Image.new("LAB", (32, 32)), "TIFF", "mode LAB"),
        (Image.fromarray(np.zeros((32, 32), np.float32)), "TIFF", "8 bits per channel"),
        (Image.new("RGBA", (32, 32), (1, 2, 3, 128)), "PNG", "transparent"),
        (Image.new("RGB", (15, 99)), "PNG", "16 pixels"),
        (Image.new("RGB", (32, 32)), "GIF", "a GIF; give JPEG"),
        (Image.new("RGB", (32, 32)), "PDF", "a PDF document; give JPEG"),
    ],
    ids=["lab", "float", "transparent", "tiny", "gif", "pdf"],
)
def test_other_colour_modes_and_formats_are_refused(image: Image.Image, kind: str, keyword: str) -> None:
    content = encode(image, kind)
    with pytest.raises(BadFile, match=keyword):
        read_picture(content)


def test_several_pictures_in_one_file_are_refused() -> None:
    pages = [Image.fromarray(picture(n)) for n in range(2)]
    content = encode(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    with pytest.raises(BadFile, match="several"):
        read_picture(content)


def test_further_pictures_of_a_tiff_are_not_read() -> None:
    first = encode(Image.new("RGB", (32, 32)), "TIFF")
    (place,) = struct.unpack_from("<L", first, 4)
    (count,) = struct.unpack_from("<H", first, place)
    link = place + 2 + 12 * count
    # A second directory without a tag: to read it, for example to count the pictures, would be an error.
    content = first[:link] + struct.pack("<L", len(first)) + first[link + 4 :] + bytes(6)
    with pytest.raises(BadFile, match="several images"):
        read_picture(content)


def test_first_picture_of_an_mpo_is_read() -> None:
    pages = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    decoded = read_picture(encode(pages[0], "MPO", save_all=True, append_images=pages[1:]))
    assert decoded[..., 0].min() > 240
    assert decoded[..., 2].max() < 15


@pytest.mark.parametrize("side", [9_000, 60_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(side: int) -> None:
    # Headers that promise more pixels than fit; were it decoded, it would fail for its missing data instead.
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(bytes(100)))
    with pytest.raises(BadFile, match=r"64 million.*make it smaller"):
        read_picture(content)


def test_pillows_limit_is_unchanged() -> None:
    before = Image.MAX_IMAGE_PIXELS
    read_picture(encode(Image.fromarray(picture(1))))
    assert before == Image.MAX_IMAGE_PIXELS


@given(st.sampled_from(["PNG", "JPEG", "BMP", "WEBP", "TIFF"]), st.data())
def test_damaged_files_are_read_or_refused_but_never_crash(kind: str, data: st.DataObject) -> None:
    content = bytearray(encode(Image.fromarray(picture(1)), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    # Any other exception than BadFile fails this test.
    with suppress(BadFile):
        assert read_picture(bytes(content[: data.draw(st.integers(0, len(content)))])).shape[2] == 3


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_listed_ending_is_readable(tmp_path: Path, ending: str) -> None:
    heif.register_heif_opener()
    Image.fromarray(np.full((20, 30, 3), 77, np.uint8)).save(tmp_path / f"grey{ending}")
    assert open_picture(tmp_path / f"grey{ending}").mean() == 77


def test_photographs_of_phones_in_heic_are_read_upright() -> None:
    image = np.full((64, 96, 3), (200, 60, 40), np.uint8)
    image[:32] = (30, 60, 180)  # the sky
    content = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 3  # the phone was upside down
    heif.from_pillow(Image.fromarray(image[::-1, ::-1])).save(content, quality=-1, exif=exif.tobytes())
    decoded = read_picture(content.getvalue())
    assert decoded.shape == image.shape
    assert np.abs(decoded.astype(int) - image).mean() < 4


def test_damaged_heic_is_a_bad_file() -> None:
    content = io.BytesIO()
    heif.from_pillow(Image.fromarray(picture(1, 64, 64))).save(content)
    for damaged in (content.getvalue()[:200], content.getvalue()[:24] + b"\0" * 400, b"\0\0\0\x18ftypheic"):
        with pytest.raises(BadFile):
            read_picture(damaged)


def test_missing_file_is_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        open_picture(tmp_path / "none.png")
