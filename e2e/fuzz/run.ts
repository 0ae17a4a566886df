// A fuzz run: sends requests generated from a seed over several connections and checks each response and the server's
// memory.
import type { RouteTable } from '../../apiserver/src/gateway/transcoding/routes.ts';
import { Connection } from './connection.ts';
import { type FuzzCaller, type Ids, soundRequest } from './corpus.ts';
import { complaint, type Documented } from './judge.ts';
import { mutate } from './mutations.ts';
import { Random } from './random.ts';
import { breakFraming } from './raw-bytes.ts';
import { bytesOf, describeRequest, type FuzzRequest } from './request.ts';

/** Options of a run. */
export interface FuzzOptions {
  host: string;
  port: number;
  seed: number;
  requests: number;
  /** Number of the first request. A run of one request repeats only that one. */
  first: number;
  /** Timeout of a response in milliseconds. */
  patience: number;
  routes: RouteTable;
  documented: Documented;
  ids: () => Ids;
  callers: readonly FuzzCaller[];
  /** Called periodically, never concurrently, to renew credentials. */
  renew: () => Promise<void>;
}

/** Result of a run. */
export interface FuzzReport {
  sent: number;
  statuses: Record<string, number>;
  /** Requests with a wrong response. */
  findings: string[];
}

const workers = 6;
/** Number of findings after which a run ends. */
const enough = 20;

/** Sends all requests. Resolves when every response has been checked. */
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

/** Sends valid HTTP, one or several pipelined requests: responses arrive in order, one each. */
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
      const result = await connection.result(request.method, options.patience);
      if (!result) {
        found('no response');
        return connections.close();
      }
      report.statuses[result.status] = (report.statuses[result.status] ?? 0) + 1;
      const wrong = complaint(request, result, options.routes, options.documented);
      if (wrong) found(wrong);
      // Rejecting a body before it is read ends the connection, so pipelined requests behind it may be lost.
      if (result.headers.get('connection') === 'close') return connections.close();
    } catch (error) {
      found((error as Error).message);
      return connections.close();
    }
  }
}

/** Sends malformed HTTP: it must be rejected, or the connection closed, in time. */
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
  // An incomplete request is rejected only once it is clear that no more data follows.
  connection.finish();
  report.sent += 1;
  try {
    for (;;) {
      const response = await connection.result('GET', options.patience);
      if (!response) break;
      report.statuses[response.status] = (report.statuses[response.status] ?? 0) + 1;
      if (response.status >= 500 && response.status !== 501) {
        report.findings.push(
          `#${number} ${response.status} to ${JSON.stringify(bytes.toString('latin1').slice(0, 300))}`,
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
