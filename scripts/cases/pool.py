"""A service: a parent with a table of 48 MiB, and 12 workers of ten sessions, which use little of that."""

import mmap
import os
import sys
import time

PAGE = 4096
table = bytearray(48 << 20)
for at in range(0, len(table), PAGE):
    table[at] = 1
end, parent = os.pipe()
for _ in range(12):
    if os.fork() == 0:
        os.close(parent)
        sessions = []
        for _ in range(10):
            session = mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for at in range(0, 64 << 10, PAGE):
                session[at] = 1
            sessions.append(session)
        os.read(end, 1)
        os._exit(0)
time.sleep(float(sys.argv[1]))
os.close(parent)
for _ in range(12):
    os.wait()
