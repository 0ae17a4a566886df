// `make dev`: starts the local stack, prints `ready` when everything responds, and stops it on Ctrl-C.
//
//   node dev/stack/main.ts [--only kubernetes] [--state FOLDER]
import { parseArgs } from 'node:util';
import { startKubernetes, startStack } from './stack.ts';

const { values } = parseArgs({ options: { only: { type: 'string' }, state: { type: 'string' } } });

const started = performance.now();
const report = (line: string) => {
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  process.stderr.write(`${seconds.padStart(6)} s  ${line}\n`);
};

const interruption = new AbortController();
const interrupted = new Promise<void>((resolve) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (!interruption.signal.aborted) report('stopping');
      interruption.abort(new Error('interrupted'));
      resolve();
    });
  }
});

const options = { report, signal: interruption.signal, ...(values.state ? { stateFolder: values.state } : {}) };

/** Starts the stack, prints `ready`, waits for a signal, and stops it. */
async function run(): Promise<void> {
  if (values.only !== undefined && values.only !== 'kubernetes') throw new Error('--only must be kubernetes');
  if (values.only) {
    const kubernetes = await startKubernetes(options);
    console.log(`export KUBECONFIG=${kubernetes.kubeconfig}`);
    console.log('ready');
    await interrupted;
    await kubernetes.stop();
    return;
  }
  const stack = await startStack(options);
  report(`REST ${stack.info.rest}  gRPC ${stack.info.grpc}`);
  report(`dashboard ${stack.info.dashboard}  reference ${stack.info.dashboard}/reference/`);
  report(`passwords and everything else: ${stack.infoPath}`);
  console.log('ready');
  await interrupted;
  await stack.stop();
}

try {
  await run();
  report('stopped');
  process.exit(0);
} catch (error) {
  if (interruption.signal.aborted) {
    report('stopped');
    process.exit(0);
  }
  report(error instanceof Error ? error.message : String(error));
  process.exit(1);
}
