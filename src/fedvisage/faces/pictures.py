"""Read image files and video frames into RGB bytes, or raise the reason why they are unusable. Files may be hostile.

Images may be JPEG, PNG, BMP, WebP, TIFF or HEIC with one picture of 8 bits per channel: grey, palette, RGB or CMYK.
They are turned upright by their metadata; colour profiles are ignored. More bits per channel (often infrared, depth or
raw sensor values) and transparency are refused, because a conversion to RGB would change what the camera recorded.
"""

import io
import os
import re
import struct
import warnings
from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from fedvisage.base.errors import BadFile, UserError, printable
from fedvisage.base.files import open_regular

BYTES_LIMIT = 256 << 20
PIXEL_LIMIT = 64_000_000
SIDE_MINIMUM = 16
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".heic", ".heif")
"""Suffixes of image files, in lower case."""
VIDEO_ENDINGS = (".avi", ".mp4", ".mov", ".m4v", ".mkv", ".webm")
_OF_SYSTEMS = ("thumbs.db", "desktop.ini")
"""Files that Windows adds to folders of pictures, where they are hidden; macOS hides its own by a leading dot."""

_ACCEPTED = "JPEG, PNG, BMP, WebP, TIFF or HEIC"
_OTHER_FORMATS = {
    "a GIF": re.compile(rb"GIF8"),
    "an AVIF picture": re.compile(rb"....ftyp(?:avi[fs]|mif1.{4}(?:.{4})*?avif)", re.DOTALL),
    "a damaged HEIC picture": re.compile(rb"....ftyp(?:hei[cxms]|m[is]f1)", re.DOTALL),
    "a PDF document": re.compile(rb"%PDF"),
    "a video": re.compile(rb"RIFF....AVI |....(?:ftyp|moov|mdat|wide)|\x1a\x45\xdf\xa3", re.DOTALL),
}
"""Formats that are not read, by the beginning of a file; the first match counts."""

_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1")
"""Brands of HEIC files, after ``ftyp`` at their beginning."""

_RUN_LENGTHS = (1, 2)
"""Compressions of a BMP (RLE8, RLE4) that Pillow decodes in Python, at a few megabytes per second."""

_PLAIN_MODES = ("1", "L", "P", "RGB", "CMYK")
_TRANSPARENT_MODES = ("LA", "PA", "RGBA")


class TooLarge(BadFile):
    """A picture with too many bytes or pixels; it was not decoded."""


def is_hidden(name: str) -> bool:
    """Return whether a file of this name is hidden from users, such as those that file managers write."""
    return name.startswith(".") or name.casefold() in _OF_SYSTEMS


def open_picture(path: Path) -> npt.NDArray[np.uint8]:
    """Read an image file into H×W×3 RGB bytes; raise BadFile if that is impossible."""
    with _opened(path) as file:
        _check_length(os.fstat(file.fileno()).st_size)
        content = file.read()
    return read_picture(content)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to read it; raise BadFile if that, or reading, is impossible."""
    try:
        if path.is_symlink() and not path.exists():
            raise BadFile("a link to a missing file")
        with open(path, "rb", opener=open_regular) as file:
            yield file
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror or error}") from None
    except UserError as error:
        raise BadFile(error.message) from None


def read_picture(content: bytes, pixels: int = PIXEL_LIMIT) -> npt.NDArray[np.uint8]:
    """Decode the content of an image file into H×W×3 RGB bytes; raise BadFile if that is impossible.

    A picture of more than ``pixels`` is not decoded.
    """
    return _read(content, pixels, reduces=False)[0]


def read_reduced(content: bytes, pixels: int = PIXEL_LIMIT) -> tuple[npt.NDArray[np.uint8], int]:
    """Decode a picture like `read_picture`, a large JPEG at reduced scale; return it with the divisor of its sides.

    The decoder averages blocks of 2, 4 or 8 pixels until at most ``pixels`` remain. Progressive files are not reduced,
    because their decoder needs memory for the whole picture.
    """
    return _read(content, pixels, reduces=True)


def _read(content: bytes, pixels: int, *, reduces: bool) -> tuple[npt.NDArray[np.uint8], int]:
    _check_length(len(content))
    check_parts(content)
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images; the check below is stricter and comes before any decoding.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=_formats_of(content)) as image:
                divisor = _reduce(image, pixels) if reduces else 1
                _check(image, pixels)
                image.load()
                if image.mode in _TRANSPARENT_MODES or "transparency" in image.info:
                    lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
                    if not isinstance(lowest, int) or lowest < 255:
                        raise BadFile("has transparent pixels; flatten it onto a background first")
                ImageOps.exif_transpose(image, in_place=True)
                return np.array(image if image.mode == "RGB" else image.convert("RGB")), divisor
    except (BadFile, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise TooLarge(f"more than {pixels / 1_000_000:g} million pixels; make it smaller") from None
    except UnidentifiedImageError:
        name = next((name for name, start in _OTHER_FORMATS.items() if start.match(content)), "not an image")
        raise BadFile(f"{name}; give {_ACCEPTED}") from None
    except Exception as error:  # Pillow's decoders raise many kinds of errors on damaged bytes
        reason = (str(error) or type(error).__name__).splitlines()[0][:120]
        raise BadFile(f"cannot be decoded: {printable(reason)}") from None


def _check_length(count: int) -> None:
    if count == 0:
        raise BadFile(f"an empty file; give {_ACCEPTED}")
    if count > BYTES_LIMIT:
        raise TooLarge(f"larger than {BYTES_LIMIT >> 20} MiB")


def _formats_of(content: bytes) -> tuple[str, ...]:
    """Return Pillow's formats for a file; the HEIC decoder is loaded only for files that begin as HEIC."""
    if content[4:8] != b"ftyp" or content[8:12] not in _HEIC:
        return _FORMATS
    # Imported here because it is a large library that few files need.
    try:
        import pillow_heif
    except ImportError:
        raise BadFile('a HEIC file: install pillow-heif ("fedvisage[heic]"), or convert it') from None
    pillow_heif.register_heif_opener(thumbnails=False)
    return ("HEIF",)


def _reduce(image: Image.Image, pixels: int) -> int:
    """Set the scale at which a JPEG is decoded, and return the divisor of its sides."""
    width, height = image.size
    if image.format not in ("JPEG", "MPO") or "progressive" in image.info or width * height > PIXEL_LIMIT:
        return 1
    divisor = next((scale for scale in (1, 2, 4) if -(-width // scale) * -(-height // scale) <= pixels), 8)
    image.draft(None, (width // divisor, height // divisor))
    return divisor


def _check(image: Image.Image, pixels: int) -> None:
    width, height = image.size
    if width * height > pixels:
        raise TooLarge(f"more than {pixels / 1_000_000:g} million pixels ({width}×{height}); make it smaller")
    if min(width, height) < SIDE_MINIMUM:
        raise BadFile(f"smaller than {SIDE_MINIMUM} pixels ({width}×{height})")
    if image.format == "BMP" and image.info.get("compression") in _RUN_LENGTHS:
        raise BadFile("a BMP compressed by run lengths; save the picture as PNG")
    # Phones write MPO: a JPEG with a second picture behind it (depth, a preview); the first is the photograph.
    # The pictures of a TIFF are not counted, because a small file can list a hundred thousand.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise BadFile("contains several images; export each one, or give a video")
    # Pillow itself would cut 16-bit RGB to its upper bytes. TIFF stores the bits in tag 258, PNG in Pillow's raw mode.
    deep_png = image.format == "PNG" and ";16B" in str(getattr(image, "tile", ""))
    if deep_png or max(getattr(image, "tag_v2", {}).get(258, (0,))) > 8:
        raise BadFile("more than 8 bits per channel; convert it to 8-bit RGB")
    if image.mode not in _PLAIN_MODES + _TRANSPARENT_MODES:
        raise BadFile(f"the colour mode {image.mode} is not supported; convert it to 8-bit RGB")


# Equidistant frames of video files.


# Broken videos are reported in one line; OpenCV and FFmpeg would print their own. FFmpeg reads this at the first video.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
if "OPENCV_LOG_LEVEL" not in os.environ:
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_ERROR)

FRAME_LIMIT = 200_000
VIDEO_LIMIT = 8 << 30
"""Maximum bytes of a video; those of the datasets have a thousandth."""

FRAMES_HELD = 128 << 20
"""Maximum bytes of frames that are held in memory until the video's length is confirmed."""

Frame = tuple[int, npt.NDArray[np.uint8]]


def sample_video(path: Path, count: int, most: int = FRAMES_HELD) -> Iterator[Frame]:
    """Yield up to `count` frames from the middles of equal stretches of the video, as (number, RGB).

    The packets predict the number of frames, so that one decoding mostly suffices. The video is decoded again if that
    number was wrong, or if the frames would need more than `most` bytes.
    """
    _check_container(path)
    likely, held = _packets(path), list[Frame]()
    numbers = frozenset(equidistant(likely, count))
    length = 0
    for length, capture in enumerate(_open_frames(path), 1):
        if length == 1:
            pixels = capture.get(cv2.CAP_PROP_FRAME_WIDTH) * capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
            numbers = frozenset() if len(numbers) * 3 * pixels > most else numbers
        if length - 1 in numbers:
            held += _retrieve_frame(length - 1, capture)
    if length == likely and numbers and held:
        yield from held
    else:
        del held
        yield from video_frames(path, frozenset(equidistant(length, count)))


def video_length(path: Path) -> int:
    """Count a video's frames by decoding; the length in its header is often wrong, which would shift every stretch."""
    _check_container(path)
    return sum(1 for _ in _open_frames(path))


def _packets(path: Path) -> int:
    """Count a video's packets, mostly one per frame, without decoding; return 0 if that is impossible."""
    capture = cv2.VideoCapture(_path_for_decoder(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_FORMAT, -1])
    try:
        return sum(1 for _ in takewhile(lambda _: capture.grab(), range(FRAME_LIMIT))) if capture.isOpened() else 0
    finally:
        capture.release()


def video_frames(path: Path, wanted: Container[int]) -> Iterator[Frame]:
    """Yield the frames with these numbers, as (number, RGB)."""
    _check_container(path)
    decoded_any = False
    for number, capture in enumerate(_open_frames(path)):
        if number in wanted:
            for frame in _retrieve_frame(number, capture):
                decoded_any = True
                yield frame
    if not decoded_any:
        raise BadFile("no frame of the video can be decoded")


def _retrieve_frame(number: int, capture: cv2.VideoCapture) -> list[Frame]:
    """Return the video's current frame in RGB as a list of one, or an empty list if it cannot be decoded."""
    decoded, image = capture.retrieve()
    if not decoded or image is None or image.ndim != 3:
        return []
    return [(number, cv2.cvtColor(image, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False))]


def equidistant(length: int, count: int) -> list[int]:
    """Return the numbers of `count` frames out of `length`, each in the middle of one of `count` equal stretches."""
    count = min(count, length)
    return [(2 * stretch + 1) * length // (2 * count) for stretch in range(count)]


def _check_container(path: Path) -> None:
    """Refuse all but AVI, MP4, QuickTime and Matroska: the decoder also reads playlists, which name other files."""
    with _opened(path) as file:
        start = file.read(12)
    riff = start[:4] == b"RIFF" and start[8:12] == b"AVI "
    boxes = start[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
    if not (riff or boxes or start[:4] == b"\x1a\x45\xdf\xa3"):
        raise BadFile("not a video of a known format (AVI, MP4, MOV, MKV, WebM)")


def _path_for_decoder(path: Path) -> str:
    """Return a video's absolute path. FFmpeg reads a bare name as an address, other decoders "%" as a pattern."""
    name = str(path.resolve())
    try:
        name.encode()
    except UnicodeEncodeError:  # OpenCV would end the process
        raise BadFile("its path is not in UTF-8, which videos need; rename it") from None
    return name


def _open_frames(path: Path) -> Iterator[cv2.VideoCapture]:
    """Yield the open video at each of its frames. Seeking instead would miss by some frames with many codecs."""
    capture = cv2.VideoCapture(_path_for_decoder(path), cv2.CAP_FFMPEG)
    try:
        if not capture.isOpened():
            raise BadFile("the video cannot be opened")
        width, height = capture.get(cv2.CAP_PROP_FRAME_WIDTH), capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
        if min(width, height) < SIDE_MINIMUM or width * height > PIXEL_LIMIT:
            raise BadFile(f"frames of {width:.0f}×{height:.0f} pixels are not supported")
        for _ in range(FRAME_LIMIT):
            if not capture.grab():
                return
            yield capture
    finally:
        capture.release()


# Counting the parts of a file before it is decoded: small files of many parts take seconds, or hours.

PARTS, BYTES_EACH = 1000, 1024
"""A file has at most ``PARTS`` parts, and one more per ``BYTES_EACH`` bytes; encoders write thousands into each."""

SCANS = 100
"""Maximum scans of a JPEG, and of the previews in it. Encoders write ten; each takes a pass over the whole picture."""

_PNG, _JPEG, _TIFF = b"\x89PNG\r\n\x1a\n", b"\xff\xd8", (b"II", b"MM")
_SCAN = 0xDA
_WITHOUT_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA))
_STRIPS, _TILES, _BIG = 273, 324, 43


def check_parts(content: bytes) -> None:
    """Refuse a file with more chunks (PNG), segments or scans (JPEG), or strips (TIFF) than an encoder writes."""
    if content.startswith(_JPEG) and (scans := content.count(bytes([0xFF, _SCAN]))) > SCANS:
        raise BadFile(f"has {scans:,} scans, which no camera writes; save the picture again")
    most = PARTS + len(content) // BYTES_EACH
    if sum(1 for _ in islice(_parts(content), most + 1)) > most:
        raise BadFile(f"has more than {most:,} parts, which no camera writes; save the picture again")


def _parts(content: bytes) -> Iterator[int]:
    """Yield for each chunk of a PNG, each strip of a TIFF, and each segment of a JPEG before its first scan.

    In a JPEG, each byte that decoders skip between segments also counts.
    """
    if content.startswith(_TIFF):
        yield from range(_count_strips(content))
    place = len(_PNG) if content.startswith(_PNG) else len(content)
    while place + 8 <= len(content):
        place += 12 + int.from_bytes(content[place : place + 4], "big")
        yield place
    place = len(_JPEG) if content.startswith(_JPEG) else len(content)
    while place + 4 <= len(content):
        marker = content[place + 1]
        if content[place] != 0xFF or marker == 0xFF:
            place += 1
        elif marker == _SCAN:
            return
        elif marker in _WITHOUT_LENGTH:
            place += 2
        else:
            place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        yield place


def _count_strips(content: bytes) -> int:
    """Return the number of strips or tiles of the first picture of a TIFF, whose directory may be incomplete."""
    order = "<" if content.startswith(b"II") else ">"
    place_format, number, entry = ("8xQ", "Q", "HHQ8x") if _BIG in content[2:4] else ("4xI", "H", "HHI4x")
    try:
        (place,) = struct.unpack_from(order + place_format, content)
        (entries,) = struct.unpack_from(order + number, content, place)
        first = place + struct.calcsize(order + number)
        size = struct.calcsize(order + entry)
        rows = range(min(entries, (len(content) - first) // size))
        fields = [struct.unpack_from(order + entry, content, first + size * row) for row in rows]
    except (struct.error, OverflowError):
        return 0
    return sum(count for tag, _, count in fields if tag in (_STRIPS, _TILES))
