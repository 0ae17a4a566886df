// `make cluster`: a Kubernetes cluster with real pods on this machine until Ctrl-C.
import { join } from 'node:path';
import { defaultStateFolder } from '../paths.ts';
import { startNodeCluster } from './node.ts';

const started = performance.now();
const cluster = await startNodeCluster(join(defaultStateFolder, 'cluster'), (line) =>
  console.error(`${((performance.now() - started) / 1000).toFixed(1).padStart(6)} s  ${line}`),
);
console.log(`export KUBECONFIG=${cluster.kubeconfig}`);
console.log('ready');
await new Promise<void>((resolve) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => resolve());
});
await cluster.stop();
process.exit(0);
