// Regenerates everything that is generated and committed. Works offline and always gives the same bytes; the gate fails
// when running it changes a file.
import { spawnSync } from 'node:child_process';
import path from 'node:path';

const root = path.dirname(import.meta.dirname);
const bin = path.join(root, 'node_modules', '.bin');

/** What is run, in order: a title, the folder, the command. */
const steps: [string, string, string[]][] = [
  ['messages and descriptors of the contract', 'proto', ['buf', 'generate']],
  ['client of the control service', 'proto', ['buf', 'generate', '--template', 'buf.gen.client.yaml']],
  ['descriptor set', 'proto', ['buf', 'build', '--as-file-descriptor-set', '-o', 'gen/descriptors.binpb']],
  ['types of the custom resources', 'crds', ['node', 'generate.ts']],
];

for (const [title, folder, [command, ...args]] of steps) {
  console.log(`generate: ${title}`);
  const { status, error } = spawnSync(command!, args, {
    cwd: path.join(root, folder),
    env: { ...process.env, PATH: `${bin}${path.delimiter}${process.env['PATH'] ?? ''}` },
    stdio: 'inherit',
  });
  if (status !== 0) {
    console.error(`generate: ${title}: ${error?.message ?? `exit ${status}`}`);
    process.exit(1);
  }
}
