// The auth service: users, sign-in, sessions and API keys. The tenants' part of AuthService is in tenants/.
import { create, type MessageInitShape, toJson } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import {
  AuthService,
  TokenResponseSchema,
  type ValidateTokenRequest_DeviceProof,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
  type ValidateTokenResponseSchema,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import type { ServiceModule } from '../config/module.ts';
import { checkAddress } from '../platform/addresses/address-ranges.ts';
import { systemFacts } from '../platform/audit/audit-event.ts';
import { Loop } from '../platform/background/loop.ts';
import { repeatWhileFull } from '../platform/background/repeat-while-full.ts';
import type { Transaction } from '../platform/database/database.ts';
import {
  invalidArgument,
  type KelletError,
  tenantDeleted,
  tenantSuspended,
  unauthenticated,
} from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import type { KubernetesApi } from '../platform/kubernetes/kubernetes.ts';
import { counter } from '../platform/observability/metrics.ts';
import { parseOutboundHosts } from '../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../platform/outbound/outbound-guard.ts';
import type { CallContext, Caller, CallerKind, Implementation } from '../platform/rpc.ts';
import { SealedSecrets } from '../platform/sealed-secrets.ts';
import { AccessTokens } from './access-tokens/access-tokens.ts';
import { KeyRing } from './access-tokens/key-ring.ts';
import { findUserId, insertUser } from './accounts/account-store.ts';
import { checkNewPassword } from './accounts/password-policy.ts';
import { hashPassword } from './accounts/passwords.ts';
import { apiKeyHandlers, deleteEndedKeys } from './api-keys/api-keys.ts';
import { deleteExpiredCertificates } from './certificates/certificate-store.ts';
import type { AuthPlatform } from './credentials/auth-platform.ts';
import type { Authentication } from './credentials/authentication.ts';
import { CredentialCheck } from './credentials/credential-check.ts';
import type { DeviceProof } from './credentials/device-proof.ts';
import { KubernetesIdentities } from './credentials/kubernetes-identities.ts';
import { LastUsed, type OnDeviceKeyUses } from './credentials/last-used.ts';
import { deleteExpiredPending } from './second-factors/pending-sign-ins.ts';
import { enrollmentHandlers } from './sign-in/enrollment.ts';
import { LoginThrottle } from './sign-in/login-throttle.ts';
import { ownFactorHandlers } from './sign-in/own-factors.ts';
import { ownPasswordHandlers } from './sign-in/own-password.ts';
import { type FirstStep, SecondStep } from './sign-in/second-step.ts';
import { sessionHandlers } from './sign-in/session-list.ts';
import { deleteExpired, deleteRevoked, revokeSessions, Sessions, type TokenPair } from './sign-in/sessions.ts';
import { SignIn } from './sign-in/sign-in.ts';
import { SignInEvents } from './sign-in/sign-in-events.ts';
import { endSessionsOf } from './sso/backchannel-logout.ts';
import { OpenidProviders } from './sso/openid-provider.ts';
import { providerHandlers } from './sso/provider-handlers.ts';
import { deleteExpiredReturns } from './sso/provider-store.ts';
import { SingleSignOn } from './sso/single-sign-on.ts';
import { groupHandlers, type UnknownDeviceGroups } from './users/groups.ts';
import { lockoutHandlers } from './users/lockouts.ts';
import { userHandlers } from './users/users.ts';

const sweepMilliseconds = 3600_000;
const minuteMilliseconds = 60_000;
const dayMilliseconds = 86_400_000;
/** How long certificates of devices are listed after they expire. */
const certificateDays = 30;
const certificatesAtOnce = 1000;
const attemptsAtOnce = 5000;
const sessionsAtOnce = 500;
/** How long a session that was ended is kept: longer than its access tokens are valid. */
const endedMilliseconds = 3_600_000;
const keysAtOnce = 1000;

/** The parts of the Kubernetes API that auth uses. */
export type AuthKubernetes = Pick<KubernetesApi, 'review' | 'signingKeys'>;

/** The auth service as used by the rest of the process. */
export interface AuthModule extends ServiceModule {
  /**
   * Resolves a credential presented from an address, querying the database each time. Throws UNAUTHENTICATED when it is
   * invalid (for an expired access token the message names the refresh endpoint), PERMISSION_DENIED when it may not be used
   * from this address, and UNAVAILABLE when the database is unavailable.
   */
  authenticate(credential: string, address: string): Promise<Caller>;
}

/**
 * Creates the service. `onDeviceKeyUses` is called with devices that have used a key of their own for the first time. Throws
 * when the configured signing key is not an Ed25519 key.
 */
export function createAuth(
  platform: AuthPlatform,
  kubernetes: AuthKubernetes,
  unknownDeviceGroups: UnknownDeviceGroups,
  onDeviceKeyUses: OnDeviceKeyUses,
): AuthModule {
  const { config, database, clock, logger, metrics, audit } = platform;
  const keys = new KeyRing({
    ...{ database, clock, logger, audit, configuredKey: config.jwtPrivateKey, rotationDays: config.jwtRotationDays },
  });
  const tokens = new AccessTokens(keys, clock);
  const lastUsed = new LastUsed(database, clock, logger, onDeviceKeyUses);
  const events = new SignInEvents(audit);
  const successorKey = keys.deriveKey('refresh successor');
  const sessions = new Sessions({ database, clock, logger, tokens, successorKey, events });
  const throttle = new LoginThrottle(database, clock);
  const secrets = new SealedSecrets(config.controlSecret, 'second factors');
  const factorParts = { database, clock, logger, secrets, dashboardOrigin: config.dashboardOrigin };
  const secondStep = new SecondStep({ ...factorParts, sessions, events });
  const signIn = new SignIn(database, throttle, secondStep, events);
  const identities = new KubernetesIdentities(database, clock, logger.child({ component: 'auth' }), kubernetes);
  const credentialCheck = new CredentialCheck(database, clock, tokens, lastUsed, identities);
  const logins = counter(metrics, 'kellet_auth_logins_total', 'Sign-ins by outcome.', ['outcome']);
  const proofs = counter(metrics, 'kellet_auth_second_factors_total', 'Second steps of sign-ins by outcome.', [
    'outcome',
  ]);

  const ssoSignIns = counter(metrics, 'kellet_auth_sso_sign_ins_total', 'Returns from providers by outcome.', [
    'outcome',
  ]);
  const guard = new OutboundGuard(parseOutboundHosts(config.ssoHosts));
  const ssoSecrets = new SealedSecrets(config.controlSecret, 'single sign-on');
  const providers = new OpenidProviders(guard);
  const sso = new SingleSignOn({
    ...{ config, database, clock, logger, providers, secrets: ssoSecrets, secondStep, events },
  });

  const counted = async <T>(outcomes: typeof logins, step: Promise<T>): Promise<T> => {
    try {
      const result = await step;
      outcomes.inc({ outcome: 'success' });
      return result;
    } catch (error) {
      outcomes.inc({ outcome: 'failure' });
      throw error;
    }
  };

  const implementation: Implementation<typeof AuthService> = {
    login: async (request, context) =>
      firstStepResponse(await counted(logins, signIn.login(request, originOf(context)))),
    verifyMfa: async (request, context) => {
      const { mfaToken, code } = request;
      return tokenResponse(await counted(proofs, secondStep.verify(mfaToken, code, originOf(context))));
    },
    beginWebauthnLogin: async ({ mfaToken }) => ({ options: await secondStep.beginWebauthn(mfaToken) }),
    finishWebauthnLogin: async ({ mfaToken, response = {} }, context) =>
      tokenResponse(await counted(proofs, secondStep.finishWebauthn(mfaToken, response, originOf(context)))),
    refresh: async (request, context) => tokenResponse(await sessions.refresh(request.refreshToken, originOf(context))),
    logout: async (_request, context) => {
      await database.system((tx) => revokeSessions(tx, [context.caller.sessionId]));
      return {};
    },
    validateToken: async (request, { caller, address }) => {
      // Only the gateway calls this without a credential.
      const isGateway = caller.kind === 'public';
      const proof = proofOf(request.deviceProof);
      if (proof && !isGateway) throw invalidArgument('device_proof is not accepted here');
      const result = proof
        ? await credentialCheck.prove(proof)
        : await credentialCheck.authenticate(request.token, request, address);
      return validateTokenResponse(result, isGateway);
    },
    getJwks: async () => ({ keys: await keys.published() }),
    ...apiKeyHandlers(platform, lastUsed),
    ...sessionHandlers(platform, lastUsed),
    ...userHandlers(platform),
    ...enrollmentHandlers(factorParts),
    ...ownFactorHandlers(factorParts),
    ...providerHandlers(platform, guard, ssoSecrets),
    startSso: async (request, { metadata, responseMetadata }) => {
      const { authorizationUrl, state, cookie } = await sso.start(request, metadata.get('host') ?? '');
      responseMetadata.set('set-cookie', cookie);
      responseMetadata.set('location', authorizationUrl);
      return { authorizationUrl, state };
    },
    finishSso: async (request, context) => {
      const { metadata, responseMetadata } = context;
      const returned = { request, cookies: metadata.get('cookie') ?? '', origin: originOf(context) };
      const ended = sso.forget(returned);
      if (ended !== undefined) responseMetadata.set('set-cookie', ended);
      const { step, redirectUri } = await counted(ssoSignIns, sso.finish(returned));
      const response = firstStepResponse(step);
      if (redirectUri !== '') {
        responseMetadata.set('location', `${redirectUri}#${fragmentOf(response)}`);
        responseMetadata.set('referrer-policy', 'no-referrer');
      }
      return response;
    },
    logoutSso: (request, { caller }) => sso.signOut(request, caller),
    backchannelLogout: async (request, context) => {
      await endSessionsOf({ database, clock, logger, providers, events }, request, originOf(context));
      return {};
    },
    ...lockoutHandlers(platform, throttle),
    ...ownPasswordHandlers(platform, throttle),
    ...groupHandlers(platform, unknownDeviceGroups),
  };

  /** Creates the configured platform administrator if the account is missing. An existing account keeps its password. */
  const makePlatformAdmin = async () => {
    const { platformAdminEmail: email, platformAdminPassword: password } = config;
    if (email === '' || password === '') return;
    if (await database.systemRead((tx) => findUserId(tx, null, email))) return;
    await checkNewPassword(password, config, { field: 'KELLET_PLATFORM_ADMIN_PASSWORD', words: [email] });
    const passwordHash = await hashPassword(password);
    const user = { userId: newId(), tenantId: null, email, name: '', role: 'platform_admin', passwordHash } as const;
    const made = await database.system(async (tx) => {
      const inserted = await insertUser(tx, { ...user, disabled: false });
      const resource = { kind: 'user', id: user.userId };
      if (inserted) await audit.within(tx, systemFacts('auth.platform_administrator_created', resource));
      return inserted;
    });
    if (made) logger.info({ user: made.user_id }, 'created the platform administrator');
  };

  /** Deletes ended sessions with their tokens, ended keys and certificates, and what is known of attempts that no longer count. */
  const sweep = new Loop(logger, 'sweep of sessions', sweepMilliseconds, async (signal) => {
    // The clock of this process may be wrong, and what is deleted is gone for all of them.
    const { rows } = await database.systemRead((tx) => tx.query<{ now: Date }>('SELECT clock_timestamp() AS now'));
    const now = rows[0]!.now.getTime();
    const before = (milliseconds: number): Date => new Date(now - milliseconds);
    const forget = (most: number, remove: (tx: Transaction, limit: number) => Promise<number>): Promise<void> =>
      repeatWhileFull(most, signal, (limit) => database.system((tx) => remove(tx, limit)));
    await repeatWhileFull(attemptsAtOnce, signal, (limit) => throttle.sweep(limit, now));
    // Strangers can add these; clocks of processes may differ a little.
    await forget(attemptsAtOnce, (tx, limit) => deleteExpiredReturns(tx, before(minuteMilliseconds), limit));
    await forget(attemptsAtOnce, (tx, limit) => deleteExpiredPending(tx, before(minuteMilliseconds), limit));
    await forget(sessionsAtOnce, (tx, limit) => deleteExpired(tx, before(dayMilliseconds), limit));
    await forget(sessionsAtOnce, (tx, limit) => deleteRevoked(tx, before(endedMilliseconds), limit));
    await forget(keysAtOnce, (tx, limit) => deleteEndedKeys(tx, before(dayMilliseconds), limit));
    const listed = certificateDays * dayMilliseconds;
    await forget(certificatesAtOnce, (tx, limit) => deleteExpiredCertificates(tx, before(listed), limit));
  });

  return {
    register: (registry) => registry.register(AuthService, implementation),
    start: async () => {
      await makePlatformAdmin();
      keys.start();
      lastUsed.start();
      sweep.start();
    },
    stop: async () => {
      await sweep.stop();
      await keys.stop();
      await lastUsed.stop();
    },
    authenticate: async (credential, address) => {
      const result = await credentialCheck.authenticate(credential, { namespace: '', permission: '' }, address);
      if (!result.valid) throw refusalError(result);
      checkAddress(address, result.caller.ipAllowlist);
      return result.caller;
    },
  };
}

function refusalError(refusal: Extract<Authentication, { valid: false }>): KelletError {
  if (refusal.reason === 'suspended') return tenantSuspended();
  return refusal.reason === 'deleted' ? tenantDeleted() : unauthenticated(refusalMessage(refusal));
}

/** Returns the message for the holder of a refused credential. */
function refusalMessage(refusal: Extract<Authentication, { valid: false }>): string {
  if (refusal.reason !== 'expired') return 'a valid credential is required';
  return {
    token: 'the access token has expired: exchange the refresh token at POST /api/v1/auth/refresh',
    key: 'the API key has expired',
    certificate: 'the certificate has expired',
    kubernetes: 'the Kubernetes token has expired',
  }[refusal.credential];
}

function proofOf(message: ValidateTokenRequest_DeviceProof | undefined): DeviceProof | undefined {
  switch (message?.proof.case) {
    case 'certificateSha256':
      return { kind: 'certificate', sha256: Buffer.from(message.proof.value) };
    case 'pskIdentity':
      return { kind: 'psk', identity: message.proof.value };
    default:
      return undefined;
  }
}

const kinds: Readonly<Record<Exclude<CallerKind, 'public'>, Kind>> = {
  user: Kind.user,
  service: Kind.service,
  device: Kind.device,
  platform: Kind.platform_admin,
  kubernetes: Kind.kubernetes,
};

/** Converts the result. `forGateway` adds facts of the credential that only the gateway may see. */
function validateTokenResponse(
  result: Authentication,
  forGateway: boolean,
): MessageInitShape<typeof ValidateTokenResponseSchema> {
  if (!result.valid) return { valid: false, grant: forGateway ? { reason: Reason[result.reason] } : undefined };
  const { caller } = result;
  return {
    valid: true,
    tenantId: caller.tenantId,
    userId: caller.kind === 'service' ? '' : caller.userId,
    deviceId: caller.deviceId,
    kind: kinds[caller.kind as Exclude<CallerKind, 'public'>],
    scopes: [...caller.scopes],
    expiresAt: caller.expiresAt === 0 ? undefined : timestampFromMs(caller.expiresAt * 1000),
    grant: forGateway
      ? {
          rateLimitPerMinute: result.rateLimitPerMinute,
          ipAllowlist: [...caller.ipAllowlist],
          sessionId: caller.sessionId,
          keyId: result.keyId,
          name: caller.name,
          credentialId: caller.credentialId,
          customerId: caller.customerId,
          mustEnroll: caller.mustEnroll ?? false,
          stepUpUntil: caller.stepUpUntil === undefined ? undefined : timestampFromMs(caller.stepUpUntil * 1000),
          enrollUntil: caller.enrollUntil === undefined ? undefined : timestampFromMs(caller.enrollUntil * 1000),
          limitedGrants: caller.limitedGrants.map(({ scopes, deviceGroupIds }) => ({
            scopes: [...scopes],
            deviceGroupIds: [...deviceGroupIds],
          })),
        }
      : undefined,
  };
}

function tokenResponse(pair: TokenPair): MessageInitShape<typeof TokenResponseSchema> {
  return {
    accessToken: pair.accessToken,
    tokenType: 'Bearer',
    expiresIn: pair.expiresInSeconds,
    refreshToken: pair.refreshToken,
    mfaRequired: pair.mustEnroll,
  };
}

function firstStepResponse(step: FirstStep): MessageInitShape<typeof TokenResponseSchema> {
  if (step.kind === 'tokens') return tokenResponse(step.pair);
  return { tokenType: 'Bearer', mfaRequired: true, mfaToken: step.mfaToken, mfaMethods: [...step.methods] };
}

/** Returns a response as parameters, for the fragment of a URL, which browsers do not send to servers. */
function fragmentOf(response: MessageInitShape<typeof TokenResponseSchema>): string {
  const fields = Object.entries(
    toJson(TokenResponseSchema, create(TokenResponseSchema, response), jsonOptions) as object,
  );
  return new URLSearchParams(Object.fromEntries(fields.map(([name, value]) => [name, String(value)]))).toString();
}

const jsonOptions = { useProtoFieldName: true };

const originOf = (context: CallContext) => ({
  userAgent: context.metadata.get('user-agent') ?? '',
  address: context.address,
  requestId: context.requestId,
});
