#!/usr/bin/env node
// Entry point of kubectl-kellet (`kubectl kellet`): signals, output and exit code.
import { enableCompileCache } from 'node:module';
import { exitCodes } from './errors.ts';
import { runPlugin } from './plugin.ts';
import { processTerminal } from './terminal.ts';

/** Exit code after SIGINT, following the shell convention: 128 plus the signal number. */
const interruptedCode = 130;

/** Runs the plugin. Returns the exit code. */
async function main(argv: readonly string[]): Promise<number> {
  const interruption = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM'] as const) {
    process.once(name, () => {
      interruption.abort();
      // A watch ends on its own; a pending request is abandoned.
      setTimeout(() => process.exit(interruptedCode), 100);
    });
  }
  // The reader of the output has closed the pipe, such as `| head`.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => process.exit(error.code === 'EPIPE' ? 0 : 1));
  if (argv[0] === '__complete') {
    process.stdout.write(await (await import('./commands/complete.ts')).complete(argv.slice(1)));
    return exitCodes.ok;
  }
  const terminal = processTerminal(process.env, { color: !argv.includes('--no-color') });
  const outcome = await runPlugin(argv, { terminal, environment: process.env, signal: interruption.signal });
  return interruption.signal.aborted ? interruptedCode : exitCodes[outcome];
}

// The Kubernetes library consists of a thousand files: cache their compilation.
enableCompileCache();
const code = await main(process.argv.slice(2));
// Output has been flushed; keep-alive connections must not keep the process running.
await new Promise<void>((resolve) => void process.stdout.write('', () => resolve()));
process.exit(code);
