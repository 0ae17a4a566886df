// The Ed25519 keys that sign and verify access tokens: the configured one, and those that have replaced it since. A new key
// is published before it signs, and an old one verifies until its last token has expired, so processes that learn of a
// rotation at different times accept each other's tokens.
import {
  createCipheriv,
  createDecipheriv,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  hkdfSync,
  type KeyObject,
  randomBytes,
} from 'node:crypto';
import { calculateJwkThumbprint, exportJWK } from 'jose';
import { systemFacts } from '../../platform/audit/audit-event.ts';
import type { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { Loop } from '../../platform/background/loop.ts';
import type { Clock } from '../../platform/clock.ts';
import { holdLock, signingKeysLock } from '../../platform/database/advisory-locks.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';

/** Seconds between the publication of a key and its first signature: several times the interval of loading. */
export const publishedSeconds = 120;
/** Seconds that a key verifies after its successor has begun to sign: longer than a token lives, with a margin for clock skew. */
export const verifySeconds = 20 * 60;
const loadMilliseconds = 20_000;
/** Minimum time between two loads caused by unknown key ids, which anyone can put into a token. */
const surpriseMilliseconds = 1000;

/** A key of the ring. */
export interface RingKey {
  readonly keyId: string;
  readonly privateKey: KeyObject;
  readonly publicKey: KeyObject;
  /** Milliseconds since 1970; -Infinity for the configured key. */
  readonly signsFrom: number;
}

/** A public key as published (RFC 8037). */
export interface PublishedKey {
  readonly kty: 'OKP';
  readonly crv: 'Ed25519';
  readonly x: string;
  readonly kid: string;
  readonly alg: 'EdDSA';
  readonly use: 'sig';
}

/** What a key is for: it will sign, it signs, or it only verifies what it has signed. */
export type KeyState = 'next' | 'signing' | 'retiring';

/** Returns the key that signs at a time: the newest that may. `keys` are in order of signsFrom. */
export const signingKey = <Key extends Pick<RingKey, 'signsFrom'>>(keys: readonly Key[], now: number): Key =>
  keys.findLast(({ signsFrom }) => signsFrom <= now) ?? keys[0]!;

/** Returns the keys that verify at a time: those that have not been replaced long ago. */
export const verifyingKeys = <Key extends Pick<RingKey, 'signsFrom'>>(keys: readonly Key[], now: number): Key[] =>
  keys.filter((_, index) => {
    const successor = keys[index + 1];
    return !successor || now < successor.signsFrom + verifySeconds * 1000;
  });

/** Dependencies of the ring. */
export interface KeyRingParts {
  readonly audit: Pick<AuditTrail, 'within'>;
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  /** PKCS#8 PEM of an Ed25519 key. */
  readonly configuredKey: string;
  /** Days after which the newest key is replaced; 0: only by command. */
  readonly rotationDays: number;
}

/** The keys, loaded from the database. */
export class KeyRing {
  private readonly parts: KeyRingParts;
  private readonly configured: KeyObject;
  private readonly sealingKey: Buffer;
  private readonly loop: Loop;
  private keys: readonly RingKey[] | undefined;
  private loading: Promise<readonly RingKey[]> | undefined;
  private loadedAt = -Infinity;
  /** When `keys` were read, by the clock. */
  private readAt = -Infinity;

  /** Throws when the configured key is not an Ed25519 key. */
  constructor(parts: KeyRingParts) {
    this.parts = parts;
    this.configured = createPrivateKey(parts.configuredKey);
    if (this.configured.asymmetricKeyType !== 'ed25519') throw new Error('the JWT key must be an Ed25519 key');
    this.sealingKey = this.deriveKey('signing keys');
    this.loop = new Loop(parts.logger, 'signing keys', loadMilliseconds, () => this.tick());
  }

  start(): void {
    this.loop.start();
  }

  stop(): Promise<void> {
    return this.loop.stop();
  }

  /** Returns the key for a new token. */
  async signing(): Promise<RingKey> {
    return signingKey(await this.current(), this.parts.clock.now());
  }

  /** Returns the key that a token names, or undefined if the ring lacks it or it no longer verifies. */
  async verifying(keyId: string): Promise<RingKey | undefined> {
    const find = (keys: readonly RingKey[]) =>
      verifyingKeys(keys, this.parts.clock.now()).find((key) => key.keyId === keyId);
    const found = find(await this.current());
    // Another process may have made it since.
    if (found || performance.now() - this.loadedAt < surpriseMilliseconds) return found;
    return find(await this.load());
  }

  /** Returns the public keys that verify now or will soon. */
  async published(): Promise<PublishedKey[]> {
    return (await this.listed()).map(({ key }) => key);
  }

  /** Returns the public keys that verify now or will soon, oldest first, each with what it is for. */
  async listed(): Promise<{ key: PublishedKey; state: KeyState }[]> {
    const [keys, now] = [await this.load(), this.parts.clock.now()];
    const signing = signingKey(keys, now);
    return Promise.all(
      verifyingKeys(keys, now).map(async (one) => {
        const { x = '' } = await exportJWK(one.publicKey);
        const state = one === signing ? 'signing' : one.signsFrom > now ? 'next' : 'retiring';
        return { key: { kty: 'OKP', crv: 'Ed25519', x, kid: one.keyId, alg: 'EdDSA', use: 'sig' } as const, state };
      }),
    );
  }

  /** A secret for another purpose, derived from the configured key; the same in every process, whatever signs. */
  deriveKey(purpose: string): Buffer {
    const material = this.configured.export({ format: 'der', type: 'pkcs8' });
    return Buffer.from(hkdfSync('sha256', material, '', `kellet ${purpose}`, 32));
  }

  /**
   * Adds a key and returns its id. It signs from {@link publishedSeconds} later on. A key that is published already, and
   * does not sign yet, is returned instead of another one. `ifOlderMilliseconds` adds one only if the newest is older.
   */
  async rotate(ifOlderMilliseconds = -Infinity): Promise<string | undefined> {
    const { database, clock, logger, audit } = this.parts;
    const keyId = await database.system(async (tx) => {
      await holdLock(tx, signingKeysLock);
      const now = clock.now();
      const keys = await this.read(tx);
      const newest = keys.at(-1)!;
      if (newest.signsFrom > now) return newest.keyId;
      // How long the configured key has signed is not known: it is replaced at the first opportunity.
      if (now - newest.signsFrom < ifOlderMilliseconds) return undefined;
      await this.forget(tx, keys, now);
      const added = await this.add(tx, now);
      await audit.within(tx, systemFacts('auth.signing_key_added', { kind: 'signing_key', id: added }));
      return added;
    });
    await this.load();
    if (keyId !== undefined) logger.info({ key: keyId }, 'a key for access tokens was added');
    return keyId;
  }

  private async tick(): Promise<void> {
    const { rotationDays, clock } = this.parts;
    const newest = (await this.load()).at(-1)!;
    if (rotationDays === 0 || clock.now() - newest.signsFrom < rotationDays * 86_400_000) return;
    await this.rotate(rotationDays * 86_400_000);
  }

  /** Returns the keys, read again if a newer one may sign that was published since: the database may have been away for long. */
  private async current(): Promise<readonly RingKey[]> {
    const isKnown = this.parts.clock.now() - this.readAt < publishedSeconds * 1000;
    return this.keys && isKnown ? this.keys : this.load();
  }

  private load(): Promise<readonly RingKey[]> {
    const startedAt = this.parts.clock.now();
    this.loading ??= this.parts.database
      .systemRead((tx) => this.read(tx))
      .then((keys) => {
        this.readAt = startedAt;
        return (this.keys = keys);
      })
      .finally(() => {
        this.loading = undefined;
        this.loadedAt = performance.now();
      });
    return this.loading;
  }

  private async read(tx: Transaction): Promise<readonly RingKey[]> {
    const { rows } = await tx.query<{ key_id: string; sealed_key: Buffer; signs_from: Date }>(
      'SELECT key_id, sealed_key, signs_from FROM signing_keys ORDER BY signs_from',
    );
    const known = new Map(this.keys?.map((key) => [key.keyId, key]));
    const stored = rows.map((row) => known.get(row.key_id) ?? this.open(row));
    const configured = this.keys?.[0] ?? (await ringKey(this.configured, -Infinity));
    return [configured, ...stored.filter((key) => key !== undefined)];
  }

  /** Returns undefined for a key that another configured key has sealed: replacing the configured key replaces the ring. */
  private open(row: { key_id: string; sealed_key: Buffer; signs_from: Date }): RingKey | undefined {
    try {
      const decipher = createDecipheriv('aes-256-gcm', this.sealingKey, row.sealed_key.subarray(0, 12));
      decipher.setAAD(Buffer.from(row.key_id));
      decipher.setAuthTag(row.sealed_key.subarray(12, 28));
      const der = Buffer.concat([decipher.update(row.sealed_key.subarray(28)), decipher.final()]);
      const privateKey = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' });
      const publicKey = createPublicKey(privateKey);
      return { keyId: row.key_id, privateKey, publicKey, signsFrom: row.signs_from.getTime() };
    } catch {
      return undefined;
    }
  }

  private async add(tx: Transaction, now: number): Promise<string> {
    const { privateKey } = generateKeyPairSync('ed25519');
    const { keyId } = await ringKey(privateKey, 0);
    const nonce = randomBytes(12);
    const cipher = createCipheriv('aes-256-gcm', this.sealingKey, nonce);
    cipher.setAAD(Buffer.from(keyId));
    const sealed = Buffer.concat([cipher.update(privateKey.export({ format: 'der', type: 'pkcs8' })), cipher.final()]);
    await tx.query('INSERT INTO signing_keys (key_id, sealed_key, signs_from, created_at) VALUES ($1, $2, $3, $4)', [
      keyId,
      Buffer.concat([nonce, cipher.getAuthTag(), sealed]),
      new Date(now + publishedSeconds * 1000),
      new Date(now),
    ]);
    return keyId;
  }

  /** Deletes stored keys that no longer verify. */
  private async forget(tx: Transaction, keys: readonly RingKey[], now: number): Promise<void> {
    const kept = new Set(verifyingKeys(keys, now));
    const ended = keys.slice(1).filter((key) => !kept.has(key));
    await tx.query('DELETE FROM signing_keys WHERE key_id = ANY($1)', [ended.map(({ keyId }) => keyId)]);
  }
}

async function ringKey(privateKey: KeyObject, signsFrom: number): Promise<RingKey> {
  const publicKey = createPublicKey(privateKey);
  return { keyId: await calculateJwkThumbprint(await exportJWK(publicKey)), privateKey, publicKey, signsFrom };
}
