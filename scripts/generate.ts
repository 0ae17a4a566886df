// Regenerates all committed generated code. Works offline and is deterministic. With --check (the gate) it fails if a
// file changes.
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';

const root = path.dirname(import.meta.dirname);
const bin = path.join(root, 'node_modules', '.bin');

/** Steps in order: title, folder, command. */
const steps: [string, string, string[]][] = [
  ['messages and descriptors of the contract', 'proto', ['buf', 'generate']],
  ['client of the control service', 'proto', ['buf', 'generate', '--template', 'buf.gen.client.yaml']],
  [
    'descriptor set',
    'proto',
    ['buf', 'build', '--as-file-descriptor-set', '--exclude-path', 'testing/kellet', '-o', 'gen/descriptors.binpb'],
  ],
  ['page of the transcoding rules', 'docs', ['node', '../apiserver/src/gateway/testing/transcoding-page.ts']],
  ['page of users', 'docs', ['node', '../apiserver/src/gateway/testing/users-page.ts']],
  ['page of customers', 'docs', ['node', '../apiserver/src/gateway/testing/customers-page.ts']],
  ['page of scaling', 'docs', ['sh', '-c', 'node ../scripts/scaling/main.ts --page >scaling.md']],
  ['OpenAPI document', 'proto', ['node', '../apiserver/src/openapi/generate.ts']],
  ['page of events', 'docs', ['node', '../apiserver/src/openapi/testing/events-page.ts']],
  ['types of the client', 'client', ['npm', 'run', '--silent', 'generate']],
  ['messages of devices', 'device', ['buf', 'generate']],
  ['types of the custom resources', 'crds', ['node', 'generate.ts']],
  ['definitions, dashboards and pages of the chart', 'charts/kellet', ['node', '../../scripts/chart/generate.ts']],
];

/** Returns path and digest of every tracked or untracked, non-ignored file in these folders. */
function digests(folders: string[]): Map<string, string> {
  const arguments_ = ['ls-files', '-z', '--cached', '--others', '--exclude-standard', '--', ...folders];
  const listed = execFileSync('git', arguments_, { cwd: root, encoding: 'utf8', maxBuffer: 1 << 26 });
  const result = new Map<string, string>();
  for (const file of listed.split('\0').filter(Boolean)) {
    try {
      result.set(
        file,
        createHash('sha256')
          .update(readFileSync(path.join(root, file)))
          .digest('hex'),
      );
    } catch {
      // Deleted but still in the index: treat as absent.
    }
  }
  return result;
}

const { values } = parseArgs({ options: { check: { type: 'boolean', default: false } } });
const folders = [...new Set(steps.map(([, folder]) => folder))];
const before = values.check ? digests(folders) : new Map<string, string>();

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

if (values.check) {
  const after = digests(folders);
  const different = [...new Set([...before.keys(), ...after.keys()])].filter(
    (file) => before.get(file) !== after.get(file),
  );
  for (const file of different) console.error(`generate: was out of date and has been regenerated: ${file}`);
  if (different.length > 0) process.exit(1);
}
