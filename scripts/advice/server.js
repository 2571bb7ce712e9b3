// A store over HTTP: what is posted is kept as objects.
const store = new Map();
require("http").createServer((request, response) => {
    let length = 0;
    request.on("data", (part) => { length += part.length; });
    request.on("end", () => {
        const items = [];
        for (let i = 0; i < length; i++) items.push({ number: i, text: "item " + (i * 31 % 1000) });
        store.set(request.url, items);
        response.end("kept " + store.size);
    });
}).listen(Number(process.argv[2]), "127.0.0.1");
