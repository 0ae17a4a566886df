// Routes on the metrics port for callers with the control secret: the log level at run time, CPU profiles and heap
// snapshots.
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { hostname } from 'node:os';
import { plainAddress } from '../gateway/admission/authorize.ts';
import { sendJson } from '../gateway/http/gateway-routes.ts';
import { continueRequest } from '../gateway/http/http-server.ts';
import { type AuditFacts, systemFacts } from '../platform/audit/audit-event.ts';
import type { AuditTrail } from '../platform/audit/audit-trail.ts';
import { invalidArgument, KelletError } from '../platform/errors.ts';
import { type Logger, logLevels, setLogLevel } from '../platform/observability/logger.ts';
import { Profiler } from './profiler.ts';

/** Longest body of a request. */
const bodyBytes = 1024;

const defaultSeconds = 10;
const maximumSeconds = 60;

/** Routes and their methods. */
const routes: ReadonlyMap<string, readonly string[]> = new Map([
  ['/loglevel', ['GET', 'PUT']],
  ['/profile/cpu', ['POST']],
  ['/profile/heap', ['POST']],
]);

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

/** Serves the routes. */
export class Diagnostics {
  private readonly secret: Buffer;
  private readonly logger: Logger;
  private readonly audit: Pick<AuditTrail, 'record' | 'noteOnce'>;
  private readonly profiler = new Profiler();

  /**
   * `secret` is what callers present as a bearer token, and `logger` the one whose level they change. What they do is recorded
   * in the audit log of the platform.
   */
  constructor(secret: string, logger: Logger, audit: Pick<AuditTrail, 'record' | 'noteOnce'>) {
    this.secret = digest(secret);
    this.logger = logger;
    this.audit = audit;
  }

  /**
   * Serves a request. Returns false for other routes. Throws UNAUTHENTICATED without the secret, ABORTED while another
   * profile is taken, and INVALID_ARGUMENT for a malformed request.
   */
  async handle(request: IncomingMessage, response: ServerResponse, path: string): Promise<boolean> {
    if (!routes.get(path)?.includes(request.method!)) return false;
    const token = /^bearer +(\S+)$/i.exec(request.headers.authorization ?? '')?.[1] ?? '';
    // Digests have one length, so that the comparison takes the same time for every token.
    const facts = factsOf(request, path);
    if (!timingSafeEqual(digest(token), this.secret)) {
      this.audit.noteOnce({ ...facts, actor: { ...facts.actor, kind: 'public' }, result: 'UNAUTHENTICATED' });
      throw new KelletError('UNAUTHENTICATED', 'the control secret is required as a bearer token');
    }
    refuseParameters(request.url!, path === '/profile/cpu' ? ['seconds'] : []);
    // Not awaited: diagnostics work while the database is away.
    if (request.method !== 'GET') this.audit.record(facts).catch(() => undefined);
    if (path === '/profile/cpu') await this.profileCpu(request, response);
    else if (path === '/profile/heap') await this.snapshotHeap(response);
    else {
      if (request.method === 'PUT') this.changeLevel(await readBody(request));
      sendJson(response, 200, { level: this.logger.level });
    }
    return true;
  }

  private changeLevel(body: string): void {
    const level = levelOf(body);
    const before = this.logger.level;
    setLogLevel(this.logger, level);
    this.logger.warn({ before, level }, 'the log level was changed');
  }

  private async profileCpu(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const seconds = secondsOf(request.url!);
    const gone = new AbortController();
    response.once('close', () => gone.abort());
    const profile = await this.profiler.cpu(seconds, gone.signal, () =>
      this.logger.warn({ seconds }, 'a CPU profile is taken'),
    );
    if (response.destroyed) return;
    response.setHeader('content-disposition', 'attachment; filename="kellet.cpuprofile"');
    sendJson(response, 200, profile);
  }

  private async snapshotHeap(response: ServerResponse): Promise<void> {
    await this.profiler.heap(response, () => this.logger.warn('a heap snapshot is taken'));
  }
}

/** Returns the audit event of a request: anyone who holds the control secret may have made it. */
function factsOf({ socket, headers }: IncomingMessage, path: string): AuditFacts {
  const action = `diagnostics.${path.slice(1).replaceAll('/', '_')}`;
  const facts = systemFacts(action, { kind: 'process', id: hostname() }, { kind: 'control', id: '', name: '' });
  return { ...facts, address: plainAddress(socket.remoteAddress ?? ''), userAgent: headers['user-agent'] ?? '' };
}

/** Returns the level in a request body. Throws INVALID_ARGUMENT. */
function levelOf(body: string): (typeof logLevels)[number] {
  let parsed: unknown;
  try {
    parsed = JSON.parse(body);
  } catch {
    throw invalidArgument('the body must be JSON, such as {"level":"debug"}');
  }
  if (parsed === null || typeof parsed !== 'object') throw invalidArgument('the body must be a JSON object');
  const unknown = Object.keys(parsed).find((name) => name !== 'level');
  if (unknown !== undefined) throw invalidArgument(`unknown field ${JSON.stringify(unknown)}`);
  const given = (parsed as { level?: unknown }).level;
  const level = logLevels.find((one) => one === given);
  if (level === undefined) throw invalidArgument(`level must be one of ${logLevels.join(', ')}`);
  return level;
}

/** Throws INVALID_ARGUMENT if the query of a request has parameters other than those that are known. */
function refuseParameters(url: string, known: readonly string[]): void {
  const unknown = [...new URLSearchParams(url.split('?')[1]).keys()].find((name) => !known.includes(name));
  if (unknown !== undefined) throw invalidArgument(`unknown query parameter ${JSON.stringify(unknown)}`);
}

/** Returns the seconds in the query of a request. Throws INVALID_ARGUMENT. */
function secondsOf(url: string): number {
  const text = new URLSearchParams(url.split('?')[1]).get('seconds') ?? String(defaultSeconds);
  const seconds = Number(text);
  if (!/^\d{1,3}$/.test(text) || seconds < 1 || seconds > maximumSeconds) {
    throw invalidArgument(`seconds must be a whole number from 1 to ${maximumSeconds}`);
  }
  return seconds;
}

/** Reads a short body. Throws INVALID_ARGUMENT if it is too long. */
async function readBody(request: IncomingMessage): Promise<string> {
  continueRequest(request);
  const chunks: Buffer[] = [];
  let length = 0;
  // A response follows, so the connection must stay open although the body is not read to its end.
  for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > bodyBytes) throw invalidArgument(`the body is longer than ${bodyBytes} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString('utf8');
}
