"""Serves files over HTTP to another process, which asks for each of them several times."""
import functools
import http.server
import subprocess
import sys
import threading

CLIENT = """
import sys, urllib.request
total = 0
for turn in range(20):
    for name in sys.argv[2:]:
        with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/{name}") as reply:
            total += len(reply.read())
print(total)
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


folder, names = sys.argv[1], sys.argv[2:]
handler = functools.partial(Quiet, directory=folder)
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    subprocess.run([sys.executable, "-c", CLIENT, str(server.server_port), *names], check=True)
    server.shutdown()
