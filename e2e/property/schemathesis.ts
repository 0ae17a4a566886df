// Installs schemathesis into the user's cache and runs it.
import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder, checkout } from '../../dev/stack/paths.ts';
import { readReport, type Report, type Responses } from './outcome.ts';

const version = '4.32.5';
const run = promisify(execFile);

/** Returns the path of the program. The first installation needs python3 with venv. */
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

/** An API key, or an account to sign in with. */
export type Account = { readonly key: string } | { readonly email: string; readonly password: string };

/** Options of a run. */
export interface Run {
  /** Base name of its files. */
  readonly name: string;
  readonly caller: Account;
  /** The TOML. */
  readonly configuration: string;
  /** The OpenAPI document. */
  readonly document: string;
  /** Labels of the operations to test; all by default. */
  readonly only?: readonly string[];
  readonly seed: number;
  readonly url: string;
  /** Output folder. */
  readonly folder: string;
}

/** Result of a run. */
export interface RunResult {
  /** Whether the exit code is 0, which means no findings. */
  readonly succeeded: boolean;
  /** Undefined if it aborted before writing one. */
  readonly report: Report | undefined;
  readonly responses: Responses;
}

/** Checks: no server errors, and all responses conform to the document. */
const checks = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_schema_conformance',
  'response_headers_conformance',
];

/** Runs schemathesis, showing its output. */
export async function runSchemathesis(program: string, run: Run): Promise<RunResult> {
  const { caller, folder, name } = run;
  const file = (ending: string): string => join(folder, `${name}.${ending}`);
  await Promise.all(['xml', 'json'].map((ending) => rm(file(ending), { force: true })));
  await writeFile(file('toml'), run.configuration);
  await writeFile(file('openapi.json'), run.document);
  const args = [
    ...['--config-file', file('toml')],
    ...['run', file('openapi.json'), '--url', run.url, '--checks', checks.join(',')],
    // One worker: several have race conditions in the generators and gain little in a single interpreter.
    ...['--phases', 'examples,coverage,fuzzing', '--workers', '1'],
    ...['--seed', String(run.seed), '--request-timeout', '70', '--continue-on-failure', '--no-color'],
    ...['--warnings', 'off', '--report', 'junit', '--report-junit-path', file('xml')],
    ...(run.only ?? []).flatMap((label) => ['--include-name', label]),
  ];
  const child = spawn(program, args, {
    cwd: folder,
    stdio: ['ignore', 'inherit', 'inherit'],
    env: {
      ...process.env,
      SCHEMATHESIS_HOOKS: join(checkout, 'e2e/property/hooks.py'),
      PYTHONDONTWRITEBYTECODE: '1',
      KELLET_URL: run.url,
      KELLET_RESPONSES: file('json'),
      ...('key' in caller
        ? { KELLET_KEY: caller.key }
        : { KELLET_EMAIL: caller.email, KELLET_PASSWORD: caller.password }),
    },
  });
  const code = await new Promise<number | null>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', resolve);
  });
  const written = (ending: string): Promise<string | undefined> =>
    readFile(file(ending), 'utf8').catch(() => undefined);
  const xml = await written('xml');
  return {
    succeeded: code === 0,
    report: xml === undefined ? undefined : readReport(xml),
    responses: JSON.parse((await written('json')) ?? '{}') as Responses,
  };
}
