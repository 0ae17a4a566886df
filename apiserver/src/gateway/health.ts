// Liveness and readiness of a process (SPEC, Gateway-level routes).
import { sleep } from '../platform/clock.ts';

/** Resolves when the dependency answers, rejects with the reason when it does not. */
export type Check = () => Promise<unknown>;

/** What /readyz answers. */
export interface Readiness {
  readonly isReady: boolean;
  /** Dependency → `healthy` or `unhealthy: <reason>`. */
  readonly body: Readonly<Record<string, string>>;
}

const defaultTimeoutMilliseconds = 1000;

/** The dependencies of a process, and whether it is on its way out. */
export class Health {
  private readonly checks: Map<string, Check>;
  private readonly timeoutMilliseconds: number;
  private isDraining = false;

  constructor(checks: Readonly<Record<string, Check>>, timeoutMilliseconds = defaultTimeoutMilliseconds) {
    this.checks = new Map(Object.entries(checks));
    this.timeoutMilliseconds = timeoutMilliseconds;
  }

  /** Adds a dependency. */
  add(name: string, check: Check): void {
    this.checks.set(name, check);
  }

  /** From now on the process is not ready: load balancers stop sending before it stops serving. */
  drain(): void {
    this.isDraining = true;
  }

  /** Asks every dependency but the excluded ones, at the same time, each for a bounded time. */
  async readiness(excluded: ReadonlySet<string> = new Set()): Promise<Readiness> {
    const names = [...this.checks.keys()].filter((name) => !excluded.has(name));
    const states = await Promise.all(names.map((name) => this.state(this.checks.get(name)!)));
    const body = Object.fromEntries(names.map((name, index) => [name, states[index]!]));
    if (this.isDraining) body['gateway'] = 'unhealthy: draining';
    return { isReady: Object.values(body).every((state) => state === 'healthy'), body };
  }

  private async state(check: Check): Promise<string> {
    const done = new AbortController();
    try {
      const timeout = sleep(this.timeoutMilliseconds, done.signal).then(() => {
        throw new Error(`no answer within ${this.timeoutMilliseconds} ms`);
      });
      await Promise.race([check(), timeout]);
      return 'healthy';
    } catch (error) {
      return `unhealthy: ${reasonOf(error)}`;
    } finally {
      done.abort();
    }
  }
}

/** The value of `?exclude=`, names separated by commas; the parameter may be repeated. */
export function excludedNames(query: string): Set<string> {
  return new Set(new URLSearchParams(query).getAll('exclude').flatMap((names) => names.split(',')));
}

/** A reason without addresses and credentials: /readyz is open to everybody. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return 'failed';
  const cause = error.cause instanceof Error ? error.cause : error;
  if ('code' in cause && typeof cause.code === 'string' && /^[A-Z0-9_]+$/.test(cause.code)) return cause.code;
  return cause.message.replaceAll(/\S*(:\/\/|@|\d+\.\d+\.\d+\.\d+|\[[0-9a-f:]+\])\S*/gi, '…').slice(0, 120);
}
