// What a run of schemathesis came to: read from its JUnit report and from what the hooks counted. Pure.

/** Statuses answered, how often, by operation (`GET /healthz`). */
export type Answers = Readonly<Record<string, Readonly<Record<string, number>>>>;

/** An operation that schemathesis could not test to the end, and why. */
export interface RunError {
  readonly label: string;
  readonly text: string;
}

/** What a JUnit report says beside success. */
export interface Report {
  /** Operations that were answered as they should not be. */
  readonly failures: readonly string[];
  readonly errors: readonly RunError[];
}

const entities: Record<string, string> = { lt: '<', gt: '>', quot: '"', apos: "'", amp: '&' };
const plain = (text: string): string =>
  text.replaceAll(/&(lt|gt|quot|apos|amp);/g, (_, name: string) => entities[name]!);

/** Reads the report that schemathesis writes (one test case for each operation). */
export function readReport(xml: string): Report {
  const failures: string[] = [];
  const errors: RunError[] = [];
  for (const [, name = '', content = ''] of xml.matchAll(
    /<testcase name="([^"]*)"[^>]*?(?:\/>|>([\s\S]*?)<\/testcase>)/g,
  )) {
    const label = plain(name);
    if (content.includes('<failure')) failures.push(label);
    for (const [, message = ''] of content.matchAll(/<error [^>]*>([\s\S]*?)<\/error>/g)) {
      errors.push({ label, text: plain(message) });
    }
  }
  return { failures, errors };
}

/**
 * Whether an error is schemathesis's own (a defect of its generator, or a generator that was too slow), so that the operation
 * may be tried again alone. A connection that breaks or a server that does not answer is never that.
 */
export const isOwnError = ({ text }: RunError): boolean => /^\s*(Runtime Error|Failed Health Check)\b/.test(text);

/** A caller's whole pass. */
export interface Pass {
  readonly passed: boolean;
  readonly lines: readonly string[];
}

/** What a pass has to show for: every operation asked, and something answered. */
export interface PassParts {
  readonly caller: string;
  /** Every operation of the document, and those that are open to the caller. */
  readonly operations: readonly string[];
  readonly open: ReadonlySet<string>;
  readonly answers: Answers;
  /** What schemathesis found, and did not withdraw when it was run again. */
  readonly problems: readonly string[];
  /** Operations that were run again alone after an error of schemathesis itself. */
  readonly repeated: readonly string[];
  readonly seconds: number;
}

/** Judges a pass: no problem, no operation left out, and not merely refusals. */
export function judgePass(parts: PassParts): Pass {
  const { operations, open, answers, repeated } = parts;
  const statuses: Record<string, number> = {};
  for (const counts of Object.values(answers)) {
    for (const [status, count] of Object.entries(counts)) statuses[status] = (statuses[status] ?? 0) + count;
  }
  const total = Object.values(statuses).reduce((sum, count) => sum + count, 0);
  const missing = operations.filter((label) => answers[label] === undefined);
  const served = [...open].filter((label) => answers[label]?.['501'] === undefined);
  const succeeded = served.filter((label) =>
    Object.keys(answers[label] ?? {}).some((status) => status.startsWith('2')),
  );
  const problems = [
    ...parts.problems,
    ...(missing.length > 0
      ? [`never asked: ${missing.length < operations.length ? missing.join(', ') : 'all of them'}`]
      : []),
    // A run in which nothing succeeded has tested the door alone.
    ...(succeeded.length === 0 ? ['no request succeeded'] : []),
  ];
  const passed = problems.length === 0;
  const unsuccessful = served.filter((label) => answers[label] !== undefined && !succeeded.includes(label));
  return {
    passed,
    lines: [
      `${parts.caller}: ${passed ? 'ok' : 'FAILED'}, ${operations.length - missing.length} of ${operations.length} operations, ` +
        `${total} requests in ${parts.seconds.toFixed(0)} s ${JSON.stringify(statuses)}`,
      `  of ${open.size} operations open to this caller ${open.size - served.length} are not served (501), ` +
        `${succeeded.length} succeeded${unsuccessful.length > 0 ? `, never: ${unsuccessful.join(', ')}` : ''}`,
      ...(repeated.length > 0
        ? [`  run again alone after an error of schemathesis itself: ${repeated.join(', ')}`]
        : []),
      ...problems.map((problem) => `  ${problem}`),
    ],
  };
}
