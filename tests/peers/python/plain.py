"""A client on requests, the HTTP/1.1 of most Python programs. Takes and answers the same lines of JSON as client.py, one
request at a time.
"""

import base64
import json
import sys

import requests

from common import arguments, write_line


def main() -> None:
    told = arguments()
    session = requests.Session()
    session.trust_env = False
    session.cert, session.verify = (told.cert, told.key), told.ca
    for line in sys.stdin:
        order = json.loads(line)
        body = base64.b64decode(order.get("body") or "")
        url = f"https://{told.address}{order['path']}"
        try:
            answer = session.request(
                order["method"], url, headers=dict(order.get("headers") or []), data=body, allow_redirects=False, timeout=30
            )
        except requests.RequestException as error:
            write_line({"id": order["id"], "error": str(error)})
            continue
        content = base64.b64encode(answer.content).decode()
        write_line(
            {"id": order["id"], "status": answer.status_code, "headers": list(answer.headers.items()), "body": content}
        )


if __name__ == "__main__":
    main()
