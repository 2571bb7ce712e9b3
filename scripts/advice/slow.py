"""A service that fills slowly: it keeps what comes for a while, and drops most of it now and then."""
import sys
import time

seconds = float(sys.argv[1])
begun, kept, number = time.monotonic(), {}, 0
while (now := time.monotonic() - begun) < seconds:
    # What came so far depends on the clock, not on how fast this is.
    while number < now / seconds * 240_000:
        kept[number] = [f"visit {number}", {"page": number % 977, "who": "v" * (number % 700)}]
        number += 1
        if number % 60_000 == 0:
            kept = {key: value for key, value in kept.items() if key % 8 == 0 or key > number - 20_000}
    time.sleep(0.05)
print(len(kept))
