"""Answers that last, such as events: they end with the right of who asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import anyio

Message = MutableMapping[str, Any]
# Between two looks whether who asked may still ask.
LOOK_S = 2.0
_LAST_WORD_S = 1.0
# The last event of a stream: its reader may ask no more, or for something else than before.
_LAST_EVENT = b"event: refused\ndata: refused\n\n"


async def while_held(
    answer: Callable[[Callable[[Message], Awaitable[None]]], Awaitable[None]],
    send: Callable[[Message], Awaitable[None]],
    is_held: Callable[[], bool],
) -> None:
    """Send an answer as long as it takes, and no longer than the right to it is held.

    What has no answer yet is not cut off: who asked held the right then, and it may have done something.

    Args:
        answer: sends it, by what it is given.
        send: to who asked.
        is_held: is called every few seconds.
    """
    head: Message = {}

    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            head.update(message)
        await send(message)

    with anyio.CancelScope() as sending:
        looking = asyncio.create_task(_cut_off(sending, head, is_held))
        try:
            await answer(noted)
        finally:
            looking.cancel()
    if sending.cancelled_caught and _is_of_events(head):
        with anyio.move_on_after(_LAST_WORD_S):  # a reader who takes nothing hears nothing
            await send({"type": "http.response.body", "body": _LAST_EVENT, "more_body": False})


async def _cut_off(sending: anyio.CancelScope, head: Message, is_held: Callable[[], bool]) -> None:
    """Cancel what is sent once the right to it is not held any more."""
    await asyncio.sleep(LOOK_S)
    while not head or is_held():
        await asyncio.sleep(LOOK_S)
    sending.cancel()


def _is_of_events(head: Message) -> bool:
    kinds = [value for name, value in head["headers"] if name.lower() == b"content-type"]
    return any(kind.startswith(b"text/event-stream") for kind in kinds)
