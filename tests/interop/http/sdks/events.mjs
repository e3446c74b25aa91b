// The CloudEvents SDK for JavaScript as a sender and as a sink: sends events to a gateway, and tells what comes back.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { CloudEvent, HTTP } from "cloudevents";

const [url, subject, count] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const came = [];

const server = createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    if (request.method === "OPTIONS") {
      response.writeHead(200, { "WebHook-Allowed-Origin": "*" }).end();
      return;
    }
    const structured = request.headers["content-type"].startsWith("application/cloudevents");
    const binaryData = request.headers["content-type"] === "application/octet-stream";
    const whole = Buffer.concat(parts);
    const event = HTTP.toEvent({ headers: request.headers, body: binaryData ? whole : whole.toString() });
    const data = event.data_base64 ?? (Buffer.isBuffer(event.data) ? event.data.toString("base64") : event.data);
    came.push({
      structured, id: event.id, type: event.type, source: event.source, subject: event.subject, time: event.time,
      colour: event.colour, datacontenttype: event.datacontenttype, data,
    });
    response.writeHead(204).end();
    if (came.length === count) {
      console.log(JSON.stringify(came));
      server.closeAllConnections();
      server.close();
    }
  });
});

async function send(message) {
  const body = typeof message.body === "string" || Buffer.isBuffer(message.body) ? message.body : Buffer.from(message.body);
  const answer = await fetch(`${url}/events`, { method: "POST", headers: message.headers, body });
  if (answer.status !== 200) throw new Error(`${answer.status}: ${await answer.text()}`);
}

server.listen(0, "127.0.0.1", () => console.log(server.address().port));
const lines = createInterface({ input: process.stdin });
lines.once("line", async () => {
  lines.close();
  const common = { source: "/sdk", type: "com.example.sdk", subject, time: "2026-11-23T02:45:00.123Z", colour: "red" };
  await send(HTTP.binary(new CloudEvent({ ...common, id: "1", data: { n: 1 } })));
  await send(HTTP.structured(new CloudEvent({ ...common, id: "2", data: { n: 2 } })));
  const bytes = Buffer.from([0, 255, 1]);
  const raw = { ...common, id: "3", datacontenttype: "application/octet-stream", data_base64: bytes.toString("base64") };
  await send(HTTP.structured(new CloudEvent(raw)));
});
