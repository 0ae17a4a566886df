// A device that measures a temperature, blinks on command, takes its interval from a shared attribute, and updates itself.
//
//   KELLET_URL=http://127.0.0.1:8080 PROVISION_KEY=… HARDWARE_ID=pump-3 FOLDER=/tmp/pump-3 node examples/device/start.ts
//
// The address chooses the protocol: http://…:8080 is REST, grpc://…:9090 gRPC, mqtt://…:1883 MQTT.
import { readFileSync } from 'node:fs';
import { openDevice } from '@kellet/device';

const {
  KELLET_URL = 'http://127.0.0.1:8080',
  PROVISION_KEY = '',
  HARDWARE_ID = 'pump-3',
  FOLDER = 'pump-3',
} = process.env;
const print = (line: string): void => void process.stdout.write(`${line}\n`);
const stop = new AbortController();
process.once('SIGINT', () => stop.abort()).once('SIGTERM', () => stop.abort());

let seconds = 1;
const device = await openDevice({
  url: KELLET_URL,
  folder: FOLDER,
  claim: { provision_key: PROVISION_KEY, device_name: HARDWARE_ID, hardware_id: HARDWARE_ID },
  updates: { factoryVersion: '1.0.0' },
  signal: stop.signal,

  onCommand({ method, params }) {
    if (method !== 'blink') throw new Error(`unknown command ${method}`);
    print('blinking');
    return { blinked: params?.['times'] ?? 1 };
  },

  onAttributes({ changed }) {
    if (typeof changed['interval'] !== 'number' || changed['interval'] < 1) return;
    seconds = changed['interval'];
    device.setAttributes({ interval: seconds }).catch((error: Error) => print(error.message));
  },

  // For this example an image is healthy if it begins with "firmware". A real image would be this program itself.
  checkHealth() {
    const image = readFileSync(process.env['IMAGE'] ?? '', 'utf8');
    if (!image.startsWith('firmware')) throw new Error('the image is broken');
  },

  onError: (error) => print(error instanceof Error ? error.message : String(error)),
});
print(`this is ${device.identity.device_id}`);

let timer: NodeJS.Timeout;
function measure(): void {
  // Kept on disk from here on, until the platform has stored it.
  device.record({ temperature: 20 + Math.random() });
  timer = setTimeout(measure, seconds * 1000);
}
measure();

const end = await device.run(stop.signal);
clearTimeout(timer!);
await device.close();
// start.ts starts the next image after this exit status.
process.exitCode = end === 'restart' ? 75 : 0;
