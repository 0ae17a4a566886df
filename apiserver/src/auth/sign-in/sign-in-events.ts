// Records sign-ins in the audit log.
import type { AuditFacts } from '../../platform/audit/audit-event.ts';
import type { AuditTrail } from '../../platform/audit/audit-trail.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { type ErrorCode, KelletError } from '../../platform/errors.ts';
import type { SessionState } from '../credentials/credential-store.ts';
import type { SessionOrigin } from './session-origin.ts';

/** An account that somebody tried to sign in to. */
export interface TriedAccount {
  readonly user_id: string;
  /** Null for a platform administrator. */
  readonly tenant_id: string | null;
  readonly email: string;
}

/** A sign-in that failed. */
export interface FailedSignIn {
  /** The factor that failed; the id of a provider is its name. */
  readonly factor: { readonly kind: 'password' | 'second_factor' | 'provider'; readonly id: string };
  /** The accounts with this e-mail address; empty if there are none. */
  readonly accounts: readonly TriedAccount[];
  /** The e-mail address as given; used if there is no account. */
  readonly email: string;
  /** The tenant, if it is known without an account. */
  readonly tenantId?: string;
  readonly code: ErrorCode;
}

const refusals: readonly ErrorCode[] = ['UNAUTHENTICATED', 'PERMISSION_DENIED', 'RESOURCE_EXHAUSTED'];

/** Reports whether an error of a sign-in is a refusal, rather than a failure of the service or of the request. */
export const isRefusal = (error: unknown): error is KelletError =>
  error instanceof KelletError && refusals.includes(error.code);

/** Records sign-ins. */
export class SignInEvents {
  private readonly audit: Pick<AuditTrail, 'within' | 'note' | 'noteOnce'>;

  constructor(audit: Pick<AuditTrail, 'within' | 'note' | 'noteOnce'>) {
    this.audit = audit;
  }

  /** Records a session, in the transaction that opens it. */
  opened(tx: Transaction, session: SessionState, origin: SessionOrigin): Promise<void> {
    return this.audit.within(tx, ofSession('auth.login', 'OK', session, origin));
  }

  /** Records that the first factor was right and a second one is asked for: once a minute, because it can be repeated all the time. */
  begun(user: TriedAccount, origin: SessionOrigin): void {
    const resource = { kind: 'user', id: user.user_id };
    const facts = { tenantId: user.tenant_id ?? '', actor: actorOf(user), action: 'auth.login_begun', resource };
    this.audit.noteOnce({ ...facts, result: 'OK', ...origin });
  }

  /** Records that a refresh token was used twice, in the transaction that ends its session. */
  reused(tx: Transaction, session: SessionState, origin: SessionOrigin): Promise<void> {
    return this.audit.within(tx, ofSession('auth.refresh_reused', 'UNAUTHENTICATED', session, origin));
  }

  /** Records that the provider at which a session began has ended it, in the transaction that ends it here. */
  endedByProvider(
    tx: Transaction,
    user: TriedAccount,
    { provider, sessionId }: { readonly provider: string; readonly sessionId: string },
    origin: SessionOrigin,
  ): Promise<void> {
    return this.audit.within(tx, {
      tenantId: user.tenant_id ?? '',
      actor: { kind: 'provider', id: provider, name: user.email },
      action: 'auth.backchannel_logout',
      resource: { kind: 'session', id: sessionId },
      result: 'OK',
      ...origin,
    });
  }

  /** Records what a sign-in at a provider changes about a user, in the transaction that does so. */
  byProvider(
    tx: Transaction,
    action: 'auth.user_provisioned' | 'auth.identity_linked' | 'auth.role_mapped',
    user: TriedAccount,
    provider: string,
    origin: SessionOrigin,
  ): Promise<void> {
    return this.audit.within(tx, {
      tenantId: user.tenant_id ?? '',
      actor: { kind: 'provider', id: provider, name: user.email },
      action,
      resource: { kind: 'user', id: user.user_id },
      result: 'OK',
      ...origin,
    });
  }

  /**
   * Records in the log of the platform that a browser returned from a provider which it had not gone to, so that the tenant is
   * unknown: once a minute, because anyone can repeat it all the time.
   */
  returnedElsewhere(origin: SessionOrigin): void {
    const factor = { kind: 'provider', id: '' } as const;
    for (const facts of factsOfFailure({ factor, accounts: [], email: '', code: 'UNAUTHENTICATED' }, origin)) {
      this.audit.noteOnce(facts);
    }
  }

  /** Records a sign-in that failed: in the log of each tenant whose account was tried, or of the platform. */
  failed(failure: FailedSignIn, origin: SessionOrigin): void {
    for (const facts of factsOfFailure(failure, origin)) {
      // A stranger can repeat attempts that are refused unseen, which must leave room for those of others.
      if (failure.code === 'RESOURCE_EXHAUSTED') this.audit.noteOnce(facts);
      else this.audit.note(facts);
    }
  }
}

/** Returns the events of a failed sign-in. */
export function factsOfFailure(
  { factor, accounts, email, tenantId = '', code }: FailedSignIn,
  origin: SessionOrigin,
): AuditFacts[] {
  const said = { action: 'auth.login_failed', resource: factor, result: code };
  if (accounts.length === 0) {
    // Users sometimes type their password here by mistake, which must not be stored.
    const name = /^[^\s@]+@[^\s@]+$/.test(email) ? email : '';
    return [{ tenantId, actor: { kind: 'public', id: '', name }, ...said, ...origin }];
  }
  // It may be another tenant's user who mistyped, whose address must not be shown to the others.
  const shown = accounts.length === 1 ? origin : { ...origin, address: '', userAgent: '' };
  return accounts.map((account) => ({
    tenantId: account.tenant_id ?? '',
    actor: actorOf(account),
    ...said,
    ...shown,
  }));
}

const ofSession = (action: string, result: string, session: SessionState, origin: SessionOrigin): AuditFacts => ({
  tenantId: session.tenant_id ?? '',
  actor: actorOf(session),
  action,
  resource: { kind: 'session', id: session.session_id },
  result,
  ...origin,
});

const actorOf = ({ user_id: id, tenant_id: tenantId, email: name }: TriedAccount): AuditFacts['actor'] => ({
  kind: tenantId === null ? 'platform' : 'user',
  id,
  name,
});
