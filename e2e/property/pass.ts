// A caller's pass over the whole document.
import type { Ids } from '../fuzz/corpus.ts';
import { type CallerName, type Document, isOpenTo, operationsOf } from './callers.ts';
import { configuration, withIds } from './configuration.ts';
import { isOwnError, judgePass, type Pass, type Responses } from './outcome.ts';
import { type Account, type Run, type RunResult, runSchemathesis } from './schemathesis.ts';

/** Maximum number of internal errors of schemathesis that are tolerated. */
const maxRepeated = 5;

/** Names of destructive operations. */
const ends = /^(Delete|Cancel|Rollback|Disable|Remove|Rotate)/;

export interface PassOptions {
  readonly program: string;
  readonly document: Document;
  readonly name: CallerName;
  readonly caller: Account;
  readonly ids: Ids;
  /** Disposable ids. */
  readonly spare: Ids;
  /** Generated requests per permitted and per denied operation. */
  readonly examples: number;
  readonly closedExamples: number;
  readonly seed: number;
  readonly url: string;
  readonly folder: string;
}

/** Runs the pass. Operations on which schemathesis itself failed are run again separately and must then pass. */
export async function runPass(options: PassOptions): Promise<Pass> {
  const { program, name, examples, closedExamples } = options;
  const started = performance.now();
  const operations = operationsOf(options.document);
  const open = operations.filter(({ operation }) => isOpenTo(name, operation));
  const closed = operations.filter((one) => !open.includes(one)).map(({ id }) => id);
  const ending = open.map(({ id }) => id).filter((id) => ends.test(id));
  const run: Run = {
    ...options,
    configuration: configuration({ examples, closedExamples, closed, ending }, options.ids, options.spare),
    document: JSON.stringify(withIds(options.document, ending, options.ids, options.spare)),
  };
  const first = await runSchemathesis(program, run);
  const problems: string[] = [];
  const repeated = ownErrors(first);
  if (repeated.length === 0) {
    problems.push(...problemsOf(first));
  } else {
    const again = await runSchemathesis(program, { ...run, name: `${name}-again` as CallerName, only: repeated });
    problems.push(...problemsOf(again));
    if (repeated.some((label) => again.responses[label] === undefined))
      problems.push('not every operation was run again');
  }
  const responses: Responses = first.responses;
  const labels = operations.map(({ label }) => label);
  return judgePass({
    ...{
      caller: name,
      operations: labels,
      open: new Set(open.map(({ label }) => label)),
      responses,
      problems,
      repeated,
    },
    seconds: (performance.now() - started) / 1000,
  });
}

/** Returns the operations to run again, if the only problems are a few internal errors of schemathesis. */
function ownErrors({ succeeded, report }: RunResult): string[] {
  if (succeeded || !report || report.failures.length > 0 || !report.errors.every(isOwnError)) return [];
  const labels = [...new Set(report.errors.map(({ label }) => label))];
  return labels.length <= maxRepeated ? labels : [];
}

function problemsOf({ succeeded, report }: RunResult): string[] {
  if (!report) return ['schemathesis aborted'];
  const found = [
    ...report.failures.map((label) => `found: ${label}`),
    ...report.errors.map(({ label, text }) => `error: ${label}: ${text.trim().split('\n').slice(0, 3).join(' ')}`),
  ];
  return succeeded || found.length > 0 ? found : ['schemathesis failed'];
}
