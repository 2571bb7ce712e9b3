"""Loads many modules of the standard library, those in libraries of their own among them."""
import importlib

NAMES = """
array asyncio bisect bz2 calendar codecs concurrent.futures configparser csv ctypes curses datetime decimal difflib
dis email.message fractions ftplib hashlib heapq html.parser http.client imaplib inspect json logging lzma math mmap
multiprocessing optparse pickle platform pdb queue random readline select shlex smtplib socket sqlite3 ssl statistics
struct subprocess tarfile tempfile textwrap threading timeit tokenize unicodedata unittest urllib.request uuid
xml.dom.minidom xml.etree.ElementTree xmlrpc.client zipfile zlib zoneinfo
""".split()

loaded = 0
for name in NAMES:
    try:
        importlib.import_module(name)
        loaded += 1
    except ImportError:
        # A build need not have all.
        pass
print(loaded)
