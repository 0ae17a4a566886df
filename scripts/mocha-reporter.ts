// mocha reporter of the gate: prints a line per finished suite, failures immediately and again in full at the end, and
// writes the counts of each file as JSON to the file $KELLET_TEST_COUNTS. Ends a run in which nothing happens any more.
import { writeFileSync } from 'node:fs';
import { relative, resolve } from 'node:path';
import Mocha from 'mocha';

/** How long a finished run may take to exit. */
const openHandlesMilliseconds = 60_000;

/** How long a test or hook may take, more than any timeout; then mocha has lost track of the run. */
const hangsMilliseconds = 900_000;

const root = resolve(import.meta.dirname, '..');

export interface TestCounts {
  passed: number;
  failed: number;
  pending: number;
}

/** What a file of tests came to. */
export interface FileResult extends TestCounts {
  /** A line for each test or hook that failed. */
  failures: string[];
}

/** Results read by the gate, by the file's path in the repository. */
export type RunResult = Record<string, FileResult>;

const {
  EVENT_HOOK_BEGIN,
  EVENT_HOOK_END,
  EVENT_RUN_END,
  EVENT_SUITE_BEGIN,
  EVENT_SUITE_END,
  EVENT_TEST_BEGIN,
  EVENT_TEST_END,
  EVENT_TEST_FAIL,
  EVENT_TEST_PASS,
  EVENT_TEST_PENDING,
} = Mocha.Runner.constants;

const stillRunningMilliseconds = 10_000;

export default class GateReporter extends Mocha.reporters.Base {
  constructor(runner: Mocha.Runner, options: Mocha.MochaOptions) {
    super(runner, options);
    const counts: TestCounts = { passed: 0, failed: 0, pending: 0 };
    let before = { ...counts };
    /** Number of suites, other than the root's, that have begun and not ended. */
    let depth = 0;
    let suiteMilliseconds = 0;
    const result: RunResult = {};
    let running: { title: string; since: number; file?: string } | undefined;
    let lastTitle = 'its start';
    let lastLine = performance.now();
    let lastEvent = performance.now();
    const writeCounts = () => {
      const file = process.env.KELLET_TEST_COUNTS;
      if (file) writeFileSync(file, JSON.stringify(result));
    };
    const count = (kind: keyof TestCounts, file: string | undefined, failure?: string) => {
      counts[kind]++;
      const ofFile = (result[file ? relative(root, file) : ''] ??= { passed: 0, failed: 0, pending: 0, failures: [] });
      ofFile[kind]++;
      if (failure !== undefined) ofFile.failures.push(failure);
    };
    const say = (line: string) => {
      lastLine = performance.now();
      console.log(line);
    };
    const timer = setInterval(() => {
      if (performance.now() - lastEvent > hangsMilliseconds) {
        const failure = `${running?.title ?? `the run after ${lastTitle}`}: does not end`;
        count('failed', running?.file, failure);
        console.log(`    failed: ${failure}`);
        writeCounts();
        process.exit(1);
      }
      if (performance.now() - lastLine < stillRunningMilliseconds) return;
      const since = running ? Math.round((performance.now() - running.since) / 1000) : 0;
      say(running ? `    … ${running.title} (${since} s)` : `    … ${counts.passed + counts.failed} tests so far`);
    }, stillRunningMilliseconds);
    timer.unref();

    for (const event of [EVENT_HOOK_BEGIN, EVENT_HOOK_END, EVENT_SUITE_BEGIN, EVENT_TEST_BEGIN, EVENT_TEST_END])
      runner.on(event, () => (lastEvent = performance.now()));
    runner.on(EVENT_TEST_BEGIN, (test) => {
      running = { title: test.fullTitle(), since: performance.now(), file: test.file };
    });
    runner.on(EVENT_TEST_END, (test) => {
      running = undefined;
      lastTitle = test.fullTitle();
      suiteMilliseconds += test.duration ?? 0;
    });
    runner.on(EVENT_SUITE_BEGIN, (suite) => {
      if (suite.root) return;
      if (depth === 0) suiteMilliseconds = 0;
      depth += 1;
    });
    runner.on(EVENT_TEST_PASS, (test) => count('passed', test.file));
    runner.on(EVENT_TEST_PENDING, (test) => count('pending', test.file));
    runner.on(EVENT_TEST_FAIL, (test, error: Error) => {
      const failure = `${test.fullTitle()}: ${error.message.split('\n')[0]}`;
      count('failed', test.file, failure);
      say(`    failed: ${failure}`);
    });
    runner.on(EVENT_SUITE_END, (suite) => {
      if (suite.root) return;
      depth -= 1;
      if (depth > 0) return;
      const failed = counts.failed - before.failed;
      const pending = counts.pending - before.pending;
      const parts = [`${counts.passed - before.passed} passed`];
      if (failed) parts.push(`${failed} failed`);
      if (pending) parts.push(`${pending} skipped`);
      const seconds = (suiteMilliseconds / 1000).toFixed(1);
      say(`  ${failed ? '✗' : '✓'} ${suite.title}: ${parts.join(', ')} (${seconds} s)`);
      before = { ...counts };
    });
    runner.once(EVENT_RUN_END, () => {
      clearInterval(timer);
      if (this.failures.length > 0) Mocha.reporters.Base.list(this.failures);
      writeCounts();
      // A handle that a test has left open would keep the process alive forever.
      setTimeout(() => {
        console.log(`    the run does not end, still open: ${process.getActiveResourcesInfo().join(', ')}`);
        process.exit(1);
      }, openHandlesMilliseconds).unref();
    });
  }
}
