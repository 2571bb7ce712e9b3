"""A job of small objects: dictionaries, lists and strings."""
items = [{"key": i * 7919 % 100003, "text": f"text {i}"} for i in range(600_000)]
groups = {}
for item in items:
    groups.setdefault(item["key"], []).append(item["text"])
items.sort(key=lambda item: item["key"])
print(len(groups), items[0]["text"])
