// Liveness and readiness of a process.
import { sleep } from '../../platform/clock.ts';

/** Resolves if the dependency is healthy, otherwise rejects with the reason. */
export type Check = () => Promise<unknown>;

/** Response of /readyz. */
export interface Readiness {
  readonly isReady: boolean;
  /** Dependency → `healthy` or `unhealthy: <reason>`. */
  readonly body: Readonly<Record<string, string>>;
}

/** Timing of the checks. */
export interface HealthTiming {
  /** Timeout of a check. */
  readonly timeoutMilliseconds: number;
  /** How long a result is reused, so that frequent /readyz requests do not load the database. */
  readonly freshnessMilliseconds: number;
  /** Age at which a hanging check is abandoned and restarted. */
  readonly hangTimeoutMilliseconds: number;
}

const defaultTiming: HealthTiming = {
  timeoutMilliseconds: 1000,
  freshnessMilliseconds: 500,
  hangTimeoutMilliseconds: 10_000,
};

/** A dependency, with at most one check running. */
class Dependency {
  private readonly check: Check;
  private readonly timing: HealthTiming;
  private asked: { readonly at: number; readonly state: Promise<string>; respondedAt: number | undefined } | undefined;

  constructor(check: Check, timing: HealthTiming) {
    this.check = check;
    this.timing = timing;
  }

  /** Returns `healthy` or `unhealthy: <reason>`, within the timeout. */
  state(): Promise<string> {
    const now = performance.now();
    const { asked } = this;
    if (asked) {
      const end =
        asked.respondedAt === undefined
          ? asked.at + this.timing.hangTimeoutMilliseconds
          : asked.respondedAt + this.timing.freshnessMilliseconds;
      if (now < end) return this.inTime(asked.state);
    }
    const state = this.check().then(
      () => 'healthy',
      (error: unknown) => `unhealthy: ${reasonOf(error)}`,
    );
    const question: typeof this.asked = { at: now, state, respondedAt: undefined };
    this.asked = question;
    void state.then(() => (question.respondedAt = performance.now()));
    return this.inTime(state);
  }

  private async inTime(state: Promise<string>): Promise<string> {
    const done = new AbortController();
    const late = sleep(this.timing.timeoutMilliseconds, done.signal).then(
      () => `unhealthy: no response within ${this.timing.timeoutMilliseconds} ms`,
    );
    const first = await Promise.race([state, late]);
    done.abort();
    return first;
  }
}

/** The dependencies of a process, and whether it is draining. */
export class Health {
  private readonly dependencies = new Map<string, Dependency>();
  private readonly timing: HealthTiming;
  private isDraining = false;

  constructor(checks: Readonly<Record<string, Check>>, timing: Partial<HealthTiming> = {}) {
    this.timing = { ...defaultTiming, ...timing };
    for (const [name, check] of Object.entries(checks)) this.add(name, check);
  }

  /** Adds a dependency. */
  add(name: string, check: Check): void {
    this.dependencies.set(name, new Dependency(check, this.timing));
  }

  /** Marks the process as not ready, so that load balancers stop sending before it stops serving. */
  drain(): void {
    this.isDraining = true;
  }

  /** Checks all dependencies except the excluded ones concurrently, each with a timeout. */
  async readiness(excluded: ReadonlySet<string> = new Set()): Promise<Readiness> {
    const asked = [...this.dependencies].filter(([name]) => !excluded.has(name));
    const states = await Promise.all(
      asked.map(async ([name, dependency]) => [name, await dependency.state()] as const),
    );
    const body = Object.fromEntries(states);
    if (this.isDraining) body['gateway'] = 'unhealthy: draining';
    return { isReady: Object.values(body).every((state) => state === 'healthy'), body };
  }
}

/** Parses `?exclude=`, comma-separated names; the parameter may be repeated. */
export function excludedNames(query: string): Set<string> {
  return new Set(new URLSearchParams(query).getAll('exclude').flatMap((names) => names.split(',')));
}

/** Removes addresses and credentials from a reason, because /readyz is public. */
function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return 'failed';
  const cause = error.cause instanceof Error ? error.cause : error;
  if ('code' in cause && typeof cause.code === 'string' && /^[A-Z0-9_]+$/.test(cause.code)) return cause.code;
  return cause.message.replaceAll(/\S*(:\/\/|@|\d+\.\d+\.\d+\.\d+|\[[0-9a-f:]+\])\S*/gi, '…').slice(0, 120);
}
