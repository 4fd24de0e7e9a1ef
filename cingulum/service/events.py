"""Server-sent events: tell a page that what it shows has changed. It asks again, by the address it knows."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable

import anyio
from fastapi import Request
from fastapi.responses import StreamingResponse

from trainer.errors import CingulumError

LOOK_S = 1.0
# A line now and then keeps proxies from closing, and tells us when the reader has gone.
_SIGN_OF_LIFE_S = 15.0


def stream(request: Request, look: Callable[[], str]) -> StreamingResponse:
    """Return a stream with an event `changed` at first, and whenever `look` returns something else.

    It ends when the reader has gone or the service ends; browsers then ask again by themselves.

    Args:
        request: of the reader.
        look: runs in a thread, every second; an error of ours counts as something to tell, too.
    """
    return StreamingResponse(
        _events(request, look), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


async def _events(request: Request, look: Callable[[], str]) -> AsyncIterator[str]:
    before, spoke = "", 0.0
    while not request.app.state.ending.is_set():
        now = await anyio.to_thread.run_sync(_mark, look)
        if now != before:
            before, spoke = now, time.monotonic()
            yield f"event: changed\nid: {now}\ndata: {now}\n\n"
        elif time.monotonic() - spoke > _SIGN_OF_LIFE_S:
            spoke = time.monotonic()
            yield ": still here\n\n"
        with anyio.move_on_after(LOOK_S):
            await request.app.state.ending.wait()


def _mark(look: Callable[[], str]) -> str:
    try:
        found = look()
    except CingulumError as error:
        found = f"error: {error}"
    return hashlib.sha256(found.encode()).hexdigest()[:16]
