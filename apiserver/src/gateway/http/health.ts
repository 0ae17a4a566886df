// Liveness and readiness of a process (SPEC, Gateway-level routes).
import { sleep } from '../../platform/clock.ts';

/** Resolves when the dependency answers, rejects with the reason when it does not. */
export type Check = () => Promise<unknown>;

/** What /readyz answers. */
export interface Readiness {
  readonly isReady: boolean;
  /** Dependency → `healthy` or `unhealthy: <reason>`. */
  readonly body: Readonly<Record<string, string>>;
}

/** How dependencies are asked; milliseconds. */
export interface HealthTiming {
  /** How long a dependency has to answer. */
  readonly timeout: number;
  /** How long an answer is good for: however often /readyz is asked, the database is not. */
  readonly freshness: number;
  /** After this a question that has not been answered at all is given up and asked again. */
  readonly patience: number;
}

const defaultTiming: HealthTiming = { timeout: 1000, freshness: 500, patience: 10_000 };

/** One dependency, asked one question at a time. */
class Dependency {
  private readonly check: Check;
  private readonly timing: HealthTiming;
  private asked: { readonly at: number; readonly state: Promise<string>; answeredAt: number | undefined } | undefined;

  constructor(check: Check, timing: HealthTiming) {
    this.check = check;
    this.timing = timing;
  }

  /** `healthy` or `unhealthy: <reason>`, within the timeout. */
  state(): Promise<string> {
    const now = performance.now();
    const { asked } = this;
    if (asked) {
      const end =
        asked.answeredAt === undefined ? asked.at + this.timing.patience : asked.answeredAt + this.timing.freshness;
      if (now < end) return this.inTime(asked.state);
    }
    const state = this.check().then(
      () => 'healthy',
      (error: unknown) => `unhealthy: ${reasonOf(error)}`,
    );
    const question: typeof this.asked = { at: now, state, answeredAt: undefined };
    this.asked = question;
    void state.then(() => (question.answeredAt = performance.now()));
    return this.inTime(state);
  }

  private async inTime(state: Promise<string>): Promise<string> {
    const done = new AbortController();
    const late = sleep(this.timing.timeout, done.signal).then(
      () => `unhealthy: no answer within ${this.timing.timeout} ms`,
    );
    const first = await Promise.race([state, late]);
    done.abort();
    return first;
  }
}

/** The dependencies of a process, and whether it is on its way out. */
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

  /** From now on the process is not ready: load balancers stop sending before it stops serving. */
  drain(): void {
    this.isDraining = true;
  }

  /** Asks every dependency but the excluded ones, at the same time, each for a bounded time. */
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
