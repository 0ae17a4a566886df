// Evaluates a schemathesis run from its JUnit report and the hooks' counts, as pure functions.

/** Number of responses by operation (`GET /healthz`) and status. */
export type Responses = Readonly<Record<string, Readonly<Record<string, number>>>>;

/** An operation that schemathesis could not test completely, and the reason. */
export interface RunError {
  readonly label: string;
  readonly text: string;
}

/** Failures and errors of a JUnit report. */
export interface Report {
  /** Operations with wrong responses. */
  readonly failures: readonly string[];
  readonly errors: readonly RunError[];
}

const entities: Record<string, string> = { lt: '<', gt: '>', quot: '"', apos: "'", amp: '&' };
const plain = (text: string): string =>
  text.replaceAll(/&(lt|gt|quot|apos|amp);/g, (_, name: string) => entities[name]!);

/** Parses the report of schemathesis (one test case per operation). */
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
 * Reports whether an error is internal to schemathesis (a bug in its generator, or data generation that was too slow),
 * so that the operation may be retried separately. Broken connections and missing responses are not.
 */
export const isOwnError = ({ text }: RunError): boolean => /^\s*(Runtime Error|Failed Health Check)\b/.test(text);

/** Result of a caller's pass. */
export interface Pass {
  readonly passed: boolean;
  readonly lines: readonly string[];
}

/** Input of the evaluation of a pass. */
export interface PassParts {
  readonly caller: string;
  /** All operations of the document, and those permitted to the caller. */
  readonly operations: readonly string[];
  readonly open: ReadonlySet<string>;
  readonly responses: Responses;
  /** Findings that persisted when run again. */
  readonly problems: readonly string[];
  /** Operations run again separately after an internal error of schemathesis. */
  readonly repeated: readonly string[];
  readonly seconds: number;
}

/** Evaluates a pass: it must have no problems, cover all operations, and include successes. */
export function judgePass(parts: PassParts): Pass {
  const { operations, open, responses, repeated } = parts;
  const statuses: Record<string, number> = {};
  for (const counts of Object.values(responses)) {
    for (const [status, count] of Object.entries(counts)) statuses[status] = (statuses[status] ?? 0) + count;
  }
  const total = Object.values(statuses).reduce((sum, count) => sum + count, 0);
  const missing = operations.filter((label) => responses[label] === undefined);
  const served = [...open].filter((label) => responses[label]?.['501'] === undefined);
  const succeeded = served.filter((label) =>
    Object.keys(responses[label] ?? {}).some((status) => status.startsWith('2')),
  );
  const problems = [
    ...parts.problems,
    ...(missing.length > 0
      ? [`not tested: ${missing.length < operations.length ? missing.join(', ') : 'all of them'}`]
      : []),
    // A run without any success has only tested authentication.
    ...(succeeded.length === 0 ? ['no request succeeded'] : []),
  ];
  const passed = problems.length === 0;
  const unsuccessful = served.filter((label) => responses[label] !== undefined && !succeeded.includes(label));
  return {
    passed,
    lines: [
      `${parts.caller}: ${passed ? 'ok' : 'FAILED'}, ${operations.length - missing.length} of ${operations.length} operations, ` +
        `${total} requests in ${parts.seconds.toFixed(0)} s ${JSON.stringify(statuses)}`,
      `  of ${open.size} operations open to this caller ${open.size - served.length} are not served (501), ` +
        `${succeeded.length} succeeded${unsuccessful.length > 0 ? `, never: ${unsuccessful.join(', ')}` : ''}`,
      ...(repeated.length > 0
        ? [`  run again separately after an internal error of schemathesis: ${repeated.join(', ')}`]
        : []),
      ...problems.map((problem) => `  ${problem}`),
    ],
  };
}
