// Checks which credentials a device gets: the field `credential_type`, and the request for a certificate.
import { Credential_Type } from '@kellet/proto/es/kellet/v1/common_pb';
import { checkCertificateRequest } from '../../auth/certificates/certificate-request.ts';
import type { CredentialType } from '../../auth/credentials/device-proof.ts';
import type { Wanted } from '../../auth/device-credentials/device-credentials.ts';
import { invalidArgument } from '../../platform/errors.ts';

/** Returns the name of a type, which may be unset, or undefined for a value outside the contract. */
export function credentialTypeOf(type: Credential_Type | undefined): CredentialType | undefined {
  switch (type) {
    case undefined:
    case Credential_Type.api_key:
      return 'api_key';
    case Credential_Type.psk:
      return 'psk';
    case Credential_Type.certificate:
      return 'certificate';
    default:
      return undefined;
  }
}

/** Checks the field `credential_type`, which may be unset, and returns its value. Throws INVALID_ARGUMENT. */
export function credentialTypeField(type: Credential_Type | undefined): CredentialType {
  const known = credentialTypeOf(type);
  if (!known) throw invalidArgument('credential_type must be api_key, psk or certificate');
  return known;
}

/**
 * Checks the field `csr`, which goes with certificates only. Throws INVALID_ARGUMENT.
 */
export async function wantedCredentials(type: CredentialType, csr: string): Promise<Wanted> {
  if (type === 'certificate') {
    if (csr === '') throw invalidArgument('csr is required: the device has certificates');
    return { type, request: await checkCertificateRequest(csr) };
  }
  if (csr !== '') throw invalidArgument('csr: the device does not have certificates');
  return { type };
}
