// Sorts and groups objects.
const items = [];
for (let i = 0; i < 1500000; i++) items.push({ key: (i * 7919) % 100003, text: "t" + (i % 977) });
const groups = new Map();
for (const item of items) groups.set(item.key, (groups.get(item.key) || 0) + item.text.length);
items.sort((a, b) => a.key - b.key);
console.log(groups.size, items[0].text);
