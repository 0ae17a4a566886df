// Ends sessions whose person was signed out at the provider, which says so with a logout token (OpenID Connect Back-Channel
// Logout 1.0).
import { createHash } from 'node:crypto';
import type { BackchannelLogoutRequest } from '@kellet/proto/es/kellet/v1/auth_pb';
import { decodeJwt } from 'jose';
import type { Transaction } from '../../platform/database/database.ts';
import { invalidArgument, type KelletError,notFound, unavailable } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import type { SealedSecrets } from '../../platform/sealed-secrets.ts';
import { holdOffPurge } from '../../policies/tenant-reader.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import { lockAccount } from '../second-factors/factor-store.ts';
import { endPendingAtProvider } from '../second-factors/pending-sign-ins.ts';
import type { SessionOrigin } from '../sign-in/session-origin.ts';
import { revokeSessions, sessionsAtProvider } from '../sign-in/sessions.ts';
import type { SignInEvents } from '../sign-in/sign-in-events.ts';
import { beganIn, type LogoutClaims,maximumTokenAge, readLogoutClaims } from './logout-claims.ts';
import type { OpenidProviders } from './openid-provider.ts';
import { idTokenOwner } from './provider-handlers.ts';
import { findIdentity, findProvider, insertReturn } from './provider-store.ts';

const maximumForm = 16_384;

/** What logouts work with. */
export interface BackchannelLogoutParts extends Pick<AuthPlatform, 'database' | 'clock' | 'logger'> {
  readonly providers: OpenidProviders;
  readonly secrets: SealedSecrets;
  readonly events: SignInEvents;
}

/**
 * Ends the sessions that a logout token names. Throws NOT_FOUND without such a provider, INVALID_ARGUMENT for a token that is
 * not the provider's, is too old or was sent before, and UNAVAILABLE if the provider's keys cannot be read. The log has the
 * reason.
 */
export async function endSessionsOf(
  parts: BackchannelLogoutParts,
  request: BackchannelLogoutRequest,
  origin: SessionOrigin,
): Promise<void> {
  const { database, clock, logger, providers } = parts;
  const { provider: name } = request;
  textField('provider', name, { minimum: 1, maximum: 253 });
  const tenantId = textField('tenant_id', request.tenantId, { minimum: 1, maximum: 63 });
  const token = logoutToken(request.form);
  const provider = await database.systemRead((tx) => findProvider(tx, tenantId, name));
  if (!provider) throw notFound('provider');
  const refuse = (reason: string): KelletError => {
    logger.warn({ tenant: tenantId, provider: name, reason }, 'a logout token was refused');
    return invalidArgument('logout_token is not valid');
  };
  const client = { issuer: provider.issuer, clientId: provider.client_id };
  const verified = await providers.verifyLogoutToken(client, token, { ...maximumTokenAge, now: clock.now() });
  if (verified === 'away') throw unavailable('the keys of the provider cannot be read');
  if (typeof verified === 'string') throw refuse(verified);
  const claims = readLogoutClaims(verified);
  if (typeof claims === 'string') throw refuse(claims);
  const ended = await database.system(async (tx) => {
    if (!(await holdOffPurge(tx, tenantId))) throw notFound('provider');
    const hash = createHash('sha256').update(['logout', name, claims.tokenId].join('\0')).update(tenantId).digest();
    const forgottenAt = clock.now() + (maximumTokenAge.seconds + 2 * maximumTokenAge.tolerance) * 1000;
    if (!(await insertReturn(tx, tenantId, hash, new Date(forgottenAt)))) throw refuse('it was sent before');
    return endWithin(tx, parts, { tenantId, provider: name, claims }, origin);
  });
  logger.info({ tenant: tenantId, provider: name, sessions: ended }, 'signed out at a provider');
}

async function endWithin(
  tx: Transaction,
  { secrets, events }: BackchannelLogoutParts,
  { tenantId, provider, claims }: { tenantId: string; provider: string; claims: LogoutClaims },
  origin: SessionOrigin,
): Promise<number> {
  const user = await findIdentity(tx, { tenantId, provider, subject: claims.subject });
  if (!user) return 0;
  // Sign-ins that are being completed have to open their session before, or find their first step ended.
  await lockAccount(tx, user.user_id, 'NO KEY UPDATE');
  await endPendingAtProvider(tx, user.user_id, provider);
  const owner = idTokenOwner(tenantId, user.user_id);
  const sessions = await sessionsAtProvider(tx, user.user_id, provider);
  const ended = sessions.filter(({ idToken }) => beganIn(claims.session, sidOf(secrets, owner, idToken)));
  await revokeSessions(
    tx,
    ended.map(({ sessionId }) => sessionId),
  );
  for (const { sessionId } of ended) await events.endedByProvider(tx, user, { provider, sessionId }, origin);
  return ended.length;
}

/** Returns the session at the provider that an ID token names, or undefined. */
function sidOf(secrets: SealedSecrets, owner: string, sealed: string | null): unknown {
  if (sealed === null) return undefined;
  try {
    return decodeJwt(secrets.open(owner, sealed))['sid'];
  } catch {
    // Sealed under another secret.
    return undefined;
  }
}

/** Returns the token of a form. Throws INVALID_ARGUMENT. */
function logoutToken(form: BackchannelLogoutRequest['form']): string {
  const { contentType = '', data = new Uint8Array() } = form ?? {};
  if (!/^application\/x-www-form-urlencoded\s*(;|$)/i.test(contentType)) {
    throw invalidArgument('the body must be a form (application/x-www-form-urlencoded) with logout_token');
  }
  if (data.length > maximumForm) throw invalidArgument(`the form must have at most ${maximumForm} bytes`);
  const tokens = new URLSearchParams(Buffer.from(data).toString()).getAll('logout_token');
  if (tokens.length !== 1) throw invalidArgument('logout_token is required once');
  return tokens[0]!;
}
