// What MQTT.js does against a gateway, for test_mqttjs.py: node mqttjs.mjs URL PROTOCOL_VERSION TOPIC [CA_FILE]
// Prints one JSON object with what it saw, or fails.
import {readFileSync} from 'node:fs'
import mqtt from 'mqtt'

const [url, version, topic, caFile] = process.argv.slice(2)
const protocolVersion = Number(version)
const options = {
  protocolVersion,
  protocolId: protocolVersion === 3 ? 'MQIsdp' : 'MQTT',
  reconnectPeriod: 0,
  connectTimeout: 15_000,
  ...(caFile && {ca: readFileSync(caFile)}),
}
const clientId = (name) => `${name}-${process.pid}-${protocolVersion}`

class Inbox {
  constructor(client) {
    this.messages = []
    this.waiting = []
    client.on('message', (address, body, packet) => {
      this.messages.push({address, body, retain: packet.retain, qos: packet.qos, properties: packet.properties})
      this.waiting.forEach((look) => look())
    })
  }

  take(count) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${this.messages.length} of ${count} messages`)), 15_000)
      const look = () => {
        if (this.messages.length < count) return
        clearTimeout(timer)
        this.waiting = this.waiting.filter((one) => one !== look)
        resolve(this.messages.splice(0, count))
      }
      this.waiting.push(look)
      look()
    })
  }
}

const seen = {}
const subscriber = await mqtt.connectAsync(url, {...options, clientId: clientId('sub')})
const publisher = await mqtt.connectAsync(url, {
  ...options,
  clientId: clientId('pub'),
  will: {topic: `${topic}/will`, payload: Buffer.from('gone'), qos: 1, retain: false},
})
const inbox = new Inbox(subscriber)
const granted = await subscriber.subscribeAsync(`${topic}/#`, {qos: 2})
seen.granted = granted.map((one) => one.qos)

seen.qos = []
for (const qos of [0, 1, 2]) {
  for (let n = 0; n < 50; n++) await publisher.publishAsync(`${topic}/${qos}`, `${n}`, {qos})
  const found = await inbox.take(50)
  seen.qos.push(found.every((one, n) => one.body.toString() === `${n}` && one.qos === qos))
}

// All at once: many packets in a read, and in a frame.
const many = Array.from({length: 1000}, (_, n) => publisher.publishAsync(`${topic}/many`, `${n}`, {qos: 1}))
await Promise.all(many)
seen.many = (await inbox.take(1000)).every((one, n) => one.body.toString() === `${n}`)

const large = Buffer.alloc(900_000, 7)
await publisher.publishAsync(`${topic}/large`, large, {qos: 2})
seen.large = (await inbox.take(1))[0].body.equals(large)

if (protocolVersion === 5) {
  const properties = {
    contentType: 'text/plain',
    responseTopic: 'r',
    correlationData: Buffer.from('c'),
    userProperties: {a: ['1', '2'], b: '3'},
  }
  await publisher.publishAsync(`${topic}/properties`, 'p', {qos: 1, properties})
  const got = (await inbox.take(1))[0].properties
  seen.properties = [got.contentType, got.responseTopic, got.correlationData.toString(), got.userProperties]
}

await publisher.publishAsync(`${topic}/kept`, 'kept', {qos: 1, retain: true})
await inbox.take(1)
const late = await mqtt.connectAsync(url, {...options, clientId: clientId('late')})
const lateInbox = new Inbox(late)
await late.subscribeAsync(`${topic}/kept`, {qos: 1})
const [kept] = await lateInbox.take(1)
seen.retained = [kept.body.toString(), kept.retain]
await publisher.publishAsync(`${topic}/kept`, '', {qos: 1, retain: true})
await inbox.take(1)

publisher.stream.destroy()
seen.will = (await inbox.take(1))[0].body.toString()

// A session goes on where it was.
const durable = {...options, clientId: clientId('durable'), clean: false}
if (protocolVersion === 5) durable.properties = {sessionExpiryInterval: 600}
const first = await mqtt.connectAsync(url, durable)
await first.subscribeAsync(`${topic}/session`, {qos: 1})
await first.endAsync()
await late.publishAsync(`${topic}/session`, 'missed', {qos: 1})
const again = mqtt.connect(url, durable)
const againInbox = new Inbox(again)
const present = await new Promise((resolve, reject) => {
  again.once('connect', (connack) => resolve(connack.sessionPresent))
  again.once('error', reject)
})
seen.session = [present, (await againInbox.take(1))[0].body.toString()]

await Promise.all([subscriber, late, again].map((client) => client.endAsync()))
console.log(JSON.stringify(seen))
