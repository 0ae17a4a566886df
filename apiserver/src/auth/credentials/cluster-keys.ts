// The cluster's signing keys: tokens that they did not sign are rejected without a request to the cluster.
import { createLocalJWKSet, errors, type JSONWebKeySet, jwtVerify } from 'jose';
import type { Clock } from '../../platform/clock.ts';
import type { KubernetesApi } from '../../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { kubernetesAudience } from './kubernetes-token.ts';

/** How long keys are used before they are read again, and how soon again for a token that none of them signed. */
const refreshMilliseconds = 600_000;
const rereadMilliseconds = 10_000;

/** Result of checking a token against the keys; `unknown` if the keys could not be read. */
export type KeyJudgement = 'signed' | 'forged' | 'expired' | 'unknown';

/** Classifies a failed verification. */
function judgementOf(error: unknown): 'forged' | 'expired' | 'no such key' {
  if (error instanceof errors.JWKSNoMatchingKey) return 'no such key';
  if (error instanceof errors.JWTExpired) return 'expired';
  if (error instanceof errors.JOSEError) return 'forged';
  throw error;
}

/** Reads and caches the keys. */
export class ClusterKeys {
  private readonly api: Pick<KubernetesApi, 'signingKeys'>;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private keys: ReturnType<typeof createLocalJWKSet> | undefined;
  private readAt = -Infinity;
  private reading: Promise<void> | undefined;

  constructor(api: Pick<KubernetesApi, 'signingKeys'>, clock: Clock, logger: Logger) {
    this.api = api;
    this.clock = clock;
    this.logger = logger;
  }

  /** Verifies signature, audience and time. */
  async judge(token: string): Promise<KeyJudgement> {
    await this.read(this.keys ? refreshMilliseconds : rereadMilliseconds);
    const judgement = await this.verify(token);
    if (judgement !== 'no such key') return judgement;
    // The cluster may have started to sign with a new key.
    await this.read(rereadMilliseconds);
    const again = await this.verify(token);
    return again === 'no such key' ? 'forged' : again;
  }

  private async verify(token: string): Promise<KeyJudgement | 'no such key'> {
    if (!this.keys) return 'unknown';
    const options = {
      audience: kubernetesAudience,
      algorithms: ['RS256', 'RS384', 'RS512', 'ES256', 'ES384', 'ES512'],
      currentDate: new Date(this.clock.now()),
    };
    try {
      await jwtVerify(token, this.keys, options);
      return 'signed';
    } catch (error) {
      if (!(error instanceof errors.JWKSMultipleMatchingKeys)) return judgementOf(error);
      // The token has no key id. The cluster sets one on its own tokens, but any caller may omit it: try each matching
      // key.
      for await (const key of error) {
        const judgement = await jwtVerify(token, key, options).then(() => 'signed' as const, judgementOf);
        if (judgement !== 'forged') return judgement;
      }
      return 'forged';
    }
  }

  /** Reads the keys if they are older than the given time. If that fails, the known keys stay. */
  private async read(olderThan: number): Promise<void> {
    if (this.clock.now() - this.readAt < olderThan) return this.keys ? undefined : this.reading;
    this.readAt = this.clock.now();
    this.reading = this.api
      .signingKeys()
      .then((keys: JSONWebKeySet) => void (this.keys = createLocalJWKSet(keys)))
      .catch((error: unknown) => this.logger.debug({ err: error }, 'the signing keys of the cluster cannot be read'));
    await this.reading;
  }
}
