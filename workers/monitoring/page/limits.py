"""Limits on the resources that strangers can use up: connections, pages in memory, lines in the
log, and guesses at the token.

uvicorn can refuse connections above a number, but then idle connections block ``/health`` and
``/metrics``. Here the newest connection is accepted, and the longest idle one is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast
from urllib.parse import parse_qs

import h11
import uvicorn
from nicegui import Client, core
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

log = logging.getLogger(__name__)

# A page takes half a megabyte from its request on, for at least a minute, even if no browser opens
# it.
MOST_PAGES = 100
_REPORT_CHARACTERS = 500
_REPORT_EVERY = timedelta(seconds=2)
# Loggers whose warnings and errors are about unreadable requests and packets.
_WRITTEN_BY_STRANGERS = (
    "uvicorn.error",
    "engineio.server",
    "socketio.server",
    "nicegui",
    "asyncio",
)


class Allowance:
    """A token bucket: holds ``most``, and refills by one per ``every``. For one thread."""

    def __init__(
        self, most: int, every: timedelta, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._every_s = every.total_seconds()
        self._clock = clock
        self._left = float(most)
        self._seen_at = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until ``take`` succeeds; 0 if it would now."""
        self._fill()
        return max(0.0, (1 - self._left) * self._every_s)

    def take(self) -> bool:
        """Take one; False if the bucket is empty."""
        if self.wait_s > 0:
            return False
        self._left -= 1
        return True

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(float(self._most), self._left + (now - self._seen_at) / self._every_s)
        self._seen_at = now


class Lock:
    """Checks tokens, and limits wrong ones over all pages and peers together."""

    def __init__(self, token: str, *, hint: str, allowance: Allowance | None = None) -> None:
        """``hint`` says where the operator finds the token."""
        self._token = token.encode()
        self.hint = hint
        self._allowance = allowance or Allowance(5, timedelta(seconds=10))
        self._closed = False

    def refusal(self, given: str, peer: str) -> str | None:
        """Return None for the right token, else a message for the page; log wrong tokens.

        After too many wrong tokens the right one is refused too, or guessing could go on.
        """
        wait_s = self._allowance.wait_s
        if wait_s > 0:
            # Logged once per closing, or guesses would flood the log instead.
            if not self._closed:
                log.warning(
                    "too many wrong tokens, refusing all for now; the last from %s",
                    peer,
                    extra={"event": "token_closed"},
                )
            self._closed = True
            return f"too many wrong tokens were given; try again in {wait_s:.0f} s"
        self._closed = False
        if hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token):
            return None
        self._allowance.take()
        log.warning(
            "a wrong token was given from %s",
            peer,
            extra={"event": "token_refused", "origin": peer},
        )
        return "wrong token"


class Rooms:
    """Bounds the number of pages: pages without a connected browser make room for new ones."""

    def __init__(self) -> None:
        self._opened: set[str] = set()

    def take(self, client: Client) -> bool:
        """Make room for a page that was just requested; False if all other pages are in use."""
        while len(Client.instances) > MOST_PAGES:
            idle = [
                each
                for each in Client.instances.values()
                if each is not client and not each.has_socket_connection
            ]
            if not idle:
                client.delete()
                return False
            # A browser that was cut off may come back to its page.
            min(idle, key=lambda each: (each.id in self._opened, each.created)).delete()
        client.on_connect(lambda: self._opened.add(client.id))
        client.on_delete(lambda: self._opened.discard(client.id))
        return True


def peer_of(client: Client) -> str:
    """Return the address that a page's browser, or its proxy, is connected from."""
    # The address of its socket if it has one, because actions arrive on the socket.
    scope = (client.environ or {}).get("asgi.scope", {})
    address = scope.get("client")
    return str(address[0]) if address else client.ip or "unknown"


class Seldom(logging.Filter):
    """Passes a burst of five records, then one every two seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._allowance = Allowance(5, _REPORT_EVERY)

    def filter(self, _record: logging.LogRecord) -> bool:
        """Return True while the allowance lasts."""
        return self._allowance.take()


def limit_reports() -> None:
    """Log the errors that pages report as single bounded lines, at a limited rate.

    NiceGUI would log every report in full; its servers log each bad request and packet.
    """
    for logger in _WRITTEN_BY_STRANGERS:
        logging.getLogger(logger).addFilter(Seldom())
    allowance = Allowance(5, _REPORT_EVERY)

    def report(_socket: str, said: Any) -> None:
        client = (
            Client.instances.get(str(said.get("client_id"))) if isinstance(said, dict) else None
        )
        if client is not None and allowance.take():
            text = str(said.get("message"))[:_REPORT_CHARACTERS]
            log.warning(
                "a page at %s reports %r", peer_of(client), text, extra={"event": "page_reported"}
            )

    core.sio.on("log", report)


# Connections that belong to no open page. A browser opens six, Prometheus one.
MOST_CONNECTIONS = 150
# Websockets per address, which may belong to a proxy.
MOST_SOCKETS_PER_PEER = 60
# Websockets per address whose pages are not connected yet.
_MOST_WAITING_PER_PEER = 20
# The second one is for a browser that reconnects.
_MOST_SOCKETS_PER_PAGE = 2
# Time for a whole request, or from a websocket's request until its page is connected.
_REQUEST_S = 10.0
# Time for a peer that does not read.
_STALL_S = 30.0
_HEADER_BYTES = 64 * 1024
# Unsent bytes that do not count as a stall.
_LITTLE = 16 * 1024
# A page sends a few hundred bytes at a time, or fifty selected rows with their cells.
_MESSAGE_BYTES = 512 * 1024
# Chromium sends frames of 128 KiB. Even an empty frame takes memory.
_MOST_FRAMES_PER_MESSAGE = 16
# Burst of frames; one is refilled each hundredth of a second. Keys and clicks need fewer.
_MOST_FRAMES = 1000
_FRAME_EVERY = timedelta(milliseconds=10)
# Bytes between two checks of the bounds: hundreds of empty frames.
_SLICE = 4096
# The packets that a page sends: close, pong, connect, disconnect, event, ack. Never
# attachments, which socket.io keeps in memory until all have arrived.
_PACKET = re.compile(rb"[13]|4[01].*|4[23]\d*\[.*", re.DOTALL)
_FIRST_PACKET = re.compile(rb"[13]|4[01].*", re.DOTALL)
_CONNECT = b"40"
_DISCONNECT = b"41"


class Connections:
    """The connections of one server, for its event loop's thread.

    Each one waits for its peer, or is being served, or belongs to an open page.
    """

    def __init__(self) -> None:
        # Ordered by the time at which they began to wait.
        self._waiting: dict[_Bounded, asyncio.TimerHandle] = {}
        self._served: dict[_Bounded, None] = {}
        self._pages: dict[PageSocket, str] = {}

    def wait(self, connection: _Bounded, seconds: float) -> None:
        """Close the connection after ``seconds``, or earlier if its place is needed."""
        self.leave(connection)
        self._waiting[connection] = connection.loop.call_later(seconds, connection.transport.abort)
        while len(self._waiting) + len(self._served) > MOST_CONNECTIONS:
            idle = next(each for each in (*self._waiting, *self._served) if each is not connection)
            self.close(idle)

    def serve(self, connection: _Bounded) -> None:
        """Note that its request is complete."""
        self.leave(connection)
        self._served[connection] = None

    def attend(self, socket: PageSocket, page: str) -> None:
        """Note that it is the websocket of an open page."""
        self.leave(socket)
        self._pages[socket] = page
        same = [each for each, name in self._pages.items() if name == page]
        for each in same[:-_MOST_SOCKETS_PER_PAGE]:
            self.close(each)

    def has_room_for(self, peer: str) -> bool:
        """Return True if this address may have one more websocket.

        The newest is refused, and the oldest kept, because the handshake takes most of the time.
        """
        pages = sum(each.peer == peer for each in self._pages)
        waiting = sum(isinstance(each, PageSocket) and each.peer == peer for each in self._waiting)
        return waiting <= _MOST_WAITING_PER_PEER and pages + waiting <= MOST_SOCKETS_PER_PEER

    def leave(self, connection: _Bounded) -> None:
        """Forget the connection."""
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._served.pop(connection, None)
        if isinstance(connection, PageSocket):
            self._pages.pop(connection, None)

    def close(self, connection: _Bounded) -> None:
        """Close the connection at once, dropping unsent bytes."""
        self.leave(connection)
        connection.transport.abort()


class BoundedConfig(uvicorn.Config):
    """Settings of a server whose connections are bounded."""

    def __init__(self, app: Any, **settings: Any) -> None:
        super().__init__(
            app,
            # httptools keeps headers of any size.
            http=HttpConnection,
            ws=PageSocket,
            h11_max_incomplete_event_size=_HEADER_BYTES,
            ws_max_size=_MESSAGE_BYTES,
            # 256 KiB of compressed messages would be inflated to 250 MB before one is handled.
            ws_per_message_deflate=False,
            **settings,
        )
        self.bounds = Connections()


class HttpConnection(H11Protocol):
    """A connection of HTTP/1.1, bounded."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._bounds.wait(self, _REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._bounds.leave(self)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._judge()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._bounds.leave(self)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        # Begins the next request, if it has arrived already.
        super().on_response_complete()
        self._judge()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._judge()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._judge()

    @property
    def _bounds(self) -> Connections:
        return cast(BoundedConfig, self.config).bounds

    def _judge(self) -> None:
        """Decide whether the monitor waits for the peer, or serves it."""
        if self.flow.write_paused or self.transport.get_write_buffer_size() > _LITTLE:
            self._bounds.wait(self, _STALL_S)
        elif self.transport.is_closing() or self.cycle.response_complete:
            # A peer that does not read the rest of its answer is waited for too.
            self._bounds.wait(self, _REQUEST_S)
        else:
            self._bounds.serve(self)


class PageSocket(WebSocketsSansIOProtocol):
    """A websocket, bounded. It counts as waiting until its page is connected."""

    # Id of the page, from the request.
    _page = ""
    _attended = False
    _connects = 0

    @property
    def peer(self) -> str:
        """The peer's address."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._frames = Allowance(_MOST_FRAMES, _FRAME_EVERY)
        super().connection_made(transport)
        self._bounds.wait(self, _REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._bounds.leave(self)

    def handle_connect(self, event: Request) -> None:
        self._page = parse_qs(event.path.partition("?")[2]).get("client_id", [""])[0]
        if self._bounds.has_room_for(self.peer):
            super().handle_connect(event)
        else:
            self._bounds.close(self)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if not self._attended and not self.disconnected:
            client = Client.instances.get(self._page)
            if client is not None and client.has_socket_connection:
                self._attended = True
                self._bounds.attend(self, self._page)

    async def receive(self) -> ASGIReceiveEvent:
        # Each message may have an answer, which stays in memory while the peer does not read.
        await self.writable.wait()
        return await super().receive()

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _SLICE):
            if not self.transport.is_closing():
                super().data_received(data[start : start + _SLICE])

    def handle_ping(self) -> None:
        if self._admit() and self.writable.is_set():
            super().handle_ping()
        else:
            self._bounds.close(self)

    def handle_pong(self, event: Frame) -> None:
        if self._admit():
            super().handle_pong(event)

    def handle_text(self, event: Frame) -> None:
        if self._admit():
            super().handle_text(event)

    def handle_bytes(self, _event: Frame) -> None:
        self._bounds.close(self)

    def handle_cont(self, event: Frame) -> None:
        if self._admit() and len(self.frames) < _MOST_FRAMES_PER_MESSAGE:
            super().handle_cont(event)
        else:
            self._bounds.close(self)

    def send_receive_event_to_app(self) -> None:
        packet = b"".join(self.frames)
        self._connects += packet.startswith(_CONNECT)
        known = (_PACKET if self._attended else _FIRST_PACKET).fullmatch(packet)
        if not known or self._connects > 1:
            self._bounds.close(self)
            return
        if packet.startswith(_DISCONNECT):
            self._page = ""
            self._attended = False
            self._bounds.wait(self, _REQUEST_S)
        super().send_receive_event_to_app()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._bounds.wait(self, _STALL_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._attended:
            self._bounds.attend(self, self._page)
        else:
            self._bounds.wait(self, _REQUEST_S)

    @property
    def _bounds(self) -> Connections:
        return cast(BoundedConfig, self.config).bounds

    def _admit(self) -> bool:
        """Count a frame; close the socket if there are too many."""
        admitted = self._frames.take()
        if not admitted:
            self._bounds.close(self)
        return admitted


_Bounded = HttpConnection | PageSocket
