"""The service under load: 200 clients at once on loopback, against the same pictures through the bare pipeline.

The pipeline has its detector and measures quality, and no models: with these each picture takes longer, and the
service's share is smaller.
"""

from __future__ import annotations

import asyncio
import io
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import cv2
import numpy as np
from PIL import Image

from benchmarks.measurement import Measurement
from fedvisage.device.service.app import Server, build, open_engine, server_of
from fedvisage.device.service.limits import Limits
from fedvisage.faces.pictures import read_picture
from fedvisage.render.identities import Identities, photograph_person, photographs_of

CLIENTS, SECONDS, THREADS = 200, 60.0, 2
CHILD = "import sys; from benchmarks.service import client; client(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])"


def measure(cache: Path, seconds: float = SECONDS) -> Measurement:
    """Serve for a while and compare; memory is looked at after a fifth of the time, and at the end."""
    content = photograph()
    picture = cache / "face.jpg"
    picture.write_bytes(content)
    limits = Limits(rate=0, seconds=60, workers=THREADS)
    server = server_of(build(open_engine(None, None), limits=limits), "127.0.0.1", 0)
    with serve_in_thread(server, waiting=CLIENTS) as port:
        asking = [sys.executable, "-c", CHILD, str(port)]
        subprocess.run([*asking, str(seconds / 5), str(picture)], check=True, capture_output=True)
        early, bare = peak(), bare_rate(content, seconds / 4)
        said = json.loads(subprocess.check_output([*asking, str(seconds), str(picture)], text=True))
        late, again = peak(), bare_rate(content, seconds / 4)
    bare = max(bare, again)  # before and after, because a machine is not always equally busy
    share, growth = said["rate"] / bare, late / early
    return Measurement(
        f"{CLIENTS} clients at once on the service for {seconds:.0f} s against the bare pipeline in {THREADS} threads "
        "(pictures a second); errors; growth of memory",
        "≥ 0.8; 0; ≤ 1.1",
        f"{share:.2f} ({said['rate']:.0f} / {bare:.0f}), p50 {said['p50']:.2f} s, p99 {said['p99']:.2f} s; "
        f"{said['errors']} of {said['answers']}; {growth:.2f} ({late:.0f} MB)",
        share >= 0.8 and not said["errors"] and growth <= 1.1,
    )


@contextmanager
def serve_in_thread(server: Server, waiting: int = 128) -> Iterator[int]:
    """Serve in a thread until the block ends, and yield the port, a free one on the loopback interface.

    ``waiting`` is the number of connections that may wait to be accepted.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(waiting)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def photograph() -> bytes:
    """Return a JPEG of 250 pixels with one face."""
    face = photograph_person(photographs_of(Identities(images=1, size=112), 0), 112)[0][0]
    picture = np.full((250, 250, 3), (120, 110, 90), np.uint8)
    picture[35:215, 35:215] = cv2.resize(face, (180, 180))
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "JPEG")
    return out.getvalue()


def bare_rate(content: bytes, seconds: float) -> float:
    """Return how many pictures a second are decoded and checked by as many threads as the service has."""
    engine, until = open_engine(None, None), time.monotonic() + seconds

    def work(_: int) -> int:
        done = 0
        while time.monotonic() < until:
            engine.check(read_picture(content))
            done += 1
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(THREADS))) / seconds


def peak() -> float:
    """Return the most memory that this process had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def client(port: int, seconds: float, path: str) -> None:
    """Ask from many connections and print what came of it."""
    content, times, statuses = Path(path).read_bytes(), list[float](), list[bytes]()
    head = f"POST /v1/pad HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\nContent-Length: {len(content)}\r\n\r\n"

    async def one(until: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < until:
            began = time.monotonic()
            writer.write(head.encode() + content)
            headers = await reader.readuntil(b"\r\n\r\n")
            length = headers.lower().split(b"content-length:")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
            times.append(time.monotonic() - began)
            statuses.append(headers[9:12])
        writer.close()

    async def everybody() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(one(until) for _ in range(CLIENTS)))

    began = time.monotonic()
    asyncio.run(everybody())
    took = time.monotonic() - began
    print(
        json.dumps(
            {
                "rate": len(times) / took,
                "p50": float(np.quantile(times, 0.5)),
                "p99": float(np.quantile(times, 0.99)),
                "answers": len(statuses),
                "errors": sum(one != b"200" for one in statuses),
            }
        )
    )
