// mocha root-hook plugin of the e2e tests: one whole stack for a run, on free ports and with fresh state.
import { join } from 'node:path';
import { checkout } from '../paths.ts';
import { type Stack, startStack } from '../stack.ts';

let running: Stack | undefined;

/** The stack of this test run. */
export function stack(): Stack {
  if (!running) throw new Error('no stack is running: run mocha with --require ./dev/stack/testing/test-stack.ts');
  return running;
}

/** Settings that keep waits short: small batches, quick blocks, and a limit that no suite reaches. */
const environment = {
  KELLET_REST_PORT: '0',
  KELLET_GRPC_PORT: '0',
  KELLET_CONTROL_PORT: '0',
  KELLET_METRICS_PORT: '0',
  KELLET_DASHBOARD_PORT: '0',
  KELLET_MQTT_PORT: '0',
  KELLET_ARTIFACTS_PORT: '0',
  KELLET_BATCH_SECONDS: '2',
  KELLET_DEVCHAIN_BLOCK_MS: '500',
  KELLET_DEV_RATE_LIMIT: '1000000',
  KELLET_DRIFT_CHECK_SECONDS: '0.5',
};

/** Runs once before all tests. */
export async function mochaGlobalSetup(): Promise<void> {
  running = await startStack({
    stateFolder: join(checkout, '.kellet', 'test'),
    fresh: true,
    survivesPowerFailure: false,
    environment,
    report: (line) => process.stderr.write(`    ${line}\n`),
  });
}

/** Runs once after all tests. */
export async function mochaGlobalTeardown(): Promise<void> {
  await running?.stop();
}
