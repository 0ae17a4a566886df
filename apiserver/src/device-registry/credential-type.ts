// Which types of credentials devices and provisioning templates may ask for.
import { Credential_Type } from '@kellet/proto/es/kellet/v1/common_pb';
import { invalidArgument } from '../platform/errors.ts';

/** Checks the field `credential_type`, which may be unset. Throws INVALID_ARGUMENT for a type that is not available. */
export function credentialTypeField(type: Credential_Type | undefined): void {
  if (type === undefined || type === Credential_Type.api_key) return;
  if (type === Credential_Type.psk || type === Credential_Type.certificate) {
    throw invalidArgument('credential_type: only api_key is available');
  }
  throw invalidArgument('credential_type must be api_key, psk or certificate');
}
