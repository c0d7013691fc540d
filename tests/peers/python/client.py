"""A client on aioquic. Takes requests as lines of JSON and answers with the whole response, or why there is none:

    {"id": 1, "method": "POST", "path": "/p", "headers": [["name", "value"]], "body": "BASE64"}
    {"id": 1, "status": 204, "headers": [["name", "value"]], "body": "BASE64"}
    {"id": 1, "error": "why"}

All requests go at once over one connection; when it is lost, the next request opens another. Ends with its input.
"""

import asyncio
import base64
import contextlib
import json

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.events import ConnectionTerminated, StopSendingReceived, StreamReset

from common import arguments, configuration, standard_input, write_line


class Response:
    """A response as far as it has come."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.complete: asyncio.Future = asyncio.get_running_loop().create_future()


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.responses: dict[int, Response] = {}
        self.lost: str | None = None

    async def send(self, headers: list[tuple[bytes, bytes]], body: bytes) -> Response:
        if self.lost is not None:
            raise ConnectionError(self.lost)
        stream = self._quic.get_next_available_stream_id()
        response = self.responses[stream] = Response()
        self.http.send_headers(stream, headers, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        await response.complete
        return response

    def quic_event_received(self, event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.lost = f"connection closed with {event.error_code:#x}: {event.reason_phrase}"
            for response in self.responses.values():
                if not response.complete.done():
                    response.complete.set_exception(ConnectionError(self.lost))
            return
        if isinstance(event, StreamReset) and event.stream_id in self.responses:
            response = self.responses.pop(event.stream_id)
            if not response.complete.done():
                response.complete.set_exception(ConnectionError(f"stream reset with {event.error_code:#x}"))
            return
        if isinstance(event, StopSendingReceived):
            # Whoever does not want the body says why in the response.
            return
        for http_event in self.http.handle_event(event):
            self.http_event_received(http_event)

    def http_event_received(self, event) -> None:
        response = self.responses.get(getattr(event, "stream_id", -1))
        if response is None:
            return
        if isinstance(event, HeadersReceived):
            response.headers.extend(event.headers)
        elif isinstance(event, DataReceived):
            response.body += event.data
        if event.stream_ended and not response.complete.done():
            response.complete.set_result(None)


class Pool:
    """One connection, made anew when it is lost."""

    def __init__(self, told) -> None:
        self.told = told
        self.host, _, self.port = told.address.rpartition(":")
        self.client: Client | None = None
        self.exits = contextlib.AsyncExitStack()
        self.lock = asyncio.Lock()

    async def connected(self) -> Client:
        async with self.lock:
            if self.client is None or self.client.lost is not None:
                made = configuration(self.told, is_client=True)
                dialled = connect(self.host, int(self.port), configuration=made, create_protocol=Client)
                self.client = await self.exits.enter_async_context(dialled)
            return self.client


async def exchange(pool: Pool, order: dict) -> None:
    try:
        client = await pool.connected()
        body = base64.b64decode(order.get("body") or "")
        headers = [
            (b":method", order["method"].encode()),
            (b":scheme", b"https"),
            (b":authority", pool.told.address.encode()),
            (b":path", order["path"].encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        headers += [(name.lower().encode(), value.encode()) for name, value in order.get("headers") or []]
        response = await client.send(headers, body)
        fields = [(name.decode(), value.decode()) for name, value in response.headers]
        write_line(
            {
                "id": order["id"],
                "status": int(dict(fields)[":status"]),
                "headers": [field for field in fields if not field[0].startswith(":")],
                "body": base64.b64encode(response.body).decode(),
            }
        )
    except Exception as error:  # Whatever it is, the test is to know.
        write_line({"id": order["id"], "error": f"{type(error).__name__}: {error}"})


async def main() -> None:
    pool = Pool(arguments())
    orders = await standard_input()
    running = set()
    while line := await orders.readline():
        task = asyncio.create_task(exchange(pool, json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


if __name__ == "__main__":
    asyncio.run(main())
