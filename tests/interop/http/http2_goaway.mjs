// Node's HTTP/2 client: while an event stream is open, it posts, sends GOAWAY, and prints the statuses of the answers.
import http2 from "node:http2";

const [url, path, count] = process.argv.slice(2);
const session = http2.connect(url);
session.on("error", (error) => console.log(`session ${error.code}`));
const events = session.request({ ":path": "/subscribe?filter=nothing" });
events.on("error", (error) => console.log(`events ${error.code}`));
events.on("response", () => {
  let open = Number(count);
  for (let n = 0; n < Number(count); n += 1) {
    const request = session.request({ ":method": "POST", ":path": path });
    request.on("response", (headers) => console.log(headers[":status"]));
    request.on("error", (error) => console.log(`request ${error.code}`));
    request.on("close", () => {
      open -= 1;
      if (open === 0) events.close();
    });
    request.resume();
    request.end(`${n}`);
  }
  session.goaway(0);
  session.close();
});
