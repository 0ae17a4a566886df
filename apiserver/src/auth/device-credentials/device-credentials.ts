// Credentials of devices of all types: issued with the device, replaced by rotation, and certificates renewed by the
// device itself.
import { LRUCache } from 'lru-cache';
import type { Clock } from '../../platform/clock.ts';
import { holdLock, tenantAuthorityLock } from '../../platform/database/advisory-locks.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { failedPrecondition, resourceExhausted, unauthenticated } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { SealedSecrets } from '../../platform/sealed-secrets.ts';
import {
  generateAuthority,
  openAuthority,
  pemOf,
  signDeviceCertificate,
  type SigningAuthority,
  type StoredAuthority,
} from '../certificates/certificate-authority.ts';
import type { CheckedRequest } from '../certificates/certificate-request.ts';
import {
  type AuthorityKeyRow,
  type AuthorityRow,
  countAuthorities,
  countCertificates,
  findCertificate,
  findSigningAuthority,
  insertAuthority,
  insertCertificate,
  markRotated,
  wasRotated,
} from '../certificates/certificate-store.ts';
import { keyRefusal } from '../credentials/credential-check.ts';
import { keyState } from '../credentials/credential-store.ts';
import { proofHash } from '../credentials/device-proof.ts';
import {
  addDeviceKey,
  deleteEndedDeviceKeys,
  deviceKeyLimit,
  expireDeviceKeys,
  mintDeviceKey,
  revokeDeviceKeys,
} from './device-keys.ts';
import { PreSharedKeys } from './pre-shared-keys.ts';

/** Maximum number of decrypted keys of authorities in memory. */
const maximumOpen = 1000;
/** Maximum number of certificates of a device that have not expired, revoked ones included. */
const maximumCertificates = 100;
/** Of these, beyond which a device does not renew its own: whoever has a copy of one must not keep it from being rotated. */
const maximumRenewed = 80;
const maximumAuthorities = 50;

/** The type of credentials to issue, and for a certificate the request for it. */
export type Wanted =
  { readonly type: 'api_key' | 'psk' } | { readonly type: 'certificate'; readonly request: CheckedRequest };

/** New credentials. The secrets are not stored: the caller returns them once. */
export interface IssuedCredentials {
  /** Empty for a device with certificates. */
  readonly apiKey: string;
  readonly pskIdentity?: string;
  /** Hexadecimal digits. */
  readonly psk?: string;
  /** PEM. */
  readonly certificate?: string;
  readonly caCertificate?: string;
  /** When the certificate expires. */
  readonly certificateExpiresAt?: Date;
}

/** A device. */
export interface CredentialHolder {
  readonly tenantId: string;
  readonly deviceId: string;
}

/** The settings of credentials. */
interface DeviceCredentialSettings {
  readonly controlSecret: string;
  readonly previousControlSecret: string;
  readonly deviceCertificateDays: number;
}

/** Issues credentials, in the caller's transaction. */
export class DeviceCredentials {
  private readonly secrets: SealedSecrets;
  private readonly preSharedKeys: PreSharedKeys;
  private readonly clock: Clock;
  private readonly certificateDays: number;
  private readonly authorities = new LRUCache<string, SigningAuthority>({ max: maximumOpen });

  constructor(settings: DeviceCredentialSettings, clock: Clock) {
    this.secrets = new SealedSecrets(settings.controlSecret, 'device certificate authorities');
    this.preSharedKeys = new PreSharedKeys(settings.controlSecret, settings.previousControlSecret);
    this.certificateDays = settings.deviceCertificateDays;
    this.clock = clock;
  }

  /** Issues the credentials of a device: a key, a key and a pre-shared key, or a certificate. */
  async issue(tx: Transaction, holder: CredentialHolder, wanted: Wanted): Promise<IssuedCredentials> {
    const { tenantId, deviceId } = holder;
    if (wanted.type === 'certificate') return this.issueCertificate(tx, holder, wanted.request);
    const apiKey = await mintDeviceKey(tx, tenantId, deviceId);
    if (wanted.type === 'api_key') return { apiKey };
    const pskIdentity = this.preSharedKeys.newIdentity(deviceId);
    const [, random = ''] = pskIdentity.split('.');
    await addDeviceKey(tx, holder, {
      type: 'psk',
      hash: proofHash({ kind: 'psk', identity: pskIdentity }),
      prefix: `psk_${random.slice(0, 4)}`,
      last4: random.slice(-4),
    });
    return { apiKey, pskIdentity, psk: this.preSharedKeys.keyOf(pskIdentity)!.toString('hex') };
  }

  /**
   * Replaces the credentials of a device, whose row is locked. The old ones expire after `graceSeconds`; 0 revokes them
   * at once.
   */
  async rotate(
    tx: Transaction,
    holder: CredentialHolder,
    wanted: Wanted,
    graceSeconds: number,
  ): Promise<IssuedCredentials> {
    if (wanted.type === 'certificate') await this.checkCount(tx, holder, maximumCertificates);
    else {
      await deleteEndedDeviceKeys(tx, holder);
      await checkRoom(tx, [holder.tenantId, holder.deviceId], deviceKeyLimit);
    }
    if (graceSeconds === 0) await revokeDeviceKeys(tx, holder.tenantId, [holder.deviceId]);
    else {
      await expireDeviceKeys(tx, holder, graceSeconds);
      await markRotated(tx, holder.tenantId, holder.deviceId);
    }
    return this.issue(tx, holder, wanted);
  }

  /**
   * Issues another certificate to a device, whose row is locked and which has proven possession of the one with this hash.
   * That one expires after `graceSeconds` or sooner; all others are revoked: a device that did not receive the response
   * renews again. Throws UNAUTHENTICATED if it is no longer in force: a revocation must not be outlived by a renewal that
   * began before it. Throws FAILED_PRECONDITION if an administrator has replaced it: whoever has a copy must not outlive its
   * period of grace, nor revoke the new one.
   */
  async renew(
    tx: Transaction,
    holder: CredentialHolder,
    request: CheckedRequest,
    current: { readonly hash: string; readonly graceSeconds: number },
  ): Promise<IssuedCredentials> {
    const hash = Buffer.from(current.hash, 'hex');
    const now = this.clock.now();
    const key = await keyState(tx, 'certificate', hash, new Date(now));
    if (!key || keyRefusal(key, now)) throw unauthenticated();
    if (await wasRotated(tx, holder.tenantId, key.key_id)) {
      throw failedPrecondition('an administrator has replaced this certificate: the new one can be renewed');
    }
    await this.checkCount(tx, holder, maximumRenewed);
    await revokeDeviceKeys(tx, holder.tenantId, [holder.deviceId], hash);
    await expireDeviceKeys(tx, holder, current.graceSeconds);
    return this.issueCertificate(tx, holder, request);
  }

  /** Returns the certificate of a device again, to the holder of its key; undefined if the key is another. */
  async repeat(
    tx: Transaction,
    { tenantId, deviceId }: CredentialHolder,
    request: CheckedRequest,
  ): Promise<IssuedCredentials | undefined> {
    const found = await findCertificate(tx, tenantId, deviceId);
    if (!found?.public_key_hash.equals(request.publicKeyHash)) return undefined;
    return { apiKey: '', certificate: pemOf(found.certificate), caCertificate: found.ca_certificate };
  }

  /** Adds an authority, which signs from now on; without `supplied` it is generated. */
  async addAuthority(tx: Transaction, tenantId: string, supplied: StoredAuthority | undefined): Promise<AuthorityRow> {
    await holdLock(tx, tenantAuthorityLock(tenantId));
    if ((await countAuthorities(tx, tenantId)) >= maximumAuthorities) {
      throw resourceExhausted(
        `a tenant has at most ${maximumAuthorities} certificate authorities, revoked ones included`,
      );
    }
    const authority = supplied ?? (await generateAuthority(tenantId, this.clock.now()));
    const authorityId = newId();
    const privateKey = this.secrets.seal(ownerOf(tenantId, authorityId), authority.privateKey);
    return insertAuthority(tx, tenantId, authorityId, { ...authority, privateKey }, supplied !== undefined);
  }

  /** Returns an authority that can sign. Throws FAILED_PRECONDITION if its key was sealed under another secret. */
  async openAuthority(tenantId: string, row: AuthorityKeyRow): Promise<SigningAuthority> {
    const { authority_id: authorityId, certificate, private_key: sealed } = row;
    let authority = this.authorities.get(authorityId);
    if (!authority) {
      authority = await openAuthority({ certificate, privateKey: this.openKey(tenantId, authorityId, sealed) });
      this.authorities.set(authorityId, authority);
    }
    return authority;
  }

  private async issueCertificate(
    tx: Transaction,
    holder: CredentialHolder,
    { publicKey, publicKeyHash }: CheckedRequest,
  ): Promise<IssuedCredentials> {
    const { authorityId, authority } = await this.signingAuthority(tx, holder.tenantId);
    const validity = { now: this.clock.now(), days: this.certificateDays };
    const issued = await signDeviceCertificate(authority, holder.deviceId, publicKey, validity);
    const keyId = await addDeviceKey(tx, holder, {
      type: 'certificate',
      hash: issued.sha256,
      prefix: `cert_${issued.serialNumber.slice(0, 4)}`,
      last4: issued.serialNumber.slice(-4),
      expiresAt: issued.notAfter,
    });
    await insertCertificate(tx, { ...holder, keyId }, authorityId, issued, publicKeyHash);
    const { pem: certificate, notAfter: certificateExpiresAt } = issued;
    return { apiKey: '', certificate, caCertificate: authority.chain, certificateExpiresAt };
  }

  private async signingAuthority(
    tx: Transaction,
    tenantId: string,
  ): Promise<{ authorityId: string; authority: SigningAuthority }> {
    let row = await findSigningAuthority(tx, tenantId);
    if (!row) {
      // Of several concurrent first certificates of a tenant, one creates the authority.
      await holdLock(tx, tenantAuthorityLock(tenantId));
      row = await findSigningAuthority(tx, tenantId);
      if (!row) {
        await this.addAuthority(tx, tenantId, undefined);
        row = await findSigningAuthority(tx, tenantId);
      }
    }
    return { authorityId: row!.authority_id, authority: await this.openAuthority(tenantId, row!) };
  }

  private openKey(tenantId: string, authorityId: string, sealed: string): string {
    try {
      return this.secrets.open(ownerOf(tenantId, authorityId), sealed);
    } catch {
      throw failedPrecondition(
        'the key of the certificate authority was encrypted under another KELLET_CONTROL_SECRET: create a new authority',
      );
    }
  }

  private async checkCount(tx: Transaction, { tenantId, deviceId }: CredentialHolder, maximum: number): Promise<void> {
    if ((await countCertificates(tx, tenantId, deviceId)) >= maximum) {
      throw resourceExhausted(`the device has ${maximum} certificates that have not expired`);
    }
  }
}

const ownerOf = (tenantId: string, authorityId: string): string => `${tenantId}/${authorityId}`;
