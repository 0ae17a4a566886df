// A device on MQTT: sends a point, carries out commands, follows its settings, and downloads the update that is assigned to it.
//
//   KELLET_MQTT=mqtt://127.0.0.1:1883 DEVICE_ID=… DEVICE_KEY=sk_live_… node examples/mqtt/device.ts [COMMANDS]
//
// Needs mqtt (mqtt.js). Ends once it has responded to COMMANDS commands; without it, runs until it is stopped.
import { createHash } from 'node:crypto';
import mqtt from 'mqtt';

interface Command {
  correlation_id: string;
  method: string;
}

const wanted = Number(process.argv[2] ?? Infinity);
const print = (line: string) => process.stdout.write(`${line}\n`);
const chunkBytes = 65_536;

const client = mqtt.connect(process.env['KELLET_MQTT'] ?? 'mqtt://127.0.0.1:1883', {
  username: process.env['DEVICE_ID']!,
  password: process.env['DEVICE_KEY']!,
  clientId: 'device',
  // Subscriptions are kept for a day, so that commands arrive right after a reconnection.
  clean: false,
  reconnectPeriod: 1000 + Math.random() * 4000,
});

/** Responses by correlation id. A command may arrive twice: it is carried out once, and gets the same response. */
const responses = new Map<string, string>();

async function respond({ correlation_id, method }: Command): Promise<void> {
  if (!responses.has(correlation_id)) {
    print(`carrying out ${method}`);
    responses.set(correlation_id, JSON.stringify({ success: true }));
  }
  await client.publishAsync(`kellet/v1/commands/${correlation_id}/response`, responses.get(correlation_id)!, {
    qos: 1,
  });
  if (responses.size >= wanted) {
    await client.endAsync();
    process.exit(0);
  }
}

/** Publishes to a topic and returns the next message on another. */
function ask(topic: string, payload: string, response: string): Promise<Buffer> {
  return new Promise((resolve) => {
    const take = (from: string, message: Buffer): void => {
      if (from !== `kellet/v1/${response}`) return;
      client.off('message', take);
      resolve(message);
    };
    client.on('message', take);
    client.publish(`kellet/v1/${topic}`, payload, { qos: 1 });
  });
}

async function download(): Promise<void> {
  const update = JSON.parse((await ask('ota/get/1', '{}', 'ota/answer/1')).toString()) as {
    package_id: string;
    size_bytes: number;
    sha256: string;
  };
  if (update.package_id === '') return;
  const hash = createHash('sha256');
  for (let offset = 0; offset < update.size_bytes; offset += chunkBytes) {
    const length = Math.min(chunkBytes, update.size_bytes - offset);
    const { package_id: id } = update;
    hash.update(await ask(`ota/chunk/${id}/${offset}/${length}`, '', `ota/data/${id}/${offset}`));
  }
  print(hash.digest('hex') === update.sha256 ? `downloaded ${update.size_bytes} bytes` : 'the download is damaged');
}

client.on('message', (topic, message) => {
  if (topic === 'kellet/v1/commands') void respond(JSON.parse(message.toString()) as Command);
  if (topic === 'kellet/v1/attributes/shared' || topic === 'kellet/v1/errors') print(`${topic} ${message.toString()}`);
});
client.on('error', (error) => {
  print(error.message);
  // The key is not valid: trying again would not help.
  process.exit(1);
});
async function run(): Promise<void> {
  const filters = ['attributes/#', 'ota/#', 'errors'].map((filter) => `kellet/v1/${filter}`);
  await client.publishAsync('kellet/v1/telemetry', JSON.stringify({ numeric_values: { temperature: 21.5 } }), {
    qos: 1,
  });
  print('the point is stored');
  await client.subscribeAsync(filters, { qos: 1 });
  await download();
  await client.subscribeAsync('kellet/v1/commands', { qos: 1 });
}
client.once('connect', () => void run());
