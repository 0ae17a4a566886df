// The gate (`make test`): all checks and tests that a change must pass. Runs every step even if one fails, shows
// progress, and ends with the line `N passed, N failed`. Unit tests and e2e tests run side by side, because tests wait
// more than they compute, and beside them, at low priority, the checks that need no services.
//
//   node scripts/gate.ts [--only lint|unit|e2e|STEP]... [--grep TITLE]
//
// Files of tests that failed are repeated once, with no other tests beside them, because a busy machine can fail a test
// that waits; what passes only then is named. The output ends with a line for each failure.
//
// A test run counts as its number of tests, any other step as one. The environment variables ONLY (comma-separated) and
// GREP are equivalent to the options.
import { type ChildProcess, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { setPriority } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import type { RunResult, TestCounts } from './mocha-reporter.ts';

const root = resolve(import.meta.dirname, '..');
const workFolder = join(root, '.kellet', 'gate');
mkdirSync(workFolder, { recursive: true });
// Prefer the workspace's own programs, including Node, over the system's.
process.env.NODE_OPTIONS = `${process.env.NODE_OPTIONS ?? ''} --disable-warning=ExperimentalWarning`.trim();
process.env.PATH = `${join(root, 'node_modules/.bin')}:${process.env.PATH}`;
// The tests start hundreds of processes, which then need not compile the same sources again.
process.env.NODE_COMPILE_CACHE ??= join(workFolder, 'compile-cache');

const { values } = parseArgs({
  options: { only: { type: 'string', multiple: true, default: [] }, grep: { type: 'string' } },
});
const only = [...values.only, ...(process.env.ONLY ?? '').split(',').filter(Boolean)];
const grep = values.grep ?? process.env.GREP;

interface Step {
  name: string;
  /** Programs needed by both kinds of tests; they are built in the background from the start. */
  group: 'lint' | 'programs' | 'unit' | 'e2e';
  run: () => Promise<StepResult>;
}

interface StepResult extends TestCounts {
  /** To be shown if the step has failed. */
  output?: string;
  /** A line for each failure, to be shown again at the end. */
  failures?: string[];
}

const seconds = (since: number) => `${((performance.now() - since) / 1000).toFixed(1)} s`;

/** Priority of work that other steps must not wait for. */
const backgroundPriority = 15;

/** How long a command may be silent; the reporter of the tests prints a line every ten seconds. */
const silenceMilliseconds = 600_000;

/** How many lines of the output of a failed command are shown again at the end. */
const lastLines = 12;

/** How long the output of a command may stay open after its end. */
const outputMilliseconds = 5000;

/**
 * Runs a command of a step and shows its output, which also goes to `onLine` line by line. Kills a command that hangs.
 * Returns whether it succeeded.
 */
function execute(
  name: string,
  command: string[],
  environment: Record<string, string>,
  onLine: (line: string) => void = () => {},
): Promise<boolean> {
  const child = spawn(command[0]!, command.slice(1), {
    cwd: root,
    env: { ...process.env, ...environment },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const kill = () => {
    console.log(`${name}: killed after ${silenceMilliseconds / 1000} s of silence: ${command.join(' ')}`);
    child.kill('SIGKILL');
  };
  let silence = setTimeout(kill, silenceMilliseconds);
  createInterface(child.stdout).on('line', (line) => {
    clearTimeout(silence);
    silence = setTimeout(kill, silenceMilliseconds);
    console.log(`${name}: ${line}`);
    onLine(line);
  });
  return new Promise((settle) => {
    const end = (succeeded: boolean) => {
      clearTimeout(silence);
      settle(succeeded);
    };
    child.once('error', (error) => {
      console.log(error.message);
      end(false);
    });
    // A process that a test has left running may hold the output open.
    child.once('exit', () => setTimeout(() => child.stdout.destroy(), outputMilliseconds).unref());
    child.once('close', (code) => end(code === 0));
  });
}

function lowerPriority(child: ChildProcess): void {
  try {
    if (child.pid) setPriority(child.pid, backgroundPriority);
  } catch {
    // Not permitted: it runs at normal priority.
  }
  // Ctrl-C also reaches the child; other ways of ending this process do not.
  for (const signal of ['SIGTERM', 'SIGHUP'] as const) {
    const end = () => {
      child.kill(signal);
      process.kill(process.pid, signal);
    };
    process.once(signal, end);
    child.once('close', () => process.off(signal, end));
  }
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
  lowerPriority(child);
  createInterface(child.stdout).on('line', (line) => console.log(`programs: ${line}`));
  return new Promise((settle) => {
    child.once('error', () => settle(false));
    child.once('close', (code) => settle(code === 0));
  });
}

/** A step that passes if a command succeeds. */
const check = (name: string, ...command: string[]): Step => ({
  name,
  group: 'lint',
  run: () =>
    new Promise((settle) => {
      const child = spawn(command[0]!, command.slice(1), { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
      lowerPriority(child);
      const output: Buffer[] = [];
      child.stdout.on('data', (chunk: Buffer) => output.push(chunk));
      child.stderr.on('data', (chunk: Buffer) => output.push(chunk));
      const end = (passed: boolean) =>
        settle({
          passed: passed ? 1 : 0,
          failed: passed ? 0 : 1,
          pending: 0,
          output: Buffer.concat(output).toString(),
        });
      child.once('error', (error) => {
        output.push(Buffer.from(`${error.message}\n`));
        end(false);
      });
      child.once('close', (code) => end(code === 0));
    }),
});

/** How many processes run unit tests at a time, until the e2e tests have ended; then there is one more. */
const unitProcesses = 2;

/** Files that a process of unit tests runs before another takes over: starting one takes a few seconds. */
const unitFiles = 12;

/** Unit tests that run one after another: their processes would take each other's callbacks from the broker. */
const serialTests = 'apiserver/src/chain-anchor/';

/** Holds the statements that the unit tests sent to PostgreSQL, for the check of their plans. */
const statementsFolder = join(workFolder, 'statements');

/** Tests that need programs which take minutes to build and which no other test needs. */
const lastTests = ['e2e/tests/chart.test.ts', 'e2e/tests/gitops.test.ts'];

const recordingPlugin = './apiserver/src/platform/testing/record-statements.ts';
const servicesPlugin = './dev/stack/testing/test-services.ts';
const stackPlugin = './dev/stack/testing/test-stack.ts';

const noCounts: TestCounts = { passed: 0, failed: 0, pending: 0 };
const sumOf = (a: TestCounts, b: TestCounts): TestCounts => ({
  passed: a.passed + b.passed,
  failed: a.failed + b.failed,
  pending: a.pending + b.pending,
});

/**
 * Runs mocha on files, with a root-hook plugin that starts the required services. Returns the result of each file; if
 * the run ended early, also a failure for each file that it did not reach.
 */
async function runMocha(name: string, files: readonly string[], options: readonly string[]): Promise<RunResult> {
  const countsFile = join(workFolder, `counts-${randomUUID()}.json`);
  const command = ['mocha', '--reporter', './scripts/mocha-reporter.ts', ...options];
  if (grep) command.push('--grep', grep);
  const succeeded = await execute(name, [...command, ...files], {
    KELLET_TEST_COUNTS: countsFile,
    KELLET_TEST_STATEMENTS: statementsFolder,
  });
  const isCounted = existsSync(countsFile);
  const result = isCounted ? (JSON.parse(readFileSync(countsFile, 'utf8')) as RunResult) : {};
  rmSync(countsFile, { force: true });
  // A run that was aborted has failed, whatever it counted.
  if ((!succeeded || !isCounted) && Object.values(result).every(({ failed }) => failed === 0)) {
    const failure = `ended ${isCounted ? 'with an error' : 'early'}`;
    console.log(`${name}:     failed: the run of ${files[0]} to ${files.at(-1)} ${failure}`);
    const unfinished = files.filter((file) => !(file in result));
    for (const file of unfinished.length ? unfinished : files)
      result[file] = { passed: 0, failed: 1, pending: 0, failures: [`${file}: its run ${failure}`] };
  }
  return result;
}

/** Titles of the tests that failed first and passed when they were repeated. */
const repeatedTests: string[] = [];

/** Resolves when the first run of the e2e tests has ended. */
const endToEndTests = Promise.withResolvers<void>();

/** Settles when no tests run any more. */
let untilQuiet: Promise<unknown> = Promise.resolve();

/**
 * Repeats the files that failed, when no other tests run any more. Returns all results, with those of the repeated run in
 * place of the first.
 */
async function repeatFailed(result: RunResult, run: (files: readonly string[]) => Promise<RunResult>) {
  const failed = Object.keys(result).filter((file) => result[file]!.failed > 0);
  // A failure without a file, as of a hook of a plugin, cannot be repeated.
  if (failed.length === 0 || failed.includes('')) return result;
  const repetition = untilQuiet.then(() => {
    console.log(`repeating ${failed.join(', ')}`);
    return run(failed);
  });
  untilQuiet = repetition;
  const repeated = await repetition;
  for (const file of failed)
    if (repeated[file]?.failed === 0) repeatedTests.push(...result[file]!.failures);
    else repeated[file] ??= result[file]!;
  return { ...result, ...repeated };
}

const filesOf = (patterns: readonly string[]): string[] =>
  globSync(patterns, { cwd: root, exclude: (path) => path.split('/').includes('node_modules') }).toSorted();

const runUnitFiles = (files: readonly string[]): Promise<RunResult> =>
  runMocha('unit', files, ['--exit', '--require', servicesPlugin, '--require', recordingPlugin]);

const runEndToEndFiles = (files: readonly string[]): Promise<RunResult> =>
  runMocha('e2e', files, ['--require', stackPlugin, '--timeout', '120000']);

/** Runs the unit tests in several processes, which share the services that the first would otherwise start. */
async function runUnitTests(files: readonly string[]): Promise<RunResult> {
  const { mochaGlobalSetup, mochaGlobalTeardown } = await import('../dev/stack/testing/test-services.ts');
  await mochaGlobalSetup();
  const portions = [files.filter((file) => file.startsWith(serialTests))];
  const others = files.filter((file) => !file.startsWith(serialTests));
  for (let at = 0; at < others.length; at += unitFiles) portions.push(others.slice(at, at + unitFiles));
  const result: RunResult = {};
  const work = async () => {
    for (let files = portions.shift(); files; files = portions.shift())
      Object.assign(result, await runUnitFiles(files));
  };
  const running = Promise.all(Array.from({ length: unitProcesses }, work));
  const more = Promise.race([endToEndTests.promise, running]).then(work);
  await Promise.all([running, more]).finally(mochaGlobalTeardown);
  return result;
}

/** A step of tests: a first run, and the repetition of what failed. */
const tests = (
  name: 'unit' | 'e2e',
  first: () => Promise<RunResult>,
  repeat: (files: readonly string[]) => Promise<RunResult>,
): Step => ({
  name: `${name} tests`,
  group: name,
  run: async () => {
    const running = first();
    untilQuiet = Promise.allSettled([untilQuiet, running]);
    const results = Object.values(await repeatFailed(await running, repeat));
    const counts = results.reduce<TestCounts>(sumOf, noCounts);
    // A run without tests has failed.
    if (counts.passed === 0 && counts.failed === 0) return { ...counts, failed: 1 };
    return { ...counts, failures: results.flatMap(({ failures }) => failures) };
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
  tests(
    'unit',
    () => {
      if (!grep) rmSync(statementsFolder, { recursive: true, force: true });
      return runUnitTests(
        filesOf([
          '{verify,client,device,dashboard,crds,kubernetes,proto,apiserver,operator,bench}/**/*.test.ts',
          '{kubectl,packaging,scripts,dev,e2e/property,e2e/testing}/**/*.test.ts',
        ]),
      );
    },
    runUnitFiles,
  ),
  {
    name: 'plans',
    group: 'unit',
    run: async () => {
      const command = ['node', 'bench/src/year/main.ts', ...(grep ? [] : ['--complete'])];
      const lines: string[] = [];
      const passed = await execute('plans', command, { STATEMENTS: statementsFolder }, (line) =>
        lines.push(line.slice(0, 300)),
      );
      const counts = { passed: passed ? 1 : 0, failed: passed ? 0 : 1, pending: 0 };
      return { ...counts, failures: ['plans:', ...lines.slice(-lastLines)] };
    },
  },
  tests(
    'e2e',
    () => {
      const files = filesOf(['e2e/tests/**/*.test.ts']);
      const ordered = [...files.filter((file) => !lastTests.includes(file)), ...lastTests];
      return runEndToEndFiles(ordered).finally(endToEndTests.resolve);
    },
    runEndToEndFiles,
  ),
  {
    name: 'programs',
    group: 'programs',
    run: async () => {
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

if (!chosen.some(({ group }) => group === 'e2e')) endToEndTests.resolve();

/** Programs needed by the selected steps; undefined if none. */
const needed = chosen.some(({ group }) => group === 'e2e' || group === 'programs')
  ? chosen.some(({ group }) => group === 'e2e') || chosen.length === 1
    ? []
    : ['nats-server', 'redis', 'versitygw']
  : undefined;
const programs = needed ? buildPrograms(needed) : Promise.resolve(true);

let total = noCounts;
/** A line or more for each failure. */
const failures: string[] = [];
const started = performance.now();
let ended = 0;

async function runAll(steps: readonly Step[], announce: boolean): Promise<void> {
  for (const step of steps) {
    const stepStarted = performance.now();
    if (announce) console.log(`${step.name} …`);
    const { output, failures: found, ...counts } = await step.run();
    total = sumOf(total, counts);
    if (counts.failed) failures.push(...(found?.length ? found : [step.name]));
    if (counts.failed && output) console.log(output);
    ended += 1;
    const result = counts.failed ? 'FAILED' : 'ok';
    console.log(
      `[${ended}/${chosen.length}] ${step.name} ${result}: ${counts.passed} passed, ${counts.failed} failed (${seconds(stepStarted)})`,
    );
  }
}

const checks = chosen.filter(({ group }) => group === 'lint');
const others = chosen.filter(({ group }) => group !== 'lint');
// Each of these runs its steps one after the other.
await Promise.all([
  runAll(checks, others.length === 0),
  ...(['unit', 'e2e', 'programs'] as const).map((group) =>
    runAll(
      others.filter((step) => step.group === group),
      true,
    ),
  ),
]);
if (repeatedTests.length) console.log('passed only when repeated:');
for (const title of repeatedTests) console.log(`  ${title}`);
if (failures.length) console.log('failed:');
for (const line of failures) console.log(`  ${line}`);
if (total.pending) console.log(`${total.pending} skipped`);
console.log(`the gate took ${seconds(started)}`);
const summary = `${total.passed} passed, ${total.failed} failed`;
writeFileSync(join(workFolder, 'summary'), `${summary}\n`);
console.log(summary);
if (total.failed > 0) process.exitCode = 1;
