// The flags of kellet-sim.
import { parseArgs } from 'node:util';

/** Settings of a simulation. */
export interface SimOptions {
  /** Address of the devices' protocol. */
  url: string;
  /** Base URL of REST, over which devices are imported; empty if it is not known. */
  restUrl: string;
  devices: number;
  /** Points per second of the whole fleet. */
  rate: number;
  /** Points per message. */
  batch: number;
  /** Profile of imported devices; empty if devices claim their identities. */
  profile: string;
  /** Share of devices that fail, 0 to 1. */
  failures: number;
  durationSeconds: number;
  commands: boolean;
  connections: number;
  inFlight: number;
  keys: readonly string[];
  prefix: string;
  state: string;
  json: boolean;
}

/** A mistake in the flags. */
export class UsageError extends Error {}

export const usage = `kellet-sim simulates devices, to try the limits of an installation.

  KELLET_PROVISION_KEY=… kellet-sim --url https://kellet.example --devices 1000 --rate 500
  KELLET_API_KEY=…       kellet-sim --url https://kellet.example --devices 1000 --profile pumps --protocol mqtt

Devices get their identities by claims, with the key of a provisioning template in KELLET_PROVISION_KEY; or, with
--profile, by an import, with a credential in KELLET_API_KEY that may import devices. The identities are kept in a file for
the next run. Runs until Ctrl-C, and then prints a summary.

  --url URL           address: http(s):// REST, grpc(s):// gRPC, mqtt(s):// or ws(s):// MQTT (KELLET_URL)
  --protocol NAME     rest, grpc or mqtt: changes an http(s) address to that protocol on its usual port
  --devices N         number of devices (10)
  --rate N            points per second of all devices together (a tenth of the devices)
  --batch N           points in one message (1)
  --profile NAME      imports the devices with this profile
  --rest-url URL      base URL of REST for the import, if --url is another protocol's
  --failures N%       share of the devices that fail: commands and updates fail, and connections break (0%)
  --duration N        seconds (until Ctrl-C)
  --commands          takes commands over REST as well, by a long poll for each device (always over gRPC and MQTT)
  --connections N     sockets that all devices share over REST (64), connections over gRPC (one per 500 devices)
  --in-flight N       messages without a response; beyond, messages are skipped and counted (1000)
  --key NAME          name of a measured value, repeatable (temperature)
  --prefix TEXT       beginning of the hardware ids (sim-)
  --state FILE        file with the identities, mode 0600 (kellet-sim.ndjson)
  --json              prints the summary as JSON
  --help              shows this text
`;

const maximumDevices = 200_000;

/** Parses the flags. Returns undefined if help was asked for. Throws UsageError. */
export function parseOptions(flags: readonly string[], environment: NodeJS.ProcessEnv): SimOptions | undefined {
  const text = { type: 'string' } as const;
  const yes = { type: 'boolean', default: false } as const;
  let values;
  try {
    ({ values } = parseArgs({
      args: [...flags],
      options: {
        ...{ url: text, protocol: text, devices: text, rate: text, batch: text, profile: text, failures: text },
        ...{ 'rest-url': text, duration: text, connections: text, 'in-flight': text, prefix: text, state: text },
        ...{ key: { type: 'string', multiple: true }, commands: yes, json: yes, help: yes },
      },
    }));
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
  if (values.help) return undefined;
  const given = values.url ?? environment['KELLET_URL'] ?? '';
  if (!URL.canParse(given)) throw new UsageError('--url is missing, or is not an address');
  const url = addressFor(given, values.protocol);
  const scheme = new URL(url).protocol;
  const devices = wholeNumber('--devices', values.devices, { otherwise: 10, maximum: maximumDevices });
  const isRest = scheme.startsWith('http');
  const rate = values.rate === undefined ? Math.max(1, devices / 10) : positive('--rate', values.rate, 10_000_000);
  return {
    url,
    restUrl: values['rest-url'] ?? (given.startsWith('http') ? given : ''),
    ...{ devices, rate },
    batch: wholeNumber('--batch', values.batch, { otherwise: 1, maximum: 5000 }),
    profile: values.profile ?? '',
    failures: share('--failures', values.failures ?? '0%'),
    durationSeconds: values.duration === undefined ? Infinity : positive('--duration', values.duration, 1_000_000),
    commands: values.commands || !isRest,
    connections: wholeNumber('--connections', values.connections, {
      otherwise: isRest ? (values.commands ? devices + 64 : 64) : Math.ceil(devices / 500),
      maximum: 2 * maximumDevices,
    }),
    inFlight: wholeNumber('--in-flight', values['in-flight'], { otherwise: 1000, maximum: maximumDevices }),
    keys: values.key ?? ['temperature'],
    prefix: values.prefix ?? 'sim-',
    state: values.state ?? 'kellet-sim.ndjson',
    json: values.json,
  };
}

const schemesOf: Readonly<Record<string, readonly string[]>> = {
  rest: ['http:', 'https:'],
  grpc: ['grpc:', 'grpcs:'],
  mqtt: ['mqtt:', 'mqtts:', 'ws:', 'wss:'],
};

function addressFor(given: string, protocol: string | undefined): string {
  const { protocol: scheme, hostname } = new URL(given);
  const known = Object.values(schemesOf).flat();
  if (!known.includes(scheme)) throw new UsageError(`--url: ${scheme}// must be one of ${known.join('//, ')}//`);
  if (protocol === undefined) return given;
  const schemes = schemesOf[protocol];
  if (!schemes) throw new UsageError(`--protocol ${protocol} must be rest, grpc or mqtt`);
  if (schemes.includes(scheme)) return given;
  if (!scheme.startsWith('http')) throw new UsageError(`--protocol ${protocol} does not go with ${given}`);
  const isSecure = scheme === 'https:';
  if (protocol === 'grpc') return `${isSecure ? 'grpcs' : 'grpc'}://${hostname}:9090`;
  return isSecure ? `mqtts://${hostname}:8883` : `mqtt://${hostname}:1883`;
}

interface Range {
  otherwise: number;
  maximum: number;
}

function wholeNumber(flag: string, value: string | undefined, { otherwise, maximum }: Range): number {
  if (value === undefined) return otherwise;
  const number = Number(value);
  if (/^\d+$/.test(value) && number >= 1 && number <= maximum) return number;
  throw new UsageError(`${flag} ${value} is not a whole number from 1 to ${maximum}`);
}

function positive(flag: string, value: string, maximum: number): number {
  const number = Number(value);
  if (/^\d+(\.\d+)?$/.test(value) && number > 0 && number <= maximum) return number;
  throw new UsageError(`${flag} ${value} is not a number above 0 and up to ${maximum}`);
}

function share(flag: string, value: string): number {
  const number = Number(value.replace(/%$/, ''));
  if (/^\d+(\.\d+)?%$/.test(value) && number <= 100) return number / 100;
  throw new UsageError(`${flag} ${value} is not a percentage such as 2%`);
}
