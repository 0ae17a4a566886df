// Security keys and passkeys (WebAuthn) as second factors, for the dashboard's origin. The library verifies; this file
// decides what is requested and accepted.
import type { JsonObject } from '@bufbuild/protobuf';
import {
  type AuthenticationResponseJSON,
  generateAuthenticationOptions,
  generateRegistrationOptions,
  type RegistrationResponseJSON,
  verifyAuthenticationResponse,
  verifyRegistrationResponse,
} from '@simplewebauthn/server';
import { decodeAttestationObject } from '@simplewebauthn/server/helpers';
import { failedPrecondition } from '../../platform/errors.ts';

/** ES256, EdDSA and RS256: what authenticators support. */
const algorithms = [-7, -8, -257];
const timeoutMilliseconds = 300_000;

/** Characters of what is decoded as CBOR, which takes microseconds a byte. Without certificates authenticators send some 5,000. */
const maximumCharacters = 16_384;

/** The relying party: browsers offer its credentials to no other site. */
export interface RelyingParty {
  readonly id: string;
  readonly origin: string;
}

/** A stored credential. */
export interface Passkey {
  /** base64url. */
  readonly id: string;
  readonly publicKey: Uint8Array;
  readonly counter: number;
  readonly transports: readonly string[];
}

/** The owner of a new credential. */
export interface PasskeyOwner {
  readonly userId: string;
  readonly email: string;
  readonly name: string;
}

/** Returns the relying party of an origin. Throws FAILED_PRECONDITION when there is none. */
export function relyingPartyOf(dashboardOrigin: string): RelyingParty {
  if (dashboardOrigin === '') throw failedPrecondition('security keys need the setting KELLET_DASHBOARD_ORIGIN');
  return { id: new URL(dashboardOrigin).hostname, origin: dashboardOrigin };
}

/** Options for a browser. */
export type PasskeyOptions = JsonObject & { readonly challenge: string };

/** The library's options have fields that are undefined, which no message can hold. */
const asJson = (options: object): PasskeyOptions => JSON.parse(JSON.stringify(options)) as PasskeyOptions;

/** Returns PublicKeyCredentialCreationOptions as JSON, with a new challenge. */
export async function registrationOptions(
  party: RelyingParty,
  owner: PasskeyOwner,
  known: readonly Passkey[],
): Promise<PasskeyOptions> {
  const options = await generateRegistrationOptions({
    rpName: 'Kellet',
    rpID: party.id,
    userID: Uint8Array.from(Buffer.from(owner.userId.replaceAll('-', ''), 'hex')),
    userName: owner.email,
    userDisplayName: owner.name === '' ? owner.email : owner.name,
    timeout: timeoutMilliseconds,
    attestationType: 'none',
    excludeCredentials: known.map(descriptor),
    authenticatorSelection: { residentKey: 'preferred', userVerification: 'preferred' },
    supportedAlgorithmIDs: algorithms,
  });
  return asJson(options);
}

/** Returns PublicKeyCredentialRequestOptions as JSON, with a new challenge. */
export async function assertionOptions(party: RelyingParty, known: readonly Passkey[]): Promise<PasskeyOptions> {
  const options = await generateAuthenticationOptions({
    rpID: party.id,
    timeout: timeoutMilliseconds,
    allowCredentials: known.map(descriptor),
    userVerification: 'preferred',
  });
  return asJson(options);
}

/** Returns the new credential. Throws an Error with the reason when the response is not acceptable. */
export async function verifyRegistration(
  party: RelyingParty,
  challenge: string,
  response: JsonObject,
): Promise<Passkey> {
  refuseCertificates(response);
  const { verified, registrationInfo } = await verifyRegistrationResponse({
    response: response as unknown as RegistrationResponseJSON,
    expectedChallenge: challenge,
    expectedOrigin: party.origin,
    expectedRPID: party.id,
    // The password was the first factor; this one only has to prove possession.
    requireUserVerification: false,
    supportedAlgorithmIDs: algorithms,
  });
  if (!verified) throw new Error('the attestation is not valid');
  const { id, publicKey, counter, transports = [] } = registrationInfo.credential;
  // CTAP allows ids of 1023 bytes; a key of RS256 with 8192 bits has a little more.
  if (id.length > 1364 || publicKey.length > 2048) throw new Error('the credential is too long');
  return { id, publicKey, counter, transports: transportsOf(transports) };
}

/**
 * Returns the authenticator's new counter. Throws an Error with the reason when the assertion is not by this
 * credential, for this challenge and this site, or when the counter has not advanced (a copied authenticator).
 */
export async function verifyAssertion(
  party: RelyingParty,
  challenge: string,
  passkey: Passkey,
  response: JsonObject,
): Promise<number> {
  // It may have extensions, which are decoded before the signature is verified.
  decodable(response, 'authenticatorData');
  const { verified, authenticationInfo } = await verifyAuthenticationResponse({
    response: response as unknown as AuthenticationResponseJSON,
    expectedChallenge: challenge,
    expectedOrigin: party.origin,
    expectedRPID: party.id,
    requireUserVerification: false,
    credential: {
      id: passkey.id,
      publicKey: Uint8Array.from(passkey.publicKey),
      counter: passkey.counter,
    },
  });
  if (!verified) throw new Error('the signature is not valid');
  return authenticationInfo.newCounter;
}

/**
 * Throws if the attestation has a certificate. None was asked for, and the library would fetch the revocation lists that
 * a certificate names, from URLs that its author chose.
 */
function refuseCertificates(response: JsonObject): void {
  const attestationObject = decodable(response, 'attestationObject');
  const attestation = decodeAttestationObject(Uint8Array.from(Buffer.from(attestationObject, 'base64url')));
  const format: string = attestation.get('fmt');
  const isSelfAttested = format === 'packed' && attestation.get('attStmt').get('x5c') === undefined;
  if (format !== 'none' && !isSelfAttested) throw new Error('attestation was not asked for');
}

/** Returns a field of the response that is decoded as CBOR. Throws if it is too long for that. */
function decodable(response: JsonObject, name: 'attestationObject' | 'authenticatorData'): string {
  const value = ((response['response'] ?? {}) as Partial<Record<typeof name, unknown>>)[name];
  if (typeof value !== 'string') throw new Error(`response.${name} must be a string`);
  if (value.length > maximumCharacters) {
    throw new Error(`response.${name} must have at most ${maximumCharacters} characters`);
  }
  return value;
}

const descriptor = ({ id, transports }: Passkey) => ({ id, transports: [...transports] });

/** Returns at most eight well-formed transports of those that the client sent. */
const transportsOf = (transports: readonly unknown[]): string[] =>
  transports.filter((one): one is string => typeof one === 'string' && /^[a-z-]{1,20}$/.test(one)).slice(0, 8);
