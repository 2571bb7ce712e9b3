"""A controller that lists everything when it starts, and keeps a tenth of it: a spike, then little."""

import json
import sys
import time

count, seconds = int(sys.argv[1]), float(sys.argv[2])
pods = [
    {"name": f"pod-{n}", "labels": {"a": str(n), "b": str(n * 7)}, "status": "Running"} for n in range(count)
]
text = json.dumps(pods)
pods = json.loads(text)
kept = {pod["name"]: pod["status"] for pod in pods[: count // 10]}
del pods, text
end, total = time.time() + seconds, 0
while time.time() < end:
    total += sum(len(status) for status in kept.values())
    time.sleep(0.05)
