"""Bounds on connections: their number, their idle time, the size of their requests and messages.

uvicorn can refuse connections above a number, but then idle connections block ``/health`` and
``/metrics``. Here the newest connection is accepted, and the one that was idle longest is closed.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any, cast
from urllib.parse import parse_qs

import h11
import uvicorn
from nicegui import Client
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from tiercel.workers.monitoring.page.limits import Allowance

# Connections that belong to no open page. A browser has six, Prometheus one.
MOST_CONNECTIONS = 150
# Websockets per address, which may belong to a proxy.
MOST_SOCKETS_PER_PEER = 60
# Websockets per address whose pages are not connected yet.
_MOST_WAITING_PER_PEER = 20
# One, and a second while the browser reconnects.
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
# Chromium cuts messages at 128 KiB. An empty frame takes memory too.
_MOST_FRAMES_PER_MESSAGE = 16
# Burst of frames; one is refilled each hundredth of a second. Keys and clicks need fewer.
_MOST_FRAMES = 1000
_FRAME_EVERY = timedelta(milliseconds=10)
# Bytes that are read before the bounds are checked again: hundreds of empty frames.
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

        The newest is refused and the oldest kept, because the handshake takes the time.
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
        return _bounds_of(self.config)

    def _judge(self) -> None:
        """Decide whether the monitor waits for the peer, or serves it."""
        if self.flow.write_paused or self.transport.get_write_buffer_size() > _LITTLE:
            self._bounds.wait(self, _STALL_S)
        elif self.transport.is_closing() or self.cycle.response_complete:
            # A body that is still being sent counts as waiting: its peer does not read.
            self._bounds.wait(self, _REQUEST_S)
        else:
            self._bounds.serve(self)


class PageSocket(WebSocketsSansIOProtocol):
    """A websocket, bounded. It counts as waiting until its page is connected."""

    # Id of the page, as its request says.
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
        return _bounds_of(self.config)

    def _admit(self) -> bool:
        """Count a frame; close the socket if there are too many."""
        admitted = self._frames.take()
        if not admitted:
            self._bounds.close(self)
        return admitted


def _bounds_of(config: uvicorn.Config) -> Connections:
    return cast(BoundedConfig, config).bounds


_Bounded = HttpConnection | PageSocket
