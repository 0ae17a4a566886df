#!/usr/bin/env node
// kubectl-kellet, also `kubectl kellet`: the process around the plugin. Its signals, its output, its exit code.
import { enableCompileCache } from 'node:module';
import { exitCodes } from './errors.ts';
import { runPlugin } from './plugin.ts';
import { processTerminal } from './terminal.ts';

/** 128 and the number of SIGINT, as shells have it. */
const interruptedCode = 130;

/** Answers the exit code. */
async function main(argv: readonly string[]): Promise<number> {
  const interruption = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM'] as const) {
    process.once(name, () => {
      interruption.abort();
      // A watch ends by itself; a request that waits is left.
      setTimeout(() => process.exit(interruptedCode), 100);
    });
  }
  // Whoever reads the output has enough of it: `| head`.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? 0 : 1));
  if (argv[0] === '__complete') {
    process.stdout.write(await (await import('./commands/complete.ts')).complete(argv.slice(1)));
    return exitCodes.ok;
  }
  const terminal = processTerminal(process.env, { color: !argv.includes('--no-color') });
  const outcome = await runPlugin(argv, { terminal, environment: process.env, signal: interruption.signal });
  return interruption.signal.aborted ? interruptedCode : exitCodes[outcome];
}

// The Kubernetes library is a thousand files: they are compiled once.
enableCompileCache();
const code = await main(process.argv.slice(2));
// What was written is on its way out; kept connections must not hold the process.
await new Promise<void>((resolve) => void process.stdout.write('', () => resolve()));
process.exit(code);
