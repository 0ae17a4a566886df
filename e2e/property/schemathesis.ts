// The program schemathesis, installed once into the user's cache, and one run of it.
import { execFile, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder, checkout } from '../../dev/stack/paths.ts';
import { readReport, type Answers, type Report } from './outcome.ts';

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

/** An API key, or an account to sign in with. */
export type Account = { readonly key: string } | { readonly email: string; readonly password: string };

/** One run. */
export interface Run {
  /** Names its files. */
  readonly name: string;
  readonly caller: Account;
  /** The TOML. */
  readonly configuration: string;
  /** The OpenAPI document. */
  readonly document: string;
  /** Only these operations, by label; undefined: all. */
  readonly only?: readonly string[];
  readonly seed: number;
  readonly url: string;
  /** Where its files go. */
  readonly folder: string;
}

/** What it left behind. */
export interface RunResult {
  /** Whether it ended as a run that found nothing. */
  readonly succeeded: boolean;
  /** Undefined when it broke off before it could write one. */
  readonly report: Report | undefined;
  readonly answers: Answers;
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
export async function runSchemathesis(program: string, run: Run): Promise<RunResult> {
  const { caller, folder, name } = run;
  const file = (ending: string): string => join(folder, `${name}.${ending}`);
  await Promise.all(['xml', 'json'].map((ending) => rm(file(ending), { force: true })));
  await writeFile(file('toml'), run.configuration);
  await writeFile(file('openapi.json'), run.document);
  const args = [
    ...['--config-file', file('toml')],
    ...['run', file('openapi.json'), '--url', run.url, '--checks', checks.join(',')],
    // Several workers have raced for what their generators share, and gain little: one interpreter runs one at a time.
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
      KELLET_ANSWERS: file('json'),
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
    answers: JSON.parse((await written('json')) ?? '{}') as Answers,
  };
}
