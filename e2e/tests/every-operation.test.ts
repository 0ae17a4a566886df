// Makes every operation of the contract succeed, over REST and over gRPC, against the whole stack: an operation whose response
// cannot be encoded, or that the gateway does not reach, fails here although the tests of its handler pass; so does one that
// nothing here calls. What the operations do is tested elsewhere.
import { createHash, createPrivateKey, type JsonWebKeyInput, randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type DescMethod, fromJson, type JsonObject, type JsonValue, type Message, toJson } from '@bufbuild/protobuf';
import { Client, type ClientDuplexStream, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { expect } from 'chai';
import { SignJWT } from 'jose';
import { csrOf, newKeys } from '../../apiserver/src/auth/testing/test-certificates.ts';
import { TestBrowser, TestProvider } from '../../apiserver/src/auth/testing/test-provider.ts';
import { VirtualAuthenticator } from '../../apiserver/src/auth/testing/virtual-authenticator.ts';
import { publicServices } from '../../apiserver/src/gateway/services.ts';
import { RouteTable } from '../../apiserver/src/gateway/transcoding/routes.ts';
import { grpcService } from '../../apiserver/src/platform/grpc/grpc-service.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { unique } from '../testing/fixtures.ts';
import { totpCode } from '../testing/totp.ts';

const routes = new Map(new RouteTable(publicServices).routes.map((route) => [route.method.name, route]));
const methods = new Map(publicServices.flatMap((service) => service.methods.map((method) => [method.name, method])));
const httpBody = 'google.api.HttpBody';

/** What is sent besides the request. */
interface Sent {
  readonly token: string;
  readonly headers: Readonly<Record<string, string>>;
}
/** The messages of a response, as JSON with the names of the contract, and the cookies that it sets. */
interface Received {
  readonly messages: readonly JsonValue[];
  readonly cookies: readonly string[];
}
type Transport = (method: DescMethod, request: JsonObject, sent: Sent) => Promise<Received>;

const jsonOf = (method: DescMethod, message: Message): JsonValue =>
  toJson(method.output, message, { useProtoFieldName: true, alwaysEmitImplicit: true });

/** Reads what the contract says is a message of a response, and fails if its JSON is not exactly that of the contract. */
function exactly(method: DescMethod, text: string): JsonValue {
  const json = JSON.parse(text) as JsonValue;
  expect(json, method.name).to.deep.equal(jsonOf(method, fromJson(method.output, json)));
  return json;
}

const overRest: Transport = async (method, request, { token, headers }) => {
  const { verb, path, body, template } = routes.get(method.name)!;
  const left = { ...request };
  const filled = path.replace(/\{(\w+)[^}]*\}/g, (_, name: string) => encodeURIComponent(request[name] as string));
  for (const { fieldPath } of template.variables) delete left[fieldPath[0]!];
  const content = body === '*' ? left : body === '' ? undefined : left[body];
  if (body !== '' && body !== '*') delete left[body];
  const field = method.input.fields.find(({ name }) => name === body);
  const isRaw = field?.fieldKind === 'message' && field.message.typeName === httpBody;
  const raw = content as { content_type: string; data: string };
  const query = body === '*' ? '' : new URLSearchParams(left as Record<string, string>).toString();
  const response = await fetch(`${stack().info.rest}${filled}${query === '' ? '' : `?${query}`}`, {
    method: verb,
    redirect: 'manual',
    headers: {
      'content-type': isRaw ? raw.content_type : 'application/json',
      ...(token === '' ? {} : { authorization: `Bearer ${token}` }),
      ...headers,
    },
    ...(content === undefined ? {} : { body: isRaw ? Buffer.from(raw.data, 'base64') : JSON.stringify(content) }),
  });
  const bytes = Buffer.from(await response.arrayBuffer());
  if (!response.ok && response.status !== 302) throw new Error(`${method.name}: ${response.status} ${String(bytes)}`);
  const cookies = response.headers.getSetCookie();
  if (method.output.typeName === httpBody) {
    const contentType = response.headers.get('content-type')!;
    return { messages: [{ content_type: contentType, data: bytes.toString('base64') }], cookies };
  }
  const isStream = method.methodKind === 'server_streaming' || method.methodKind === 'bidi_streaming';
  const texts = isStream ? bytes.toString().trimEnd().split('\n') : [bytes.toString()];
  return { messages: texts.map((text) => exactly(method, text)), cookies };
};

/** The same over gRPC, where updates name their fields themselves. */
const overGrpc =
  (client: Client): Transport =>
  async (method, request, { token, headers }) => {
    const { path, requestSerialize, responseDeserialize } = grpcService(method.parent)[method.name]!;
    const route = routes.get(method.name);
    const hasMask = method.input.fields.some(({ name }) => name === 'update_mask');
    const inPath = route?.template.variables.map(({ fieldPath }) => fieldPath[0]) ?? [];
    const named = Object.keys(request).filter((name) => !inPath.includes(name));
    const mask = named.map((name) => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase())).join();
    const message = fromJson(method.input, hasMask ? { ...request, update_mask: mask } : request);
    const metadata = new Metadata();
    if (token !== '') metadata.set('authorization', `Bearer ${token}`);
    for (const [name, value] of Object.entries(headers)) metadata.set(name, value);
    // A unary call is a stream of one message either way.
    const call = client.makeBidiStreamRequest(
      path,
      requestSerialize,
      responseDeserialize,
      metadata,
    ) as ClientDuplexStream<Message, Message>;
    const messages: JsonValue[] = [];
    const cookies: string[] = [];
    call.on('metadata', (received: Metadata) => cookies.push(...received.get('set-cookie').map(String)));
    call.write(message);
    // A device's stream ends with its requests: it is ended once there is a response.
    if (route) call.end();
    call.on('data', (response: Message) => {
      messages.push(jsonOf(method, response));
      if (!route) call.end();
    });
    await once(call, 'end').catch((error: ServiceError) => {
      throw new Error(`${method.name}: ${error.code} ${error.details}`);
    });
    return { messages, cookies };
  };

/** What no call of this test can do: a certificate of a device proves who calls, for which a process has to terminate TLS. */
const elsewhere: Readonly<Record<string, string>> = {
  RenewDeviceCertificate: 'apiserver/src/device-credentials.test.ts',
};

const password = 'correct horse battery';
/** A JSON object with every kind of value. */
const anything: JsonObject = {
  text: 'é\u2028😀',
  number: -1.5e-7,
  list: [1, [], {}, null],
  yes: true,
  none: null,
  '': {},
};

/** The texts in responses that later requests contain. */
type Named = Readonly<
  Record<
    | `${'user' | 'group' | 'key' | 'session' | 'device' | 'authority' | 'customer' | 'asset' | 'entity_view'}_id`
    | `${'alarm' | 'profile' | 'template' | 'correlation' | 'package' | 'rollout' | 'rule' | 'webhook' | 'batch'}_id`
    | `${'access' | 'refresh' | 'mfa'}_token`
    | ('api_key' | 'provision_key' | 'secret' | 'status' | 'authorization_url' | 'data_hash' | 'delivery_id'),
    string
  >
>;

for (const protocol of ['REST', 'gRPC'] as const) {
  describe(`every operation over ${protocol}`, function () {
    this.timeout(120_000);
    const tenant = unique('every');
    const called = new Set<string>();
    let client: Client;
    let transport: Transport;
    let webhooks: Server;
    let admin: string;
    let platform: string;
    let profile: string;
    let device: Named;

    /** Calls an operation, which must succeed. */
    const send = async (name: string, request: JsonObject, sent: Partial<Sent> = {}) => {
      const received = await transport(methods.get(name)!, request, { token: admin, headers: {}, ...sent });
      called.add(name);
      return received;
    };
    const call = async <T = Named>(name: string, request: JsonObject = {}, token = admin): Promise<T> =>
      (await send(name, request, { token })).messages[0] as T;
    const login = (email: string, secret = password) =>
      call('Login', { email, password: secret, tenant_id: tenant }, '');
    const createDevice = async (request: JsonObject): Promise<Named> => {
      const { device: made, api_key } = await call<{ device: Named; api_key: string }>('CreateDevice', request);
      return { ...made, api_key };
    };
    const eventually = <T>(what: string, condition: () => Promise<T | false | undefined>) =>
      waitUntil(condition, { what, timeoutMilliseconds: 30_000 });

    before(async () => {
      client = new Client(stack().info.grpc, credentials.createInsecure());
      transport = protocol === 'REST' ? overRest : overGrpc(client);
      webhooks = createServer((_, response) => response.end()).listen(0, '127.0.0.1');
      const { email, password: secret } = stack().info.platform;
      platform = (await call('Login', { email, password: secret }, '')).access_token;
      const accounts = { admin_email: `admin@${tenant}.test`, admin_password: password };
      await call('CreateTenant', { tenant_id: tenant, rate_limit_per_minute: 1_000_000, ...accounts }, platform);
      admin = (await login(accounts.admin_email)).access_token;
      profile = (await call('CreateProfile', { name: 'p', type: 't', default_tags: { a: 'b' } })).profile_id;
      const { provision_key } = await call('CreateTemplate', { name: 't', profile_id: profile });
      device = await call('ClaimDevice', { provision_key, device_name: 'd', hardware_id: 'claimed' }, '');
    });
    after(async () => {
      await call('DeleteTenant', { tenant_id: tenant }, platform);
      client.close();
      webhooks.close();
    });

    it('of tenants', async () => {
      const tenant_id = `${tenant}-other`;
      await call('CreateTenant', { tenant_id }, platform);
      for (const name of ['GetTenant', 'SuspendTenant', 'UnsuspendTenant', 'DeleteTenant', 'RestoreTenant']) {
        await call(name, { tenant_id }, platform);
      }
      await call('ListTenants', {}, platform);
      await call('UpdateTenant', { tenant_id, name: 'Other', quotas: { devices: 5 } }, platform);
      await call('DeleteTenant', { tenant_id }, platform);
      await call('GetOwnTenant');
      await call('UpdateOwnTenant', { name: 'Mine', defaults: { tags: { a: 'b' }, offline_after_seconds: 60 } });
    });

    it('of users, groups, keys and sessions', async () => {
      const email = `user@${tenant}.test`;
      const { user_id } = await call('CreateUser', { email, role: 'viewer', password });
      await call('GetUser', { user_id });
      await call('UpdateUser', { user_id, name: 'User' });
      await call('ListUsers');
      const { group_id } = await call('CreateGroup', { name: 'g', scopes: ['devices:read'] });
      await call('AddGroupMembers', { group_id, user_ids: [user_id] });
      await call('GetGroup', { group_id });
      await call('ListGroups');
      await call('UpdateGroup', { group_id, scopes: ['rules:read'] });
      await call('RemoveGroupMember', { group_id, user_id });
      await call('DeleteGroup', { group_id });

      const { key_id, api_key } = await call('CreateApiKey', { name: 'k', scopes: ['devices:read'] });
      await call('ListApiKeys');
      await call('RotateApiKey', { key_id, grace_seconds: 60 });
      await call('ValidateToken', { token: api_key });
      await call('DeleteApiKey', { key_id });
      await call('GetJwks', {}, '');

      for (let attempt = 0; attempt < 6; attempt += 1) await login(email, 'wrong').catch(() => undefined);
      expect((await call<{ lockouts: unknown[] }>('ListLockouts')).lockouts).to.have.length(1);
      await call('DeleteLockout', { email });
      const { refresh_token } = await login(email);
      const { access_token: token } = await call('Refresh', { refresh_token }, '');
      const { sessions } = await call<{ sessions: unknown[] }>('ListSessions', {}, token);
      await login(email);
      await call('RevokeAllSessions', {}, token);
      await call('Logout', {}, token);
      const again = (await login(email)).access_token;
      const listed = await call<{ sessions: [Named] }>('ListSessions', {}, again);
      await call('DeleteSession', { session_id: listed.sessions[0].session_id }, again);
      expect(sessions).to.have.length(1);
      const { access_token: last } = await login(email);
      await call('ChangePassword', { current_password: password, new_password: `${password} staple` }, last);
      await call('DeleteUser', { user_id });
    });

    it('of second factors', async () => {
      const email = `factors@${tenant}.test`;
      await call('CreateUser', { email, role: 'viewer', password });
      const { access_token: first } = await login(email);
      const { secret } = await call('EnrollTotp', {}, first);
      const { recovery_codes } = await call<{ recovery_codes: [string] }>(
        'ConfirmTotp',
        { code: totpCode(secret) },
        first,
      );
      const mfa = { mfa_token: (await login(email)).mfa_token };
      const { access_token: token } = await call('VerifyMfa', { ...mfa, code: recovery_codes[0] }, '');
      const key = new VirtualAuthenticator(stack().info.dashboard);
      const { options } = await call<{ options: JsonObject }>('BeginWebauthnRegistration', {}, token);
      await call('FinishWebauthnRegistration', { name: 'key', response: key.create(options) }, token);
      const next = { mfa_token: (await login(email)).mfa_token };
      const begun = await call<{ options: JsonObject }>('BeginWebauthnLogin', next, '');
      const signedIn = await call<{ access_token: string }>(
        'FinishWebauthnLogin',
        { ...next, response: key.get(begun.options) },
        '',
      );
      const { security_keys } = await call<{ security_keys: [{ credential_id: string }] }>(
        'GetSecondFactors',
        {},
        signedIn.access_token,
      );
      await call('ReplaceRecoveryCodes', {}, signedIn.access_token);
      const other = new VirtualAuthenticator(stack().info.dashboard);
      const again = await call<{ options: JsonObject }>('BeginWebauthnRegistration', {}, signedIn.access_token);
      const more = { name: 'other', response: other.create(again.options) };
      await call('FinishWebauthnRegistration', more, signedIn.access_token);
      await call('DeleteSecurityKey', { credential_id: security_keys[0].credential_id }, signedIn.access_token);
      await call('DeleteTotp', {}, signedIn.access_token);
    });

    it('of single sign-on', async () => {
      const callback = `${stack().info.rest}/api/v1/auth/sso/callback`;
      const idp = await TestProvider.start(callback, `${stack().info.dashboard}/sign-in`);
      try {
        const { host } = new URL(callback);
        const provider = 'idp';
        const settings = { issuer: idp.issuer, client_id: idp.clientId, client_secret: idp.clientSecret };
        await call('CreateSsoProvider', { provider, ...settings, allowed_domains: [`${tenant}.test`] });
        await call('GetSsoProvider', { provider });
        await call('ListSsoProviders');
        await call('UpdateSsoProvider', { provider, role_mapping: { operators: 'operator' } });
        idp.people['ann'] = { email: `ann@${tenant}.test`, email_verified: true, groups: ['operators'] };
        const started = await send('StartSso', { provider, tenant_id: tenant }, { token: '', headers: { host } });
        const { authorization_url: url } = started.messages[0] as unknown as Named;
        const returned = new URL(await new TestBrowser().signInAt(idp, url, 'ann'));
        const cookie = started.cookies.map((one) => one.split(';')[0]).join('; ');
        const answer = Object.fromEntries(returned.searchParams);
        const finished = await send('FinishSso', answer, { token: '', headers: { host, cookie } });
        await call('LogoutSso', {}, (finished.messages[0] as unknown as Named).access_token);
        const signed = await new SignJWT({
          ...{ events: { 'http://schemas.openid.net/event/backchannel-logout': {} }, sub: 'ann' },
        })
          .setProtectedHeader({ alg: 'RS256', typ: 'logout+jwt', kid: idp.key.kid! })
          .setIssuer(idp.issuer)
          .setAudience(idp.clientId)
          .setIssuedAt()
          .setExpirationTime('2m')
          .setJti(randomUUID())
          .sign(createPrivateKey({ key: idp.key as JsonWebKeyInput['key'], format: 'jwk' }));
        const data = Buffer.from(new URLSearchParams({ logout_token: signed }).toString()).toString('base64');
        const form = { content_type: 'application/x-www-form-urlencoded', data };
        await call('BackchannelLogout', { provider, tenant_id: tenant, form }, '');
        await call('DeleteSsoProvider', { provider });
      } finally {
        await idp.stop();
      }
    });

    it('of devices, their groups and credentials', async () => {
      const { device_id } = await createDevice({ hardware_id: 'h', metadata: anything });
      expect(await call('GetDevice', { device_id })).to.deep.include({ metadata: anything });
      await call('UpdateDevice', { device_id, name: 'Device', profile_id: profile });
      await call('ListDevices', { q: 'Dev', status: 'offline' });
      await call('RotateDeviceCredentials', { device_id, grace_seconds: 0 });
      await call('RevokeDeviceCredentials', { device_id });
      await call('GetDeviceHistory', { device_id });
      await call('GetDeviceStatistics', { profile_id: profile });

      const { group_id } = await call('CreateDeviceGroup', { name: 'g' });
      await call('AddDevicesToGroup', { group_id, device_ids: [device_id] });
      await call('GetDeviceGroup', { group_id });
      await call('ListDeviceGroups');
      await call('RemoveDeviceFromGroup', { group_id, device_id });
      await call('UpdateDeviceGroup', { group_id, name: 'G' });
      await call('DeleteDeviceGroup', { group_id });
      await call('CreateDeviceGroup', { name: 'q', query: { status: 'offline', tag: ['a=b'] } });

      const { authority_id } = await call('CreateDeviceAuthority');
      await call('CreateDevice', {
        hardware_id: 'c',
        credential_type: 'certificate',
        csr: await csrOf(await newKeys()),
      });
      await call('CreateDevice', { hardware_id: 'psk', credential_type: 'psk' });
      const { device_certificates } = await call<{ device_certificates: unknown[] }>('ListDeviceCertificates');
      expect(device_certificates).to.have.length(1);
      await call('ListDeviceAuthorities');
      await call('GetRevocationList', { authority_id });
      await call('DeleteDeviceAuthority', { authority_id });

      const data = Buffer.from('name,hardware_id\nImported,imported\nNone,\n').toString('base64');
      const lines = (await send('ImportDevices', { content: { content_type: 'text/csv', data } })).messages;
      expect(lines.map((line) => Object.keys(line as JsonObject))).to.have.length(3);
      await call('ExportDevices', { format: 'ndjson' });
      const value = { row: 'north', column: null };
      await call('ChangeDevices', { filter: { hardware_id: 'imported' }, action: 'set_tags', value, expected: 1 });
      await call('DeleteDevice', { device_id });
    });

    it('of customers, assets, views and alarms', async () => {
      const { customer_id } = await call('CreateCustomer', { name: 'c' });
      await call('GetCustomer', { customer_id });
      await call('ListCustomers');
      await call('UpdateCustomer', { customer_id, contact: 'x@y.test' });
      const { asset_id } = await call('CreateAsset', { name: 'a', customer_id });
      await call('GetAsset', { asset_id });
      await call('ListAssets');
      await call('UpdateAsset', { asset_id, tags: { a: 'b' } });
      const { entity_view_id } = await call('CreateEntityView', {
        name: 'v',
        asset_id,
        start_time: '1970-01-01T00:00:00Z',
      });
      await call('GetEntityView', { entity_view_id });
      await call('ListEntityViews');
      await call('UpdateEntityView', { entity_view_id, end_time: '2261-12-31T23:59:59.999999999Z' });
      const { alarm_id } = await call('CreateAlarm', {
        ...{ device_id: device.device_id, type: 'x', severity: 'major', details: anything },
      });
      expect(await call('GetAlarm', { alarm_id })).to.deep.include({ details: anything });
      await call('ListAlarms', { severity: 'major' });
      await call('UpdateAlarm', { alarm_id, severity: 'minor' });
      await call('AcknowledgeAlarm', { alarm_id });
      await call('ClearAlarm', { alarm_id });
      await call('DeleteAlarm', { alarm_id });
      await call('DeleteEntityView', { entity_view_id });
      await call('DeleteAsset', { asset_id });
      await call('DeleteCustomer', { customer_id });
    });

    it('of profiles and templates', async () => {
      const { profile_id } = await call('CreateProfile', { name: 'other', type: 't' });
      await call('GetProfile', { profile_id });
      await call('ListProfiles');
      await call('UpdateProfile', { profile_id, default_tags: { a: 'c' } });
      const { template_id } = await call('CreateTemplate', { name: 'other', profile_id, expires_in_seconds: 60 });
      await call('GetTemplate', { template_id });
      await call('ListTemplates');
      await call('UpdateTemplate', { template_id, hardware_id_pattern: 'X-*' });
      await call('RotateTemplateKey', { template_id });
      await call('DisableTemplate', { template_id });
      await call('DeleteTemplate', { template_id });
      await call('DeleteProfile', { profile_id });
    });

    it('of commands, attributes and gateways', async () => {
      const { device_id, api_key } = device;
      const { correlation_id } = await call('SendRpc', { device_id, method: 'm', params: anything, persistent: true });
      const pending = { device_id, wait_seconds: 5 };
      const { commands } = await call<{ commands: unknown[] }>('ListPendingRpcs', pending, api_key);
      expect(commands[0]).to.deep.include({ params: anything });
      await call('RespondRpc', { correlation_id, success: true, response: anything }, api_key);
      expect(await call('GetRpc', { correlation_id, wait_seconds: 1 })).to.deep.include({ response: anything });
      const { correlation_id: other } = await call('SendRpc', { device_id, method: 'm', persistent: true });
      await call('CancelRpc', { correlation_id: other });
      await call('ListRpcs', { device_id, status: 'cancelled' });
      const kept: JsonObject = { ...anything };
      delete kept['none'];
      delete kept[''];
      await call('UpdateAttributes', { device_id, shared: kept });
      const { shared } = await call<{ shared: Record<string, object> }>('GetAttributes', { device_id });
      for (const [name, value] of Object.entries(kept)) expect(shared[name], name).to.deep.include({ value });
      const child = await call('ConnectGatewayDevice', { gateway_device_id: device_id, hardware_id: 'child' }, api_key);
      const gone = { gateway_device_id: device_id, device_id: child.device_id };
      await call('DisconnectGatewayDevice', gone, api_key);
      if (protocol === 'gRPC') expect(await call('Connect', { hello: {} }, api_key)).to.have.property('ready');
    });

    it('of updates', async () => {
      const artifact = randomBytes(1000);
      const sha256 = createHash('sha256').update(artifact).digest('hex');
      const upload = async (version: string): Promise<string> => {
        const made = { type: 'fw', version, artifact_uri: 'upload://', sha256, size_bytes: artifact.length };
        const { package_id } = await call('CreatePackage', { name: version, ...made });
        const content = { content_type: 'application/octet-stream', data: artifact.toString('base64') };
        expect((await call('UploadArtifact', { package_id, content })).status).to.equal('available');
        return package_id;
      };
      const [package_id, rollback_package_id] = [await upload('2.0.0'), await upload('1.0.0')];
      await call('GetPackage', { package_id });
      await call('ListPackages', { status: 'available' });
      await call('UpdatePackage', { package_id: rollback_package_id, release_notes: 'x' });

      const { device_id, api_key } = device;
      const { device_id: other } = await createDevice({ hardware_id: 'other', profile_id: profile });
      // Nothing ends the update of this one, so the rollout cannot complete before it is rolled back.
      await createDevice({ hardware_id: 'waiting', profile_id: profile });
      const body = {
        ...{ package_id, rollback_package_id, target_profile_id: profile, canary_percent: 100 },
        ...{ failure_threshold_percent: 100, steps: [] },
      };
      await call('PlanRollout', { ...body, name: 'r' });
      const { rollout_id } = await call('CreateRollout', { ...body, name: 'r' });
      await call('GetRollout', { rollout_id });
      await call('ListRollouts', { status: 'active' });
      const assigned = await call('GetAssignedPackage', { device_id }, api_key);
      expect(assigned).to.include({ package_id, sha256, rollout_id });
      const chunk = await call('GetChunk', { device_id, package_id, offset: 0 }, api_key);
      expect(chunk).to.include({ data: artifact.toString('base64'), complete: true });
      const report = { device_id, rollout_id, firmware_version: '2.0.0' };
      await call('ReportOta', { device_id, report: { ...report, status: 'failure', error: 'x' } }, api_key);
      await call('ListRolloutDevices', { rollout_id, state: 'failure' });
      await call('RetryRollout', { rollout_id, device_ids: [device_id] });
      await call('ReportOta', { device_id, report: { ...report, status: 'success' } }, api_key);
      await call('SkipRollout', { rollout_id, device_ids: [other] });
      await call('PauseRollout', { rollout_id });
      await call('ResumeRollout', { rollout_id });
      await call('RollbackRollout', { rollout_id });
      const proof = await eventually('the proof of a result', async () => {
        const { results } = await call<{ results: unknown[] }>('GetRolloutProof', { rollout_id });
        return results[0];
      });
      expect(proof).to.have.property('merkle_path');

      const { profile_id: target_profile_id } = await call('CreateProfile', { name: 'in steps', type: 't' });
      const keys = new Map<string, string>();
      for (const hardware_id of ['first', 'second', 'third']) {
        const made = await createDevice({ hardware_id, profile_id: target_profile_id });
        keys.set(made.device_id, made.api_key);
      }
      const steps = [{ percent: 100, approval: true }];
      const inSteps = { ...body, target_profile_id, canary_percent: 1, name: 's', steps };
      const { rollout_id: stepped } = await call('CreateRollout', inSteps);
      await call('UpdateRollout', { rollout_id: stepped, canary_percent: 50 });
      await eventually('the step', async () => {
        const scheduled = { rollout_id: stepped, state: 'scheduled' };
        const { devices } = await call<{ devices: Named[] }>('ListRolloutDevices', scheduled);
        for (const { device_id: one } of devices) {
          const done = { device_id: one, rollout_id: stepped, firmware_version: '2.0.0', status: 'success' };
          await call('ReportOta', { device_id: one, report: done }, keys.get(one));
        }
        return (await call<{ pause_reasons: string[] }>('GetRollout', { rollout_id: stepped })).pause_reasons[0];
      });
      await call('ApproveRollout', { rollout_id: stepped });
      await call('CancelRollout', { rollout_id: stepped });

      await call('SetAssignment', { device_id, package_id });
      await call('DeleteAssignment', { device_id });
      await call('DeletePackage', { package_id: await upload('3.0.0') });
    });

    it('of telemetry, anchors and proofs', async () => {
      const { device_id, api_key } = device;
      const timestamp = '2026-01-31T12:00:00.000000001Z';
      const values = { numeric_values: { a: -0.5, b: 1e300, c: 5e-324 }, string_values: { s: 'é' } };
      const points = [{ device_id, timestamp, ...values }, { device_id: randomUUID() }];
      const sent = await call('Ingest', { points }, api_key);
      expect(sent).to.include({ accepted: 1, rejected: 1 });
      if (protocol === 'gRPC') {
        const other = [{ device_id, timestamp: '2026-01-31T12:00:01Z', numeric_values: { a: 2 } }];
        expect(await call('IngestStream', { sequence: 1, points: other }, api_key)).to.include({ accepted: 1 });
      }
      await eventually(
        'the point',
        async () => (await call<{ points: unknown[] }>('GetHistory', { device_id })).points[0],
      );
      await call('GetHistory', { device_id, start: '2026-01-31T00:00:00Z', interval_seconds: 60, aggregation: 'avg' });
      await call('GetLatest', { device_id });
      await call('GetMetrics');
      await call('GetMetrics', { device_id });
      const { data_hash, batch_id } = await eventually(
        'a proof of the point',
        async () => (await call<{ proofs: Named[] }>('ListProofs', { limit: 1, device_id })).proofs[0],
      );
      await call('VerifyHash', { data_hash_hex: data_hash });
      await call('VerifyHash', { data_hash_hex: data_hash, include_bundle: true });
      await eventually('verification', () => call('VerifyRaw', { device_id, timestamp, ...values }));
      await call('GetBatchProof', { batch_id });
      await call('GetBundleSchema');
      await call('ListBatches', { status: 'confirmed' });
      await call('GetBatch', { batch_id });
    });

    it('of rules', async () => {
      const expression = 'numeric.a > 1.0';
      const actions = [{ rpc: { method: 'm', params: anything } }];
      const { rule_id } = await call('CreateRule', { name: 'r', expression, severity: 'major', actions });
      await call('GetRule', { rule_id });
      await call('ListRules');
      await call('UpdateRule', { rule_id, name: 'R' });
      await call('DisableRule', { rule_id });
      await call('EnableRule', { rule_id });
      await call('ValidateRule', { expression: 'numeric.' });
      const point = { device_id: device.device_id, numeric_values: { a: 2 } };
      expect(await call('TestRule', { expression, point })).to.include({ matched: true });
      await call('DeleteRule', { rule_id });
    });

    it('of webhooks and the audit log', async () => {
      const url = `http://127.0.0.1:${(webhooks.address() as AddressInfo).port}`;
      const { webhook_id } = await call('CreateWebhook', { url, secret: 'x'.repeat(32), events: ['*'] });
      await call('GetWebhook', { webhook_id });
      await call('ListWebhooks');
      const { alarm_id } = await call('CreateAlarm', { device_id: device.device_id, type: 'w', severity: 'minor' });
      await call('ClearAlarm', { alarm_id });
      const { delivery_id } = await eventually('a delivery', async () => {
        const { deliveries } = await call<{ deliveries: Named[] }>('ListWebhookDeliveries', { webhook_id });
        return deliveries.find(({ status }) => status !== 'pending');
      });
      await call('ResendWebhookDelivery', { webhook_id, delivery_id });
      await call('UpdateWebhook', { webhook_id, enabled: false });
      await call('DeleteWebhook', { webhook_id });
      await call('ListAuditEvents', { result: 'OK', start: '2026-01-01T00:00:00Z' });
      await call('ListAuditAnchors');
    });

    it('leave none out', () => {
      const all = [...methods.keys()].filter((name) => protocol === 'gRPC' || routes.has(name));
      expect(all.filter((name) => !called.has(name) && !(name in elsewhere))).to.deep.equal([]);
    });
  });
}
