// mocha reporter of the gate: prints a line per finished suite, failures immediately and again in full at the end, and
// writes the counts as JSON to the file $KELLET_TEST_COUNTS.
import { writeFileSync } from 'node:fs';
import Mocha from 'mocha';

/** How long a finished run may take to exit. */
const openHandlesMilliseconds = 60_000;

/** Counts read by the gate. */
export interface TestCounts {
  passed: number;
  failed: number;
  pending: number;
}

const {
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
    let suiteStarted = performance.now();
    let before = { ...counts };
    let running = { title: '', since: performance.now() };
    const timer = setInterval(() => {
      const seconds = Math.round((performance.now() - running.since) / 1000);
      if (seconds * 1000 >= stillRunningMilliseconds && running.title) {
        console.log(`    … ${running.title} (${seconds} s)`);
      }
    }, stillRunningMilliseconds);
    timer.unref();

    runner.on(EVENT_TEST_BEGIN, (test) => (running = { title: test.fullTitle(), since: performance.now() }));
    runner.on(EVENT_TEST_END, () => (running = { title: '', since: performance.now() }));
    runner.on(EVENT_SUITE_BEGIN, (suite) => {
      if (suite.parent?.root) suiteStarted = performance.now();
    });
    runner.on(EVENT_TEST_PASS, () => counts.passed++);
    runner.on(EVENT_TEST_PENDING, () => counts.pending++);
    runner.on(EVENT_TEST_FAIL, (test, error: Error) => {
      counts.failed++;
      console.log(`    failed: ${test.fullTitle()}: ${error.message.split('\n')[0]}`);
    });
    runner.on(EVENT_SUITE_END, (suite) => {
      if (!suite.parent?.root) return;
      const seconds = ((performance.now() - suiteStarted) / 1000).toFixed(1);
      const failed = counts.failed - before.failed;
      const pending = counts.pending - before.pending;
      const parts = [`${counts.passed - before.passed} passed`];
      if (failed) parts.push(`${failed} failed`);
      if (pending) parts.push(`${pending} skipped`);
      console.log(`  ${failed ? '✗' : '✓'} ${suite.title}: ${parts.join(', ')} (${seconds} s)`);
      before = { ...counts };
    });
    runner.once(EVENT_RUN_END, () => {
      clearInterval(timer);
      if (this.failures.length > 0) Mocha.reporters.Base.list(this.failures);
      const file = process.env.KELLET_TEST_COUNTS;
      if (file) writeFileSync(file, JSON.stringify(counts));
      // A handle that a test has left open would keep the process alive forever.
      setTimeout(() => {
        console.log(`    the run does not end, still open: ${process.getActiveResourcesInfo().join(', ')}`);
        process.exit(1);
      }, openHandlesMilliseconds).unref();
    });
  }
}
