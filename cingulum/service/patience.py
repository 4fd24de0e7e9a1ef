"""How long a connection may keep the service waiting: for a request that comes in part, or for a reader."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from cingulum.service.failures import failure

# For the head of a request, and for another one at a connection that is kept.
HEAD_S = 15.0
# Between two parts of a body, and for all of it: it has 64 KiB at most.
PART_S = 15.0
BODY_S = 120.0
# For a reader that takes nothing of what is sent.
READER_S = 120.0
# Of a process that may by default open 1024 files, and needs some for runs and logs.
MOST_CONNECTIONS = 512


class Patient(H11Protocol):
    """A connection that is closed when a request does not arrive in time, or nobody takes the answer.

    uvicorn limits the time between two requests only: what is sent in part it would await for ever. Where
    there are too many connections, the one goes that has been awaited longest.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._part: Literal["head", "body"] | None = None
        self._since = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_rest()
        if len(self.connections) > MOST_CONNECTIONS:
            awaited = [one for one in self.connections if isinstance(one, Patient) and one._part is not None]
            min(awaited, key=lambda one: one._since)._give_up()

    def handle_events(self) -> None:
        """Take what has arrived, and wait for the rest; also called when an answer has been sent."""
        super().handle_events()
        self._await_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        self._await_none()
        self._await_no_reader()

    def shutdown(self) -> None:
        """End with the service: what has not arrived whole by now is not awaited."""
        if self._part == "body" and not self.cycle.response_started:
            self._hang_up_on_application()
            self.transport.close()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        """Wait for the reader to take what was sent."""
        super().pause_writing()
        self._await_no_reader()
        self._reader_timer = self.loop.call_later(READER_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the reader has taken most of it."""
        super().resume_writing()
        self._await_no_reader()

    def _await_rest(self) -> None:
        parts: dict[Any, Literal["head", "body"]] = {h11.IDLE: "head", h11.SEND_BODY: "body"}
        part = None if self.transport.is_closing() else parts.get(self.conn.their_state)
        if part is None:
            self._await_none()
            return
        now = self.loop.time()
        if part != self._part:
            self._part, self._since = part, now
        end = self._since + HEAD_S if part == "head" else min(self._since + BODY_S, now + PART_S)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(end, self._give_up)

    def _await_none(self) -> None:
        self._part, self._since = None, math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_no_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _give_up(self) -> None:
        """Close the connection, and say why where a request has begun and has no answer yet."""
        part = self._part
        self._await_none()
        if self.transport.is_closing():
            return
        has_begun = part == "body" or bool(self.conn.trailing_data[0])
        if has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._say_why(part or "head")
        self.transport.close()
        if self.transport.get_write_buffer_size():  # nor does the other side read: it would stay open
            self.transport.abort()

    def _hang_up_on_application(self) -> None:
        """Tell the application, which awaits the rest of a body, that nobody takes its answer."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def _say_why(self, part: str) -> None:
        if part == "body":
            self._hang_up_on_application()
        seconds = f"{HEAD_S:g} s" if part == "head" else f"{BODY_S:g} s, with a part every {PART_S:g} s"
        answer = failure(
            408,
            "TOO_SLOW",
            f"The {part} of the request did not arrive in time.",
            cure=f"Send all of it within {seconds}.",
            headers={"Connection": "close"},
        )
        for event in (
            h11.Response(status_code=408, headers=answer.raw_headers, reason=b"Request Timeout"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
