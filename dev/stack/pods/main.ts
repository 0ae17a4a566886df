// `make cluster`: a Kubernetes cluster with pods on this machine until Ctrl-C.
//
//   node dev/stack/pods/main.ts [--engine kind|kubelet|kwok] [--state FOLDER] [IMAGE.tar]...
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { defaultStateFolder } from '../paths.ts';
import { startPodCluster } from './cluster.ts';

const { values, positionals } = parseArgs({
  options: { engine: { type: 'string' }, state: { type: 'string', default: join(defaultStateFolder, 'cluster') } },
  allowPositionals: true,
});
const started = performance.now();
const report = (line: string): void =>
  console.error(`${((performance.now() - started) / 1000).toFixed(1).padStart(6)} s  ${line}`);
const interrupted = new Promise<void>((resolve) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => resolve());
});

try {
  const cluster = await startPodCluster(resolve(values.state), values.engine, report);
  try {
    for (const file of positionals) {
      await cluster.loadImage(file);
      report(`${file} is loaded`);
    }
    console.log(`export KUBECONFIG=${cluster.kubeconfig}`);
    if (cluster.loadCommand) console.log(`# images: ${cluster.loadCommand}`);
    console.log('ready');
    await interrupted;
  } finally {
    await cluster.stop();
  }
  process.exit(0);
} catch (error) {
  report(error instanceof Error ? error.message : String(error));
  process.exit(1);
}
