"""A client on curl, whose wheel brings ngtcp2 and nghttp3. Takes and answers the same lines of JSON as client.py.

All requests go at once over one connection where curl finds that it can; it dials again by itself.
"""

import base64
import io
import json
import queue
import sys
import threading

import pycurl

from common import arguments, write_line

# Keys of curl's C API that pycurl may not name.
PIPEWAIT = getattr(pycurl, "PIPEWAIT", 237)
HTTP_VERSIONS = {
    "3": getattr(pycurl, "CURL_HTTP_VERSION_3ONLY", 31),
    "2": pycurl.CURL_HTTP_VERSION_2TLS,
    "1.1": pycurl.CURL_HTTP_VERSION_1_1,
}


class Exchange:
    """One request, and its response as far as it has come."""

    def __init__(self, told, order: dict) -> None:
        self.id = order["id"]
        self.body = io.BytesIO()
        self.headers: list[list[str]] = []
        body = base64.b64decode(order.get("body") or "")
        headers = [f"{name}: {value}" for name, value in order.get("headers") or []]
        # A header with nothing behind the colon is one that curl leaves out: it would say that this is a form, and wait
        # for a 100.
        if not any(name.lower() == "content-type" for name, _ in order.get("headers") or []):
            headers.append("content-type:")
        headers.append("expect:")
        self.curl = curl = pycurl.Curl()
        curl.setopt(pycurl.URL, f"https://{told.address}{order['path']}")
        curl.setopt(pycurl.PATH_AS_IS, True)
        curl.setopt(pycurl.HTTP_VERSION, HTTP_VERSIONS[told.http])
        curl.setopt(PIPEWAIT, 1)
        curl.setopt(pycurl.CAINFO, told.ca)
        curl.setopt(pycurl.SSLCERT, told.cert)
        curl.setopt(pycurl.SSLKEY, told.key)
        curl.setopt(pycurl.HTTPHEADER, headers)
        curl.setopt(pycurl.CUSTOMREQUEST, order["method"])
        curl.setopt(pycurl.POSTFIELDS, body)
        curl.setopt(pycurl.WRITEDATA, self.body)
        curl.setopt(pycurl.HEADERFUNCTION, self.header)

    def header(self, line: bytes) -> None:
        name, colon, value = line.decode().strip().partition(":")
        if colon:
            self.headers.append([name, value.strip()])

    def answer(self) -> None:
        body = base64.b64encode(self.body.getvalue()).decode()
        status = self.curl.getinfo(pycurl.RESPONSE_CODE)
        write_line({"id": self.id, "status": status, "headers": self.headers, "body": body})


def read_orders(orders: queue.Queue) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    orders.put(None)


def main() -> None:
    told = arguments()
    orders: queue.Queue = queue.Queue()
    threading.Thread(target=read_orders, args=(orders,), daemon=True).start()
    multi = pycurl.CurlMulti()
    multi.setopt(pycurl.M_PIPELINING, 2)
    running: dict[pycurl.Curl, Exchange] = {}
    while True:
        # Nothing under way: nothing to do but wait for an order.
        while not running or not orders.empty():
            order = orders.get()
            if order is None:
                return
            exchange = Exchange(told, order)
            running[exchange.curl] = exchange
            multi.add_handle(exchange.curl)
        multi.perform()
        _, done, failed = multi.info_read()
        for curl in done:
            running.pop(curl).answer()
            multi.remove_handle(curl)
        for curl, code, text in failed:
            write_line({"id": running.pop(curl).id, "error": f"{code}: {text}"})
            multi.remove_handle(curl)
        multi.select(0.01)


if __name__ == "__main__":
    main()
