// The auth service: users, sign-in, sessions and API keys. The tenants' part of AuthService is in tenants/.
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import {
  AuthService,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { TokenResponseSchema, ValidateTokenResponseSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import { permissionDenied, tenantSuspended, unauthenticated, type KelletError } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { Loop } from '../platform/background/loop.ts';
import type { KubernetesApi } from '../platform/kubernetes/kubernetes.ts';
import { counter } from '../platform/observability/metrics.ts';
import type { ServiceModule } from '../config/module.ts';
import type { Caller, CallerKind, CallContext, Implementation } from '../platform/rpc.ts';
import { AccessTokens } from './credentials/access-tokens.ts';
import type { AuthPlatform } from './credentials/auth-platform.ts';
import { apiKeyHandlers } from './credentials/api-keys.ts';
import { Authenticator } from './credentials/authenticate.ts';
import type { Authentication } from './credentials/authentication.ts';
import { isAllowed } from '../platform/address-ranges.ts';
import { KeyRing } from './credentials/key-ring.ts';
import { KubernetesIdentities } from './credentials/kubernetes-identities.ts';
import { LastUsed } from './credentials/last-used.ts';
import { LoginThrottle } from './sign-in/login-throttle.ts';
import { checkNewPassword, hashPassword } from './accounts/passwords.ts';
import { sessionHandlers } from './sign-in/session-list.ts';
import { deleteExpired, revokeSessions, Sessions, type TokenPair } from './sign-in/sessions.ts';
import { SignIn } from './sign-in/sign-in.ts';
import { findUserId, insertUser } from './accounts/account-store.ts';
import { groupHandlers, type UnknownDeviceGroups } from './users/groups.ts';
import { lockoutHandlers } from './users/lockouts.ts';
import { userHandlers } from './users/users.ts';

const sweepMilliseconds = 3600_000;

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

/** Creates the service. Throws when the configured signing key is not an Ed25519 key. */
export function createAuth(
  platform: AuthPlatform,
  kubernetes: AuthKubernetes,
  unknownDeviceGroups: UnknownDeviceGroups,
): AuthModule {
  const { config, database, clock, logger, metrics } = platform;
  const keys = new KeyRing({
    ...{ database, clock, logger, configuredKey: config.jwtPrivateKey, rotationDays: config.jwtRotationDays },
  });
  const tokens = new AccessTokens(keys, clock);
  const lastUsed = new LastUsed(database, clock, logger);
  const sessions = new Sessions(database, clock, logger, tokens, keys.deriveKey('refresh successor'));
  const throttle = new LoginThrottle(database, clock);
  const signIn = new SignIn(database, throttle, sessions);
  const identities = new KubernetesIdentities(database, clock, logger.child({ component: 'auth' }), kubernetes);
  const authenticator = new Authenticator(database, clock, tokens, lastUsed, identities);
  const logins = counter(metrics, 'kellet_auth_logins_total', 'Sign-ins by outcome.', ['outcome']);

  const implementation: Implementation<typeof AuthService> = {
    login: async (request, context) => {
      try {
        const pair = await signIn.login(request, originOf(context));
        logins.inc({ outcome: 'success' });
        return tokenResponse(pair);
      } catch (error) {
        logins.inc({ outcome: 'failure' });
        throw error;
      }
    },
    refresh: async (request) => tokenResponse(await sessions.refresh(request.refreshToken)),
    logout: async (_request, context) => {
      await database.system((tx) => revokeSessions(tx, [context.caller.sessionId]));
      return {};
    },
    validateToken: async (request, { caller, address }) =>
      // Only the gateway calls this without a credential.
      validateTokenResponse(
        await authenticator.authenticate(request.token, request, address),
        caller.kind === 'public',
      ),
    getJwks: async () => ({ keys: await keys.published() }),
    ...apiKeyHandlers(platform, lastUsed),
    ...sessionHandlers(platform, lastUsed),
    ...userHandlers(platform),
    ...lockoutHandlers(platform, throttle),
    ...groupHandlers(platform, unknownDeviceGroups),
  };

  /** Creates the configured platform administrator if the account is missing. An existing account keeps its password. */
  const makePlatformAdmin = async () => {
    const { platformAdminEmail: email, platformAdminPassword: password } = config;
    if (email === '' || password === '') return;
    checkNewPassword(password);
    if (await database.systemRead((tx) => findUserId(tx, null, email))) return;
    const passwordHash = await hashPassword(password);
    const user = { userId: newId(), tenantId: null, email, name: '', role: 'platform_admin', passwordHash } as const;
    const made = await database.system((tx) => insertUser(tx, { ...user, disabled: false }));
    if (made) logger.info({ user: made.user_id }, 'created the platform administrator');
  };

  /** Deletes expired sessions with their tokens, and sign-in failures that no longer block anyone. */
  const sweep = new Loop(logger, 'sweep of sessions', sweepMilliseconds, async () => {
    await throttle.sweep();
    const before = new Date(clock.now() - 86_400_000);
    await database.system((tx) => deleteExpired(tx, before));
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
      const result = await authenticator.authenticate(credential, { namespace: '', permission: '' }, address);
      if (!result.valid) throw refusalError(result);
      if (!isAllowed(address, result.caller.ipAllowlist)) {
        throw permissionDenied('this credential may not be used from this address');
      }
      return result.caller;
    },
  };
}

function refusalError(refusal: Extract<Authentication, { valid: false }>): KelletError {
  return refusal.reason === 'suspended' ? tenantSuspended() : unauthenticated(refusalMessage(refusal));
}

/** Returns the message for the holder of a refused credential. */
export function refusalMessage(refusal: Extract<Authentication, { valid: false }>): string {
  if (refusal.reason !== 'expired') return 'a valid credential is required';
  return {
    token: 'the access token has expired: exchange the refresh token at POST /api/v1/auth/refresh',
    key: 'the API key has expired',
    kubernetes: 'the Kubernetes token has expired',
  }[refusal.credential];
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
  };
}

const originOf = (context: CallContext) => ({
  userAgent: context.metadata.get('user-agent') ?? '',
  address: context.address,
});
