// Checks the stored headers: each follows the one before it, has its hash and its proof of work.
import { checkHeaderChain, toDisplayHex } from '@kellet/verify';
import { type StoredHeader, storedHeaders } from '../chain-anchor/headers/header-chain.ts';
import { type Check, type CheckParts, Findings, type Outcome, snapshot } from './check.ts';

const headersAtOnce = 2000;

/** Yields a check for each run of headers. */
export async function* headerChecks(parts: CheckParts): AsyncGenerator<Check> {
  for (let from = 0; ;) {
    const start = from;
    const headers = await parts.database.systemRead((tx) => storedHeaders(tx, start, headersAtOnce));
    const [first, last] = [headers[0], headers.at(-1)];
    if (!first || !last) return;
    // Each run includes the header before it, so that every header is compared with its predecessor.
    yield () => checkRun(parts, Math.max(0, start - 1), last.height);
    from = last.height + 1;
  }
}

function checkRun({ database }: CheckParts, from: number, to: number): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const headers = (await storedHeaders(tx, from, headersAtOnce + 1)).filter(({ height }) => height <= to);
    const findings = new Findings();
    headers.forEach((header, index) => {
      const problem = headerProblem(headers[index - 1], header);
      if (problem !== undefined) findings.add('header', String(header.height), '', problem);
    });
    return { checked: { headers: headers.length }, findings: findings.all };
  });
}

function headerProblem(before: StoredHeader | undefined, header: StoredHeader): string | undefined {
  try {
    const { headers } = checkHeaderChain([header]);
    if (toDisplayHex(headers[0]!.hash) !== header.blockHash) return 'its hash differs from the stored one';
    if (before) {
      if (header.height !== before.height + 1) return `the headers after ${before.height} are missing`;
      if (toDisplayHex(headers[0]!.header.previousHash) !== before.blockHash)
        return 'it does not follow the header before it';
    }
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}
