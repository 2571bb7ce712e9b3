"""Load for the services of programs.toml: bounded, the same each time, over loopback.

    load.py wait ADDRESS                 until a server accepts connections: a port, or the path of a socket
    load.py memcached PORT COUNT [SECONDS]   sets and reads values of 100 to 4000 bytes, over so long a time
    load.py etcd PORT COUNT              puts and reads values through etcd's gateway
    load.py get PORT COUNT [CLIENTS]     COUNT different paths
    load.py post PORT COUNT BYTES        stores values of that size
"""

import base64
import http.client
import json
import random
import socket
import sys
import threading
import time


def connect(address):
    if address.isdigit():
        return socket.create_connection(("127.0.0.1", int(address)), timeout=60)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


def wait(address):
    for _ in range(6000):
        try:
            connect(address).close()
            return
        except OSError:
            time.sleep(0.01)
    sys.exit(f"no server at {address}")


def memcached(port, count, seconds="0"):
    sizes = random.Random(1)
    begun, each = time.monotonic(), float(seconds) / int(count)
    with connect(port) as connection:
        file = connection.makefile("rwb")
        for number in range(int(count)):
            value = b"v" * sizes.randrange(100, 4000)
            time.sleep(max(0, begun + number * each - time.monotonic()) if number % 50 == 0 else 0)
            file.write(b"set key%d 0 0 %d\r\n%s\r\n" % (number, len(value), value))
            file.flush()
            if file.readline() != b"STORED\r\n":
                sys.exit("memcached did not store a value")
            if number % 4 == 0:
                file.write(b"get key%d\r\n" % sizes.randrange(number + 1))
                file.flush()
                while file.readline() != b"END\r\n":
                    pass


def etcd(port, count):
    connection = http.client.HTTPConnection("127.0.0.1", int(port))
    encoded = lambda text: base64.b64encode(text.encode()).decode()
    for number in range(int(count)):
        body = {"key": encoded(f"key{number % 500}"), "value": encoded("v" * 2000)}
        for call in ("put", "range"):
            connection.request("POST", f"/v3/kv/{call}", json.dumps(body if call == "put" else {"key": body["key"]}))
            reply = connection.getresponse()
            reply.read()
            if reply.status != 200:
                sys.exit(f"etcd: {reply.status}")


def http_client(method, port, first, step, count, body):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for number in range(first, count, step):
        connection.request(method, f"/{number}", body)
        reply = connection.getresponse()
        reply.read()


def get(port, count, clients="1", method="GET", body=None):
    threads = [
        threading.Thread(target=http_client, args=(method, int(port), first, int(clients), int(count), body))
        for first in range(int(clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def post(port, count, size):
    get(port, count, "2", "POST", b"x" * int(size))


{"wait": wait, "memcached": memcached, "etcd": etcd, "get": get, "post": post}[sys.argv[1]](*sys.argv[2:])
