"""A page of ``tiercel monitor`` driven by a script, with headers that no browser would allow."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from urllib.parse import urljoin

import aiohttp
import socketio

ESCAPES = (("&#36;", "$"), ("&#96;", "`"), ("&gt;", ">"), ("&lt;", "<"), ("&amp;", "&"))


class ScriptedPage:
    """One page: ``elements``, ``notes`` and ``said`` hold what it has received so far."""

    def __init__(self, url, address="127.0.0.1", **headers):
        """``address`` is the address that it connects from."""
        self._page = url
        self._address = address
        self._sockets = urljoin(url, "/_nicegui_ws/")
        self.headers = headers
        self._socket = socketio.AsyncClient(reconnection=False)
        self._socket.on("*", self._hear)
        self._heard = asyncio.Event()
        self.elements = {}
        self.notes = []
        self.said = []

    async def load(self):
        """Return the status of the answer to GET /."""
        async with (
            self._session() as session,
            session.get(self._page, headers=self.headers) as answer,
        ):
            text = await answer.text()
        if answer.status == 200:
            self._client = re.search(r"'client_id': '([0-9a-f-]+)'", text)[1]
            found = re.search(r"parseElements\(String\.raw`(.*?)`\)", text, re.DOTALL)[1]
            for escaped, character in ESCAPES:
                found = found.replace(escaped, character)
            self.elements = json.loads(found)
        return answer.status

    async def connect(self, transport="websocket"):
        """Connect; raise socketio.exceptions.ConnectionError if refused."""
        query = (
            f"client_id={self._client}&document_id={uuid.uuid4()}"
            f"&tab_id={uuid.uuid4()}&next_message_id=0"
        )
        address = f"{self._sockets}?{query}&implicit_handshake=true"
        path = "/_nicegui_ws/socket.io"
        if self._socket.eio.http is None:
            self._socket.eio.http = self._session()
        await self._socket.connect(
            address,
            headers=self.headers,
            socketio_path=path,
            transports=[transport],
            wait_timeout=20,
        )

    @property
    def connected(self):
        return self._socket.connected

    async def close(self):
        await self._socket.disconnect()

    def _session(self):
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(self._address, 0)))

    async def press(self, label):
        await self._tell(label, next(iter(self._named(label)[1]["events"]))["listener_id"], {})

    async def write(self, label, text):
        events = {event["type"]: event["listener_id"] for event in self._named(label)[1]["events"]}
        await self._tell(label, events["update:value"], text)

    async def give_token(self, token):
        await self.write("token", token)
        await self.press("token ok")

    async def report(self, message):
        await self._socket.emit(
            "log", {"client_id": self._client, "level": "error", "message": message}
        )

    async def noted(self, text):
        """Wait until a notification has this text."""
        await self._until(lambda: any(text in note for note in self.notes))

    async def told(self, text):
        """Wait until anything sent to the page has this text."""
        await self._until(lambda: any(text in said for said in self.said))

    async def _until(self, condition):
        async with asyncio.timeout(30):
            while not condition():
                self._heard.clear()
                await self._heard.wait()

    def _named(self, label):
        return next(
            (key, each)
            for key, each in self.elements.items()
            if label
            in (
                each.get("props", {}).get("label"),
                each.get("props", {}).get("data-testid"),
            )
        )

    async def _tell(self, label, listener, argument):
        message = {
            "id": int(self._named(label)[0]),
            "client_id": self._client,
            "listener_id": listener,
        }
        await self._socket.emit("event", {**message, "args": [json.dumps(argument)]})

    def _hear(self, event, *arguments):
        self._heard.set()
        self.said.append(json.dumps(arguments))
        if event == "notify":
            self.notes.append(arguments[0].get("message"))
