// A fuzz run: so many requests from a seed, several connections at a time, each answer judged, the server's memory watched.
import type { RouteTable } from '../../apiserver/src/gateway/transcoding/routes.ts';
import { Connection } from './connection.ts';
import { soundRequest, type FuzzCaller, type Ids } from './corpus.ts';
import { complaint, type Documented } from './judge.ts';
import { mutate } from './mutations.ts';
import { Random } from './random.ts';
import { breakFraming } from './raw-bytes.ts';
import { bytesOf, describeRequest, type FuzzRequest } from './request.ts';

/** What a run needs. */
export interface FuzzOptions {
  host: string;
  port: number;
  seed: number;
  requests: number;
  /** Number of the first request: a run of one repeats that request alone. */
  first: number;
  /** Milliseconds for one answer. */
  patience: number;
  routes: RouteTable;
  documented: Documented;
  ids: () => Ids;
  callers: readonly FuzzCaller[];
  /** Called now and then, one at a time: credentials may have to be renewed. */
  renew: () => Promise<void>;
}

/** What a run found. */
export interface FuzzReport {
  sent: number;
  statuses: Record<string, number>;
  /** Requests that were answered as they should not be. */
  findings: string[];
}

const workers = 6;
/** Findings after which a run ends. */
const enough = 20;

/** Sends them all; resolves when every answer has been judged. */
export async function fuzz(options: FuzzOptions): Promise<FuzzReport> {
  const report: FuzzReport = { sent: 0, statuses: {}, findings: [] };
  let next = options.first;
  const end = options.first + options.requests;
  let renewing = Promise.resolve();
  const work = async (): Promise<void> => {
    const connections = new Connections(options);
    while (next < end && report.findings.length < enough) {
      const number = next++;
      if (number % 50 === 0) renewing = renewing.then(() => options.renew());
      await renewing;
      await one(options, number, connections, report);
    }
    connections.close();
  };
  await Promise.all(Array.from({ length: workers }, work));
  return report;
}

/** The connection that a worker keeps alive. */
class Connections {
  private readonly options: FuzzOptions;
  private current: Connection | undefined;

  constructor(options: FuzzOptions) {
    this.options = options;
  }

  get(): Connection {
    if (!this.current || this.current.isClosed) this.current = this.fresh();
    return this.current;
  }

  fresh(): Connection {
    return new Connection(this.options.host, this.options.port);
  }

  close(): void {
    this.current?.close();
    this.current = undefined;
  }
}

async function one(options: FuzzOptions, number: number, connections: Connections, report: FuzzReport): Promise<void> {
  const random = new Random(options.seed + number);
  const make = (index: number): FuzzRequest => {
    const { routes, ids, callers } = options;
    return soundRequest(routes.routes, ids(), callers, random, `fuzz-${options.seed}-${number}-${index}`);
  };
  const kind = random.next();
  const requests = kind < 0.06 ? Array.from({ length: 2 + random.below(6) }, (_, index) => make(index)) : [make(0)];
  if (kind > 0.94) return malformed(options, number, requests[0]!, random, connections, report);
  for (const request of requests) if (!random.chance(0.2)) mutate(request, random);
  await wellFormed(options, number, requests, connections, report);
}

/** Sound HTTP, one request or several at once: answers come in order, one each. */
async function wellFormed(
  options: FuzzOptions,
  number: number,
  requests: readonly FuzzRequest[],
  connections: Connections,
  report: FuzzReport,
): Promise<void> {
  const connection = connections.get();
  connection.send(Buffer.concat(requests.map(bytesOf)));
  for (const request of requests) {
    report.sent += 1;
    const found = (what: string): void => void report.findings.push(`#${number} ${what}: ${describeRequest(request)}`);
    try {
      const answer = await connection.answer(request.method, options.patience);
      if (!answer) {
        found('no answer');
        return connections.close();
      }
      report.statuses[answer.status] = (report.statuses[answer.status] ?? 0) + 1;
      const wrong = complaint(request, answer, options.routes, options.documented);
      if (wrong) found(wrong);
      // A body that was refused before it was read ends the connection; what was pipelined behind it is lost, as it may.
      if (answer.headers.get('connection') === 'close') return connections.close();
    } catch (error) {
      found((error as Error).message);
      return connections.close();
    }
  }
}

/** No HTTP: it is refused, or the connection is closed, in time. */
async function malformed(
  options: FuzzOptions,
  number: number,
  request: FuzzRequest,
  random: Random,
  connections: Connections,
  report: FuzzReport,
): Promise<void> {
  const connection = connections.fresh();
  const bytes = breakFraming(request, random);
  connection.send(bytes);
  // Half a request is only complained about once it is clear that no more will come.
  connection.finish();
  report.sent += 1;
  try {
    for (;;) {
      const answer = await connection.answer('GET', options.patience);
      if (!answer) break;
      report.statuses[answer.status] = (report.statuses[answer.status] ?? 0) + 1;
      if (answer.status >= 500 && answer.status !== 501) {
        report.findings.push(
          `#${number} ${answer.status} to ${JSON.stringify(bytes.toString('latin1').slice(0, 300))}`,
        );
      }
    }
  } catch (error) {
    const text = JSON.stringify(bytes.toString('latin1').slice(0, 300));
    report.findings.push(`#${number} ${(error as Error).message} to ${text}`);
  } finally {
    connection.close();
  }
}
