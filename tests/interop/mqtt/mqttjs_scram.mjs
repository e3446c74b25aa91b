// How MQTT.js proves a password by SCRAM-SHA-256, for test_mqttjs.py: node mqttjs_scram.mjs URL USER PASSWORD
// Prints one JSON object with what it was told: the code of the CONNACK, and whether the gateway has proven that it
// knows the password too.
import {createHash, createHmac, pbkdf2Sync, randomBytes} from 'node:crypto'
import mqtt from 'mqtt'

const [url, user, password] = process.argv.slice(2)
const METHOD = 'SCRAM-SHA-256'
const hmac = (key, text) => createHmac('sha256', key).update(text).digest()
const nonce = randomBytes(18).toString('base64')
const first = `n=${user},r=${nonce}`
let signature = ''

function prove(challenge) {
  const said = Object.fromEntries(challenge.split(',').map((part) => [part[0], part.slice(2)]))
  if (!said.r.startsWith(nonce)) throw new Error('not our nonce')
  const salted = pbkdf2Sync(password, Buffer.from(said.s, 'base64'), Number(said.i), 32, 'sha256')
  const clientKey = hmac(salted, 'Client Key')
  const unproven = `c=biws,r=${said.r}`
  const message = `${first},${challenge},${unproven}`
  const mask = hmac(createHash('sha256').update(clientKey).digest(), message)
  signature = hmac(hmac(salted, 'Server Key'), message).toString('base64')
  return `${unproven},p=${Buffer.from(clientKey.map((byte, n) => byte ^ mask[n])).toString('base64')}`
}

const client = mqtt.connect(url, {
  protocolVersion: 5,
  reconnectPeriod: 0,
  connectTimeout: 15_000,
  properties: {authenticationMethod: METHOD, authenticationData: Buffer.from(`n,,${first}`)},
})
client.handleAuth = (packet, done) => {
  const authenticationData = Buffer.from(prove(packet.properties.authenticationData.toString()))
  done(null, {cmd: 'auth', reasonCode: 24, properties: {authenticationMethod: METHOD, authenticationData}})
}
const connack = await new Promise((resolve, reject) => {
  client.on('packetreceive', (packet) => packet.cmd === 'connack' && resolve(packet))
  client.on('close', () => reject(new Error('closed')))
  client.on('error', () => {})
})
const last = connack.properties?.authenticationData?.toString() ?? ''
client.end(true)
console.log(JSON.stringify({code: connack.reasonCode, proven: last !== '' && last === `v=${signature}`}))
