// stream-memory: memory of the apiserver per open stream of a device, with many streams on each connection and with a
// connection of its own for each, beside the same streams of a bare grpc-js server.
//
//   KELLET_BENCH_STREAMS   streams on shared connections (10000)
//   KELLET_BENCH_ROUNDS    rounds of each (3)
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Environment, startEnvironment } from '../environment.ts';
import { describeRound, type Result, resultOf, type Round, type Suite } from '../harness.ts';
import { mintKeys } from './device-keys.ts';
import type { StreamClientOptions } from './stream-client.ts';

const path = '/kellet.v1.DeviceLinkService/Connect';

/** As a fleet behind proxies, and directly: a port admits 10,000 connections, and a process 20,000 files. */
const cases = [
  { name: 'stream-memory', streams: Number(process.env['KELLET_BENCH_STREAMS'] ?? 10_000), perConnection: 500 },
  { name: 'stream-memory-connection-each', streams: 9_000, perConnection: 1 },
];

const rounds = Number(process.env['KELLET_BENCH_ROUNDS'] ?? 3);

/** Time for garbage of the opening to be collected. */
const settleMilliseconds = 20_000;

/** The suite. */
export const streamMemory: Suite = {
  name: 'stream-memory',
  run: async (report) => {
    const results: Result[] = [];
    for (const { name, streams, perConnection } of cases) {
      const figure = { name, unit: 'kB', baseline: 'grpc-js alone' };
      const measured: Round[] = [];
      for (let number = 1; number <= rounds; number += 1) {
        const round = await measureRound(streams, perConnection, report);
        report(`${name}: round ${number}/${rounds}: ${describeRound(figure, round)}`);
        measured.push(round);
      }
      results.push(resultOf(figure, measured));
    }
    return results;
  },
};

/** Measures with a new process of each server, because memory once used is not given back. */
async function measureRound(streams: number, perConnection: number, report: (line: string) => void): Promise<Round> {
  const environment = await startEnvironment(report, streams);
  try {
    const keys = await mintKeys(environment);
    const bare = await measureBare({ path, keys, perConnection });
    const address = environment.grpc;
    const ours = await measure(environment.pids['apiserver']!, { address, path, keys, perConnection });
    const remarks = { streams, 'opened per second': streams / ours.seconds, 'apiserver MB': ours.megabytes };
    return { ours: ours.kilobytes, baseline: bare.kilobytes, remarks };
  } finally {
    await environment.close();
  }
}

interface Measured {
  readonly kilobytes: number;
  readonly megabytes: number;
  readonly seconds: number;
}

/** Opens the streams, and returns by how much the server's process has grown. */
async function measure(pid: Environment['pids'][string], options: StreamClientOptions): Promise<Measured> {
  // One stream first, so that what every process needs once is not counted.
  const first = await openStreams({ ...options, keys: options.keys.slice(0, 1) });
  await sleep(settleMilliseconds / 4);
  const before = residentKilobytes(pid);
  const client = await openStreams({ ...options, keys: options.keys.slice(1) });
  await sleep(settleMilliseconds);
  const after = residentKilobytes(pid);
  for (const { child } of [first, client]) child.disconnect();
  return { kilobytes: (after - before) / (options.keys.length - 1), megabytes: after / 1024, seconds: client.seconds };
}

async function measureBare(options: Omit<StreamClientOptions, 'address'>): Promise<Measured> {
  const server = fork(join(import.meta.dirname, 'bare-server.ts'));
  const [port] = (await once(server, 'message')) as [number];
  const measured = await measure(server.pid!, { ...options, address: `127.0.0.1:${port}` });
  server.disconnect();
  return measured;
}

async function openStreams(options: StreamClientOptions): Promise<{ child: ChildProcess; seconds: number }> {
  const child = fork(join(import.meta.dirname, 'stream-client.ts'));
  child.send(options);
  const [seconds] = (await Promise.race([once(child, 'message'), once(child, 'exit')])) as [number];
  if (child.exitCode !== null) throw new Error('the streams could not be opened');
  return { child, seconds };
}

const residentKilobytes = (pid: number): number =>
  Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]);
