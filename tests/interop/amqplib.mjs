// amqplib against the AMQP port: what it saw is printed as JSON. Arguments: url, a prefix for names.
import amqp from 'amqplib'

const [url, prefix] = process.argv.slice(2)
const seen = {}
const connection = await amqp.connect(url)
const channel = await connection.createConfirmChannel()
const exchange = `${prefix}-exchange`
const queue = `${prefix}-queue`

await channel.assertExchange(exchange, 'topic', { durable: true })
await channel.assertQueue(queue, { durable: true, arguments: { 'x-max-length': 1000 } })
await channel.bindQueue(queue, exchange, 'a.#')
await channel.prefetch(10)

const options = {
  persistent: true,
  contentType: 'text/plain',
  messageId: 'm1',
  correlationId: 'c1',
  replyTo: 'answers',
  type: 'reading',
  appId: 'node',
  headers: { text: 'x', number: 5, nested: { list: [1, 'two'] }, flag: true },
}
for (let number = 0; number < 50; number++) {
  channel.publish(exchange, `a.${number % 3}`, Buffer.from(String(number)), options)
}
await channel.waitForConfirms()
seen.confirmed = true

// A mandatory message that no queue takes comes back.
const returned = new Promise((resolve) => channel.once('return', resolve))
channel.publish(exchange, 'nowhere', Buffer.from('back'), { mandatory: true })
seen.returned = (await returned).content.toString()

// Everything comes in order; one is requeued, one rejected.
const bodies = []
let redelivered = 0
await new Promise((resolve) => {
  channel.consume(queue, (message) => {
    if (message === null) {
      seen.cancelled = true // the queue is deleted below
      return
    }
    const body = message.content.toString()
    if (body === '7' && !message.fields.redelivered) {
      channel.nack(message, false, true)
      return
    }
    if (message.fields.redelivered) redelivered += 1
    if (bodies.length === 0) {
      const { headers, contentType, messageId, correlationId, replyTo, type, appId, deliveryMode } = message.properties
      seen.properties = { headers, contentType, messageId, correlationId, replyTo, type, appId, deliveryMode }
    }
    if (body === '9') channel.reject(message, false)
    else channel.ack(message)
    bodies.push(Number(body))
    if (bodies.length === 50) resolve()
  })
})
seen.all = [...bodies].sort((a, b) => a - b).every((body, index) => body === index)
seen.ordered = bodies.filter((body) => body !== 7).every((body, index, all) => index === 0 || all[index - 1] < body)
seen.redelivered = redelivered >= 1

// A large body in many frames, and a get.
const large = Buffer.alloc(900_000, 'x')
const other = await channel.assertQueue('', { exclusive: true })
channel.sendToQueue(other.queue, large)
await channel.waitForConfirms()
const got = await channel.get(other.queue)
channel.ack(got)
seen.large = got.content.equals(large)
seen.empty = await channel.get(other.queue)

// Direct reply-to.
const answered = new Promise((resolve) => {
  channel.consume('amq.rabbitmq.reply-to', (message) => resolve(message.content.toString()), { noAck: true })
})
const requests = await channel.assertQueue('', { exclusive: true })
await channel.consume(requests.queue, (message) => {
  channel.ack(message)
  channel.sendToQueue(message.properties.replyTo, Buffer.from(`re: ${message.content}`))
})
channel.sendToQueue(requests.queue, Buffer.from('ping'), { replyTo: 'amq.rabbitmq.reply-to' })
seen.answer = await answered

// A mistake closes its channel alone, with the code that RabbitMQ has.
const wrong = await connection.createChannel()
const failed = new Promise((resolve) => wrong.once('error', resolve))
wrong.checkQueue(`${prefix}-nowhere`).catch(() => {})
seen.mistake = (await failed).code
seen.deleted = (await channel.deleteQueue(queue)).messageCount
await channel.deleteExchange(exchange)
await channel.close()
await connection.close()
console.log(JSON.stringify(seen))
