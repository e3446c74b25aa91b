// What node-coap sees of a gateway: node node_coap.mjs PORT NAME. Prints JSON.
import coap from "coap";

const [port, name] = process.argv.slice(2);
const PATIENCE_MS = 60_000;
const LARGE = Buffer.alloc(20_000, "x");
const seen = {};

function ask(method, pathname, { payload, observe, options = {}, confirmable = true } = {}) {
  return new Promise((resolve, reject) => {
    // One of its own: an agent closes its socket when it seems idle, also under a request that comes at that moment.
    const agent = new coap.Agent({ type: "udp4" });
    const where = { host: "127.0.0.1", port: Number(port), method, pathname };
    const request = coap.request({ ...where, observe, confirmable, agent });
    for (const [option, value] of Object.entries(options)) request.setOption(option, value);
    request.on("response", resolve);
    request.on("error", reject);
    request.end(payload);
  });
}

setTimeout(() => { console.error("too slow"); process.exit(1); }, PATIENCE_MS).unref();
const path = `/t/node/${name}`;
seen.missing = (await ask("GET", path)).code;
seen.created = (await ask("POST", path, { payload: '{"t":1}', options: { "Content-Format": "application/json" } })).code;
seen.changed = (await ask("PUT", path, { payload: "2", confirmable: false })).code;
const value = await ask("GET", path);
seen.value = [value.code, value.payload.toString()];
seen.unacceptable = (await ask("GET", path, { options: { Accept: "application/xml" } })).code;
seen.large = (await ask("PUT", `${path}/large`, { payload: LARGE, options: { Block1: Buffer.from([0x06]) } })).code;
const large = await ask("GET", `${path}/large`);
seen.read = large.payload.equals(LARGE);

const stream = await ask("GET", path, { observe: true });
const notified = [];
const all = new Promise((resolve) => {
  stream.on("data", (data) => {
    notified.push(data.toString());
    if (notified.length === 1) ask("POST", path, { payload: "3" });
    if (notified.at(-1) === "3") resolve();
  });
});
await all;
stream.close();
seen.notified = [notified[0], notified.at(-1)];
seen.deleted = (await ask("DELETE", path)).code;
seen.gone = (await ask("GET", path)).code;
const links = await ask("GET", "/.well-known/core");
seen.links = links.payload.toString().includes(`</t/node/${name}/large>`);
console.log(JSON.stringify(seen));
process.exit(0);
