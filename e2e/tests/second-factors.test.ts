// Second factors and single sign-on from enrollment to sign-in, over REST and gRPC, against the whole stack.
import { type DescMethod, type MessageInitShape } from '@bufbuild/protobuf';
import { Client, credentials, type ServiceError, status } from '@grpc/grpc-js';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { TestBrowser, TestProvider } from '../../apiserver/src/auth/testing/test-provider.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { admin, makeUser, unique } from '../testing/fixtures.ts';
import { grpcCall } from '../testing/grpc-call.ts';
import { totpCode } from '../testing/totp.ts';

const { method } = AuthService;

describe('a second factor', () => {
  let client: Client;
  before(() => {
    client = new Client(stack().info.grpc, credentials.createInsecure());
  });
  after(() => client.close());

  const call = <M extends DescMethod>(asked: M, request: MessageInitShape<M['input']>, token = '') =>
    grpcCall(client, asked, request, token);
  const failure = async (calling: Promise<unknown>): Promise<ServiceError> =>
    calling.then(
      () => expect.fail('the call succeeded'),
      (error: ServiceError) => error,
    );

  it('is enrolled over REST and proved over gRPC, once', async () => {
    const rest = await admin();
    const { email, password, rest: user, user_id: userId } = await makeUser(rest, 'tenant_admin');
    const { secret } = await user.post<{ secret: string }>('/api/v1/auth/mfa/totp');
    const enrolled = await user.post<{ recovery_codes: string[] }>('/api/v1/auth/mfa/totp/confirm', {
      code: totpCode(secret),
    });
    const first = await call(method.login, { email, password, tenantId: stack().info.tenant });
    expect(first).to.deep.include({ accessToken: '', mfaRequired: true, mfaMethods: ['totp', 'recovery_code'] });
    const code = totpCode(secret, 1);
    const pair = await call(method.verifyMfa, { mfaToken: first.mfaToken, code });
    const again = await call(method.login, { email, password, tenantId: stack().info.tenant });
    const replayed = await failure(call(method.verifyMfa, { mfaToken: again.mfaToken, code }));
    expect(replayed.code).to.equal(status.UNAUTHENTICATED);
    const recovered = await call(method.verifyMfa, {
      ...{ mfaToken: again.mfaToken, code: enrolled.recovery_codes[0]! },
    });
    // Both sessions are recent: they may grant access.
    for (const { accessToken } of [pair, recovered]) {
      await call(method.createApiKey, { name: unique('key'), scopes: ['devices:read'] }, accessToken);
    }
    await rest.call('PATCH', `/api/v1/auth/users/${userId}`, { body: { mfa_enrolled: false } });
    await Rest.login(rest.base, { email, password });
  });

  it('is enrolled before anything else where the tenant requires it, over gRPC as over REST', async () => {
    const root = await Rest.login(stack().info.rest, stack().info.platform);
    const tenant = unique('mfa');
    const account = { email: `admin@${tenant}.test`, password: 'correct horse battery' };
    await root.post('/api/v1/tenants', {
      ...{ tenant_id: tenant, name: tenant, mfa_required: true },
      ...{ admin_email: account.email, admin_password: account.password },
    });
    try {
      const pair = await call(method.login, { ...account, tenantId: tenant });
      expect(pair).to.include({ mfaRequired: true, mfaToken: '' });
      const refused = await failure(call(method.listUsers, {}, pair.accessToken));
      expect(refused.code).to.equal(status.PERMISSION_DENIED);
      expect(refused.details).to.contain('second factor');
      const { secret } = await call(method.enrollTotp, {}, pair.accessToken);
      await call(method.confirmTotp, { code: totpCode(secret) }, pair.accessToken);
      const deadline = Date.now() + 15_000;
      while (Date.now() < deadline) {
        const isLimited = await call(method.listUsers, {}, pair.accessToken).then(
          () => false,
          () => true,
        );
        if (!isLimited) return;
      }
      expect.fail('the session is still limited');
    } finally {
      await root.call('DELETE', `/api/v1/tenants/${tenant}`);
    }
  });
});

describe('a provider for single sign-on', () => {
  it('signs a person in through the browser', async () => {
    const { base } = await admin();
    const provider = await TestProvider.start(`${base}/api/v1/auth/sso/callback`);
    try {
      const name = unique('idp');
      const { issuer, clientId, clientSecret } = provider;
      await (
        await admin()
      ).post('/api/v1/auth/sso/providers', {
        ...{ provider: name, issuer, client_id: clientId, client_secret: clientSecret },
        ...{ allowed_domains: [`${name}.test`], role_mapping: { operators: 'operator' } },
      });
      provider.people['ann'] = { email: `ann@${name}.test`, email_verified: true, groups: ['operators'] };
      const browser = new TestBrowser();
      const started = await browser.request(`${base}/api/v1/auth/sso/${name}/start`);
      const returned = await browser.signInAt(provider, started.headers.get('location')!, 'ann');
      const finished = await browser.request(returned);
      expect(finished.status).to.equal(200);
      const { access_token: token } = (await finished.json()) as { access_token: string };
      const listed = await new Rest(base, token).get<{ sessions: unknown[] }>('/api/v1/auth/sessions');
      expect(listed.sessions).to.have.length(1);
      expect((await browser.request(returned)).status, 'a second time').to.equal(401);
    } finally {
      await provider.stop();
    }
  });
});
