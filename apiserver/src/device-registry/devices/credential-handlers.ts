// The handlers of the credentials of devices, their certificates, and the authorities that sign these.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { DeviceAuthoritySchema, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { checkSuppliedAuthority } from '../../auth/certificates/certificate-authority.ts';
import { checkCertificateRequest } from '../../auth/certificates/certificate-request.ts';
import {
  type AuthorityRow,
  findAuthorityKey,
  listAuthorities,
  listCertificates,
  revokeAuthority,
} from '../../auth/certificates/certificate-store.ts';
import { RevocationLists } from '../../auth/certificates/revocation-lists.ts';
import { refuseLosses } from '../../auth/credentials/refuse-losses.ts';
import { notifyRevoked, tenantPayload } from '../../auth/credentials/revocations.ts';
import type { IssuedCredentials } from '../../auth/device-credentials/device-credentials.ts';
import { describeDeviceKey, revokeDeviceKeys } from '../../auth/device-credentials/device-keys.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { failedPrecondition, invalidArgument, notFound } from '../../platform/errors.ts';
import { idField } from '../../platform/requests/fields.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { recordCredential } from '../history/history-store.ts';
import { wantedCredentials } from './credential-type.ts';
import { type DeviceRow, findDevice, setCertificateExpiry } from './devices.ts';
import type { RegistryParts } from './registry-parts.ts';

const maximumGraceSeconds = 30 * 86_400;
const renewalGraceSeconds = 86_400;

/** Returns issued credentials as fields of a response. */
export function credentialFields(issued: IssuedCredentials) {
  const { apiKey, pskIdentity, psk, certificate, caCertificate } = issued;
  return {
    apiKey,
    ...(pskIdentity !== undefined && psk !== undefined && { pskIdentity, psk }),
    ...(certificate !== undefined && caCertificate !== undefined && { certificate, caCertificate }),
  };
}

/** The handlers. */
export function credentialHandlers(
  parts: Pick<RegistryParts, 'database' | 'paging' | 'clock' | 'credentials'>,
): Implementation<typeof DeviceRegistryService> {
  const { database, paging, clock, credentials } = parts;
  const lists = new RevocationLists(database, clock);

  /** Changes the credentials of a device, whose row is locked, and records it. */
  const change = (
    tenantId: string,
    deviceId: string,
    run: (tx: Transaction, device: DeviceRow) => Promise<IssuedCredentials>,
  ): Promise<IssuedCredentials> =>
    database.tenant(tenantId, async (tx) => {
      const device = await findDevice(tx, tenantId, deviceId, 'FOR UPDATE');
      if (!device) throw notFound('device');
      const previous = await describeDeviceKey(tx, tenantId, deviceId);
      const issued = await run(tx, device);
      await setCertificateExpiry(tx, tenantId, deviceId, issued.certificateExpiresAt);
      await recordCredential(tx, tenantId, deviceId, previous, await describeDeviceKey(tx, tenantId, deviceId));
      return issued;
    });

  return {
    rotateDeviceCredentials: async (request, { tenantId, caller }) => {
      const deviceId = idField('device', request.deviceId);
      const graceSeconds = graceField(request.graceSeconds, 0);
      const device = await database.read(tenantId, (tx) => findDevice(tx, tenantId, deviceId));
      if (!device) throw notFound('device');
      const wanted = await wantedCredentials(device.credential_type, request.csr ?? '');
      const issued = await change(tenantId, deviceId, async (tx) => {
        await refuseLosses(tx, caller);
        return credentials.rotate(tx, { tenantId, deviceId }, wanted, graceSeconds);
      });
      return { deviceId, ...credentialFields(issued) };
    },

    renewDeviceCertificate: async (request, { tenantId, caller }) => {
      const deviceId = idField('device', request.deviceId);
      // A gateway may act for its children, but not take their identity.
      if (deviceId !== caller.deviceId) throw notFound('device');
      const graceSeconds = graceField(request.graceSeconds, renewalGraceSeconds);
      const device = await database.read(tenantId, (tx) => findDevice(tx, tenantId, deviceId));
      if (!device) throw notFound('device');
      if (device.credential_type !== 'certificate') throw failedPrecondition('the device does not have certificates');
      const certificateRequest = await checkCertificateRequest(request.csr);
      const issued = await change(tenantId, deviceId, (tx) =>
        credentials.renew(tx, { tenantId, deviceId }, certificateRequest, {
          hash: caller.credentialHash,
          graceSeconds,
        }),
      );
      const { certificate = '', caCertificate = '' } = issued;
      return { deviceId, certificate, caCertificate };
    },

    revokeDeviceCredentials: async (request, { tenantId }) => {
      const deviceId = idField('device', request.deviceId);
      return database.tenant(tenantId, async (tx) => {
        const device = await findDevice(tx, tenantId, deviceId, 'FOR UPDATE');
        if (!device) throw notFound('device');
        const previous = await describeDeviceKey(tx, tenantId, deviceId);
        const revoked = await revokeDeviceKeys(tx, tenantId, [deviceId]);
        if (revoked > 0) await recordCredential(tx, tenantId, deviceId, previous, '');
        if (device.credential_type === 'certificate') await setCertificateExpiry(tx, tenantId, deviceId, null);
        return { revoked };
      });
    },

    listDeviceCertificates: async (request, { tenantId }) => {
      const deviceId = request.deviceId === '' ? '' : idField('device_id', request.deviceId);
      const filters = { deviceId, isRevoked: request.revoked };
      const scope = [tenantId, 'device certificates', filters];
      const page = paging.open<string>(request, scope);
      const rows = await database.read(tenantId, (tx) =>
        listCertificates(tx, tenantId, filters, page.after, page.size + 1),
      );
      const closed = paging.close(rows, page, scope, (row) => row.key_id);
      const deviceCertificates = closed.rows.map((row) => ({
        serialNumber: row.serial_number,
        deviceId: row.device_id,
        authorityId: row.authority_id,
        sha256: row.sha256,
        notBefore: timestampFromDate(row.not_before),
        notAfter: timestampFromDate(row.not_after),
        expiresAt: timestampFromDate(row.expires_at),
        revokedAt: row.revoked_at ? timestampFromDate(row.revoked_at) : undefined,
      }));
      return { deviceCertificates, nextPageToken: closed.nextPageToken };
    },

    createDeviceAuthority: async (request, { tenantId, caller }) => {
      const { certificate = '', privateKey = '' } = request;
      if ((certificate === '') !== (privateKey === '')) {
        throw invalidArgument('certificate and private_key must be given together');
      }
      const supplied =
        certificate === '' ? undefined : await checkSuppliedAuthority(certificate, privateKey, clock.now());
      const row = await database.tenant(tenantId, async (tx) => {
        const added = await credentials.addAuthority(tx, tenantId, supplied);
        // It may have waited for others.
        await refuseLosses(tx, caller);
        return added;
      });
      return toAuthority(row);
    },

    listDeviceAuthorities: async (request, { tenantId }) => {
      const scope = [tenantId, 'device authorities'];
      const page = paging.open<string>(request, scope);
      const rows = await database.read(tenantId, (tx) => listAuthorities(tx, tenantId, page.after, page.size + 1));
      const closed = paging.close(rows, page, scope, (row) => row.authority_id);
      return { deviceAuthorities: closed.rows.map(toAuthority), nextPageToken: closed.nextPageToken };
    },

    getRevocationList: async (request, { tenantId, responseMetadata }) => {
      const authorityId = idField('device authority', request.authorityId);
      const row = await database.read(tenantId, (tx) => findAuthorityKey(tx, tenantId, authorityId));
      if (!row) throw notFound('device authority');
      if (row.private_key === '') {
        throw failedPrecondition('the authority is revoked with all its certificates, and can no longer sign lists');
      }
      const { der, etag } = await lists.get({ tenantId, authorityId }, () => credentials.openAuthority(tenantId, row));
      responseMetadata.set('etag', etag);
      responseMetadata.set('cache-control', 'private, no-cache');
      return { contentType: 'application/pkix-crl', data: der };
    },

    deleteDeviceAuthority: async (request, { tenantId }) => {
      const authorityId = idField('device authority', request.authorityId);
      await database.tenant(tenantId, async (tx) => {
        if (!(await revokeAuthority(tx, tenantId, authorityId))) throw notFound('device authority');
        // It may have signed the certificates of many devices.
        await notifyRevoked(tx, [tenantPayload(tenantId)]);
      });
      return {};
    },
  };
}

function graceField(seconds: number | undefined, fallback: number): number {
  const graceSeconds = seconds ?? fallback;
  if (graceSeconds > maximumGraceSeconds) {
    throw invalidArgument(`grace_seconds must be at most ${maximumGraceSeconds}`);
  }
  return graceSeconds;
}

function toAuthority(row: AuthorityRow): MessageInitShape<typeof DeviceAuthoritySchema> {
  return {
    authorityId: row.authority_id,
    certificate: row.certificate,
    supplied: row.supplied,
    createdAt: timestampFromDate(row.created_at),
    expiresAt: timestampFromDate(row.expires_at),
    revokedAt: row.revoked_at ? timestampFromDate(row.revoked_at) : undefined,
  };
}
