#!/usr/bin/env node
// kellet-sim: simulates devices, to try the limits of an installation.
import { setTimeout as sleep } from 'node:timers/promises';
import { defaultBackoff } from '../backoff.ts';
import { openProtocol } from '../transports/open.ts';
import { makeIdentities } from './identities.ts';
import { parseOptions, type SimOptions, usage, UsageError } from './options.ts';
import { Simulation } from './simulation.ts';
import { progressLine, Statistics, summaryText } from './statistics.ts';

const isTerminal = process.stderr.isTTY === true;

/** Shows a line in place of the one before, or below it if the output is not a terminal. */
function show(line: string): void {
  process.stderr.write(isTerminal ? `\r\x1b[K${line}` : `${line}\n`);
}

async function simulate(options: SimOptions): Promise<void> {
  const stop = new AbortController();
  const end = (): void => {
    // The second signal: exit without waiting.
    if (stop.signal.aborted) process.exit(130);
    stop.abort(new Error('stopped'));
  };
  process.on('SIGINT', end).on('SIGTERM', end);
  const statistics = new Statistics();
  const protocol = await openProtocol(options.url, { connections: options.connections });
  try {
    const identities = await makeIdentities({
      ...{ options, protocol },
      provisionKey: process.env['KELLET_PROVISION_KEY'] ?? '',
      apiKey: process.env['KELLET_API_KEY'] ?? '',
      insisting: {
        backoff: defaultBackoff,
        signal: stop.signal,
        onError: (error) => show(error instanceof Error ? error.message : String(error)),
      },
      onProgress: (count) => {
        if (count % 100 === 0 || count === options.devices) show(`${count} of ${options.devices} devices`);
      },
    });
    const simulation = new Simulation(options, protocol, identities, statistics);
    const connecting = setInterval(() => show(`${statistics.connected} connected`), 1000);
    await simulation.connect(stop.signal).finally(() => clearInterval(connecting));
    const begin = performance.now();
    const secondsSince = (): number => (performance.now() - begin) / 1000;
    let before = { accepted: 0, seconds: 0 };
    const progress = setInterval(() => {
      const now = { accepted: statistics.accepted, seconds: secondsSince() };
      show(progressLine(statistics, now.seconds, (now.accepted - before.accepted) / (now.seconds - before.seconds)));
      before = now;
    }, 1000);
    const duration = new AbortController();
    if (Number.isFinite(options.durationSeconds)) {
      void sleep(options.durationSeconds * 1000, undefined, { ref: false }).then(() => duration.abort());
    }
    await simulation.run(AbortSignal.any([stop.signal, duration.signal]));
    const seconds = secondsSince();
    clearInterval(progress);
    await simulation.close();
    if (isTerminal) process.stderr.write('\n');
    const summary = statistics.summary(seconds);
    process.stdout.write(options.json ? `${JSON.stringify(summary)}\n` : summaryText(summary));
    process.exitCode = summary.accepted > 0 ? 0 : 1;
  } finally {
    await protocol.close();
  }
}

try {
  const options = parseOptions(process.argv.slice(2), process.env);
  if (options) await simulate(options);
  else process.stdout.write(usage);
} catch (error) {
  process.stderr.write(`kellet-sim: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = error instanceof UsageError ? 2 : 1;
}
