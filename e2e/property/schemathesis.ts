// The program schemathesis, installed once into the user's cache, and one run of it.
import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder, checkout } from '../stack/paths.ts';

const version = '4.32.5';
const run = promisify(execFile);

/** Its path; needs python3 with venv when it is not there yet. */
export async function schemathesisProgram(report: (line: string) => void): Promise<string> {
  const folder = join(cacheFolder(), `schemathesis-${version}`);
  const program = join(folder, 'bin/schemathesis');
  if (existsSync(program)) return program;
  report(`installing schemathesis ${version}`);
  await rm(folder, { recursive: true, force: true });
  await run('python3', ['-m', 'venv', folder]);
  await run(join(folder, 'bin/pip'), ['install', '--quiet', '--disable-pip-version-check', `schemathesis==${version}`]);
  return program;
}

/** One run: who calls, and which operations. */
export interface PropertyRun {
  readonly name: string;
  /** An API key, or an account to sign in with. */
  readonly caller: { readonly key: string } | { readonly email: string; readonly password: string };
  /** Options that choose operations. */
  readonly operations: readonly string[];
}

/** What a run came to: whether it found nothing, and how often each status was answered. */
export interface PropertyResult {
  readonly passed: boolean;
  readonly statuses: Readonly<Record<string, number>>;
}

/** The checks: no server error, and every answer as the document says. */
const checks = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_schema_conformance',
  'response_headers_conformance',
];

/** Runs schemathesis; its output is shown as it comes. */
export async function runSchemathesis(
  program: string,
  url: string,
  { name, caller, operations }: PropertyRun,
  options: { examples: number; seed: number; folder: string },
): Promise<PropertyResult> {
  const statusesFile = join(options.folder, `${name}.json`);
  const args = [
    ...['--config-file', join(checkout, 'e2e/property/schemathesis.toml')],
    ...['run', join(checkout, 'proto/gen/openapi.json'), '--url', url, '--checks', checks.join(',')],
    ...['--phases', 'examples,coverage,fuzzing', '--max-examples', String(options.examples)],
    ...['--seed', String(options.seed), '--request-timeout', '70', '--continue-on-failure', '--no-color'],
    ...['--warnings', 'off', ...operations],
  ];
  const child = spawn(program, args, {
    cwd: options.folder,
    stdio: ['ignore', 'inherit', 'inherit'],
    env: {
      ...process.env,
      SCHEMATHESIS_HOOKS: join(checkout, 'e2e/property/hooks.py'),
      PYTHONDONTWRITEBYTECODE: '1',
      KELLET_URL: url,
      KELLET_STATUSES: statusesFile,
      ...('key' in caller
        ? { KELLET_KEY: caller.key }
        : { KELLET_EMAIL: caller.email, KELLET_PASSWORD: caller.password }),
    },
  });
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', resolve);
  });
  const statuses = JSON.parse(await readFile(statusesFile, 'utf8')) as Record<string, number>;
  return { passed: code === 0, statuses };
}
