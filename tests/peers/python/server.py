"""A coordinator on aioquic that forwards to the stores. Says where it listens, then what it is asked, as lines of JSON:

    {"listening": "127.0.0.1:4433"}
    {"path": "/p", "runner": "", "headers": {"name": ["value"]}, "bytes": 10, "status": 204}

It asks for no client certificate, since aioquic can't, and only looks whether there is a token. Like the Go coordinator it
has no verdicts, no policy, mints nothing, and makes a 502 of whatever a store says but 200 and 204. Ends with its input.
"""

import asyncio
import urllib.error
import urllib.request

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived

from common import arguments, configuration, standard_input, write_line

TOKEN = "miren-workload-token"


class Server(QuicConnectionProtocol):
    stores: dict[str, str] = {}

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.requests: dict[int, tuple[dict, bytearray]] = {}
        self.tasks: set[asyncio.Task] = set()

    def quic_event_received(self, event) -> None:
        for http_event in self.http.handle_event(event):
            self.http_event_received(http_event)

    def http_event_received(self, event) -> None:
        if isinstance(event, HeadersReceived) and event.stream_id not in self.requests:
            headers: dict[str, list[str]] = {}
            for name, value in event.headers:
                headers.setdefault(name.decode(), []).append(value.decode())
            self.requests[event.stream_id] = (headers, bytearray())
        elif isinstance(event, DataReceived):
            self.requests[event.stream_id][1].extend(event.data)
        if event.stream_ended:
            task = asyncio.create_task(self.answer(event.stream_id, *self.requests.pop(event.stream_id)))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def answer(self, stream: int, headers: dict[str, list[str]], body: bytearray) -> None:
        path = headers[":path"][0]
        store = self.stores.get(path)
        if store is None or headers[":method"] != ["POST"]:
            status, text = 404, "not found"
        elif TOKEN not in headers:
            status, text = 401, "missing workload token"
        else:
            content_type = headers.get("content-type", ["text/plain"])[0]
            status, text = await asyncio.to_thread(forward, store, content_type, bytes(body))
        shown = {name: values for name, values in headers.items() if name != TOKEN}
        write_line({"path": path, "runner": "", "headers": shown, "bytes": len(body), "status": status})
        answer = [(b":status", str(status).encode()), (b"content-type", b"text/plain; charset=utf-8")]
        self.http.send_headers(stream, answer, end_stream=not text)
        if text:
            self.http.send_data(stream, f"{text}\n".encode(), end_stream=True)
        self.transmit()


def forward(store: str, content_type: str, body: bytes) -> tuple[int, str]:
    request = urllib.request.Request(store, data=body, headers={"content-type": content_type}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            status = response.status
    except urllib.error.HTTPError as error:
        status = error.code
    except OSError:
        return 502, "forwarding telemetry failed"
    return (status, "") if status in (200, 204) else (502, f"backend returned {status}")


async def main() -> None:
    told = arguments(metrics="URL of VictoriaMetrics", logs="URL of VictoriaLogs")
    for base, suffix, store in [
        ("/_telemetry/metrics", "/api/v1/import/prometheus", told.metrics),
        ("/_telemetry/logs", "/insert/jsonline", told.logs),
    ]:
        Server.stores[base + suffix] = store + suffix
    host, _, port = told.address.rpartition(":")
    await serve(host, int(port), configuration=configuration(told, is_client=False), create_protocol=Server)
    write_line({"listening": told.address})
    orders = await standard_input()
    while await orders.read(1024):
        pass


if __name__ == "__main__":
    asyncio.run(main())
