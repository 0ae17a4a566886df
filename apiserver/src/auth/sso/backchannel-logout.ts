// Ends sessions whose person was signed out at the provider, which says so with a logout token (OpenID Connect Back-Channel
// Logout 1.0).
import { createHash } from 'node:crypto';
import type { BackchannelLogoutRequest } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { Transaction } from '../../platform/database/database.ts';
import { invalidArgument, type KelletError, notFound, unavailable } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import { holdOffPurge } from '../../policies/tenant-reader.ts';
import type { UserRow } from '../accounts/account-store.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import { lockAccount } from '../second-factors/factor-store.ts';
import { endPendingAtProvider } from '../second-factors/pending-sign-ins.ts';
import type { SessionOrigin } from '../sign-in/session-origin.ts';
import { revokeSessions, sessionsAtProvider } from '../sign-in/sessions.ts';
import type { SignInEvents } from '../sign-in/sign-in-events.ts';
import { type LoggedOut, maximumTokenAge, readLogoutClaims } from './logout-claims.ts';
import type { OpenidProviders } from './openid-provider.ts';
import { findIdentity, findProviderClient, findUsersAtProvider, insertReturn } from './provider-store.ts';
import { rememberSignOut } from './sign-outs.ts';

const maximumForm = 16_384;

/** What logouts work with. */
export interface BackchannelLogoutParts extends Pick<AuthPlatform, 'database' | 'clock' | 'logger'> {
  readonly providers: OpenidProviders;
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
  const provider = await database.systemRead((tx) => findProviderClient(tx, tenantId, name));
  if (!provider) throw notFound('provider');
  const refuse = (reason: string): KelletError => {
    logger.warn({ tenant: tenantId, provider: name, reason }, 'a logout token was refused');
    return invalidArgument('logout_token is not valid');
  };
  const client = { tenantId, issuer: provider.issuer, clientId: provider.client_id };
  const verified = await providers.verifyLogoutToken(client, token, { ...maximumTokenAge, now: clock.now() });
  if (verified === 'away') throw unavailable('the keys of the provider cannot be read');
  if (typeof verified === 'string') throw refuse(verified);
  const claims = readLogoutClaims(verified);
  if (typeof claims === 'string') throw refuse(claims);
  const ended = await database.system(async (tx) => {
    if (!(await holdOffPurge(tx, tenantId))) throw notFound('provider');
    const hash = createHash('sha256').update(['logout', tenantId, name, claims.tokenId].join('\0')).digest();
    const forgottenAt = clock.now() + (maximumTokenAge.seconds + 2 * maximumTokenAge.tolerance) * 1000;
    if (!(await insertReturn(tx, tenantId, hash, new Date(forgottenAt)))) throw refuse('it was sent before');
    await rememberSignOut(tx, { tenantId, provider: name }, claims.who);
    return endWithin(tx, parts, { tenantId, provider: name, who: claims.who }, origin);
  });
  logger.info({ tenant: tenantId, provider: name, sessions: ended }, 'signed out at a provider');
}

async function endWithin(
  tx: Transaction,
  { events }: BackchannelLogoutParts,
  { tenantId, provider, who }: { tenantId: string; provider: string; who: LoggedOut },
  origin: SessionOrigin,
): Promise<number> {
  let count = 0;
  for (const user of await usersOf(tx, { tenantId, provider, who })) {
    // Sign-ins that are being completed have to open their session before, or find their first step ended.
    await lockAccount(tx, user.user_id, 'NO KEY UPDATE');
    await endPendingAtProvider(tx, user.user_id, provider, who.session);
    const ended = await sessionsAtProvider(tx, user.user_id, provider, who.session);
    await revokeSessions(tx, ended);
    for (const sessionId of ended) await events.endedByProvider(tx, user, { provider, sessionId }, origin);
    count += ended.length;
  }
  return count;
}

async function usersOf(
  tx: Transaction,
  { tenantId, provider, who }: { tenantId: string; provider: string; who: LoggedOut },
): Promise<UserRow[]> {
  if (who.subject === undefined) return findUsersAtProvider(tx, { tenantId, provider, sid: who.session });
  const user = await findIdentity(tx, { tenantId, provider, subject: who.subject });
  return user ? [user] : [];
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
