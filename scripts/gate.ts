// The gate (`make test`): all checks and tests that a change must pass. Runs every step even if one fails, shows
// progress, and ends with the line `N passed, N failed`.
//
//   node scripts/gate.ts [--only lint|unit|e2e|STEP]... [--grep TITLE]
//
// A test run counts as its number of tests, any other step as one. The environment variables ONLY (comma-separated) and
// GREP are equivalent to the options.
import { spawn } from 'node:child_process';
import { existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { setPriority } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import type { TestCounts } from './mocha-reporter.ts';

const root = resolve(import.meta.dirname, '..');
const workFolder = join(root, '.kellet', 'gate');
mkdirSync(workFolder, { recursive: true });
// Prefer the workspace's own programs, including Node, over the system's.
process.env.NODE_OPTIONS = `${process.env.NODE_OPTIONS ?? ''} --disable-warning=ExperimentalWarning`.trim();
process.env.PATH = `${join(root, 'node_modules/.bin')}:${process.env.PATH}`;

const { values } = parseArgs({
  options: { only: { type: 'string', multiple: true, default: [] }, grep: { type: 'string' } },
});
const only = [...values.only, ...(process.env.ONLY ?? '').split(',').filter(Boolean)];
const grep = values.grep ?? process.env.GREP;

interface Step {
  name: string;
  /** Programs needed by both kinds of tests; they are built in the background from the start. */
  group: 'lint' | 'programs' | 'unit' | 'e2e';
  run: () => Promise<TestCounts>;
}

const seconds = (since: number) => `${((performance.now() - since) / 1000).toFixed(1)} s`;

/** Runs a command. Its output is shown live, or only if it fails. */
async function execute(command: string[], options: { live: boolean; environment?: Record<string, string> }) {
  const started = performance.now();
  const child = spawn(command[0]!, command.slice(1), {
    cwd: root,
    env: { ...process.env, ...options.environment },
    stdio: ['ignore', options.live ? 'inherit' : 'pipe', options.live ? 'inherit' : 'pipe'],
  });
  const output: Buffer[] = [];
  child.stdout?.on('data', (chunk: Buffer) => output.push(chunk));
  child.stderr?.on('data', (chunk: Buffer) => output.push(chunk));
  const timer = options.live ? undefined : setInterval(() => console.log(`    … ${seconds(started)}`), 10_000);
  const passed = await new Promise<boolean>((settle) => {
    child.once('error', (error) => {
      output.push(Buffer.from(`${error.message}\n`));
      settle(false);
    });
    child.once('close', (code) => settle(code === 0));
  });
  clearInterval(timer);
  if (!passed) process.stdout.write(Buffer.concat(output));
  return passed;
}

const programLines: string[] = [];
let programsShown = false;

/** Shows the progress of the builds, or buffers it for later. */
function showPrograms(shown: boolean): void {
  const last = programLines.at(-1);
  if (shown && !programsShown && last !== undefined) console.log(last);
  programsShown = shown;
}

/**
 * Builds programs in the background at low priority, so that concurrent checks take precedence. Returns whether all
 * were built.
 */
function buildPrograms(names: readonly string[]): Promise<boolean> {
  const child = spawn('node', ['dev/stack/programs/main.ts', ...names], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  try {
    if (child.pid) setPriority(child.pid, 15);
  } catch {
    // Not permitted: the builds run at normal priority.
  }
  let first = true;
  createInterface(child.stdout).on('line', (line) => {
    // The first line estimates the duration.
    if (first || programsShown) console.log(line);
    else programLines.push(line);
    first = false;
  });
  // Ctrl-C also reaches the builds; other ways of ending this process do not.
  for (const signal of ['SIGTERM', 'SIGHUP'] as const) {
    process.once(signal, () => {
      child.kill(signal);
      process.kill(process.pid, signal);
    });
  }
  return new Promise((settle) => {
    child.once('error', () => settle(false));
    child.once('close', (code) => settle(code === 0));
  });
}

/** A step that passes if a command succeeds. */
const check = (name: string, ...command: string[]): Step => ({
  name,
  group: 'lint',
  run: async () => {
    const passed = await execute(command, { live: false });
    return { passed: passed ? 1 : 0, failed: passed ? 0 : 1, pending: 0 };
  },
});

/** Tests that need programs which take minutes to build and which no other test needs. */
const lastTests = ['e2e/tests/chart.test.ts', 'e2e/tests/gitops.test.ts'];

/**
 * Runs mocha on all matching files, with a root-hook plugin that starts the required services. The files in `last` run
 * at the end.
 */
const tests = (
  name: 'unit' | 'e2e',
  plugin: string,
  patterns: string[],
  options: string[] = [],
  last: readonly string[] = [],
): Step => ({
  name: `${name} tests`,
  group: name,
  run: async () => {
    const files = globSync(patterns, { cwd: root, exclude: (path) => path.split('/').includes('node_modules') });
    const countsFile = join(workFolder, `${name}-counts.json`);
    rmSync(countsFile, { force: true });
    showPrograms(true);
    const command = ['mocha', '--require', plugin, '--reporter', './scripts/mocha-reporter.ts', ...options];
    if (grep) command.push('--grep', grep);
    const isLast = (file: string): number => (last.includes(file) ? 1 : 0);
    files.sort((a, b) => isLast(a) - isLast(b) || (a < b ? -1 : 1));
    const succeeded = await execute([...command, ...files], {
      live: true,
      environment: { KELLET_TEST_COUNTS: countsFile },
    });
    showPrograms(false);
    const counts = existsSync(countsFile)
      ? (JSON.parse(readFileSync(countsFile, 'utf8')) as TestCounts)
      : { passed: 0, failed: 0, pending: 0 };
    // An aborted or empty run has failed, whatever it counted.
    if ((!succeeded && counts.failed === 0) || (counts.passed === 0 && counts.failed === 0)) counts.failed = 1;
    return counts;
  },
});

const steps: Step[] = [
  check('format', 'prettier', '--check', '--log-level', 'warn', '.'),
  check('lint', 'eslint', '--max-warnings', '0', '.'),
  check('proto lint', 'npm', 'run', '--silent', 'lint', '--workspace', 'proto'),
  check('proto breaking', 'npm', 'run', '--silent', 'breaking', '--workspace', 'proto'),
  check('generated code', 'node', 'scripts/generate.ts', '--check'),
  check('types', 'tsc', '--noEmit'),
  check('types of the dashboard', 'tsc', '--noEmit', '--project', 'dashboard'),
  tests('unit', './dev/stack/testing/test-services.ts', [
    'verify/**/*.test.ts',
    'client/**/*.test.ts',
    'dashboard/**/*.test.ts',
    'crds/**/*.test.ts',
    'kubernetes/**/*.test.ts',
    'proto/**/*.test.ts',
    'apiserver/**/*.test.ts',
    'operator/**/*.test.ts',
    'kubectl/**/*.test.ts',
    'packaging/**/*.test.ts',
    'scripts/**/*.test.ts',
    '{dev,e2e/property,e2e/testing}/**/*.test.ts',
  ]),
  tests('e2e', './dev/stack/testing/test-stack.ts', ['e2e/tests/**/*.test.ts'], ['--timeout', '120000'], lastTests),
  {
    name: 'programs',
    group: 'programs',
    run: async () => {
      showPrograms(true);
      const passed = await programs;
      return { passed: passed ? 1 : 0, failed: passed ? 0 : 1, pending: 0 };
    },
  },
];

const wanted = only.includes('unit') || only.includes('e2e') ? [...only, 'programs'] : only;
const chosen = steps.filter(
  (step) => wanted.length === 0 || wanted.includes(step.group) || wanted.some((word) => step.name.startsWith(word)),
);
if (chosen.length === 0) {
  console.log(
    `no step is called ${only.join(', ')}; there are lint, unit, e2e, ${steps.map((s) => s.name).join(', ')}`,
  );
  process.exitCode = 1;
}

/** Programs needed by the selected steps; undefined if none. */
const needed = chosen.some(({ group }) => group === 'e2e' || group === 'programs')
  ? chosen.some(({ group }) => group === 'e2e') || chosen.length === 1
    ? []
    : ['nats-server', 'redis', 'versitygw']
  : undefined;
const programs = needed ? buildPrograms(needed) : Promise.resolve(true);

const total: TestCounts = { passed: 0, failed: 0, pending: 0 };
const failedSteps: string[] = [];
const started = performance.now();
for (const [index, step] of chosen.entries()) {
  const stepStarted = performance.now();
  console.log(`[${index + 1}/${chosen.length}] ${step.name}`);
  const counts = await step.run();
  total.passed += counts.passed;
  total.failed += counts.failed;
  total.pending += counts.pending;
  if (counts.failed) failedSteps.push(step.name);
  const result = counts.failed ? 'FAILED' : 'ok';
  console.log(`    ${result}: ${counts.passed} passed, ${counts.failed} failed (${seconds(stepStarted)})`);
}
if (failedSteps.length) console.log(`failed: ${failedSteps.join(', ')}`);
if (total.pending) console.log(`${total.pending} skipped`);
console.log(`the gate took ${seconds(started)}`);
const summary = `${total.passed} passed, ${total.failed} failed`;
writeFileSync(join(workFolder, 'summary'), `${summary}\n`);
console.log(summary);
if (total.failed > 0) process.exitCode = 1;
