// Certificates and pre-shared keys of devices on REST, gRPC and MQTT of a process that terminates TLS.
import { spawnSync } from 'node:child_process';
import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type { IncomingHttpHeaders } from 'node:http';
import { Agent, request as httpsRequest, type RequestOptions } from 'node:https';
import { connect as connectSocket } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { connect as connectTls } from 'node:tls';
import { isDeepStrictEqual } from 'node:util';
import { create } from '@bufbuild/protobuf';
import { Client, credentials, status } from '@grpc/grpc-js';
import { DeviceLinkService, ListPendingRpcsRequestSchema } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import { X509Certificate as ReadCertificate, X509Crl } from './auth/certificates/x509.ts';
import { certificateOf, csrOf, type Keys, newKeys } from './auth/testing/test-certificates.ts';
import { mintProvisionKey } from './device-link/provisioning/provision-key.ts';
import {
  applyProfile,
  applyTemplate,
  provisioningDispatcher,
} from './device-link/provisioning/testing/test-fixtures.ts';
import { tenant, TestLink, TestStream } from './device-link/testing/test-link.ts';
import { TestClient } from './mqtt/testing/test-mqtt.ts';
import { grpcService } from './platform/grpc/grpc-service.ts';
import { eventually } from './platform/testing/eventually.ts';
import { setSuspended } from './tenants/tenant-store.ts';
import type { TestProcess } from './testing/test-process.ts';

const stranger = 'other';
const proxy = '127.0.0.2';

/** A device with a certificate. */
interface Certified {
  readonly deviceId: string;
  readonly keys: Keys;
  readonly certificate: string;
}

describe('credentials of devices', function () {
  this.timeout(180_000);
  const folder = mkdtempSync(path.join(tmpdir(), 'kellet-credentials-'));
  let link: TestLink;
  let secure: TestProcess;
  let serverCertificate: string;
  let made = 0;

  before(async () => {
    const keys = await newKeys();
    serverCertificate = await certificateOf(keys, 'localhost', { isAuthority: true });
    const files = {
      KELLET_TLS_CERT_FILE: path.join(folder, 'tls.crt'),
      KELLET_TLS_KEY_FILE: path.join(folder, 'tls.key'),
    };
    writeFileSync(files.KELLET_TLS_CERT_FILE, serverCertificate);
    writeFileSync(files.KELLET_TLS_KEY_FILE, keys.pem);
    const header = { KELLET_TRUSTED_PROXIES: `${proxy}/32`, KELLET_CLIENT_CERTIFICATE_HEADER: 'X-Client-Cert' };
    link = await TestLink.start({ ...files, ...header, KELLET_REST_TLS: 'true', KELLET_GRPC_TLS: 'true' });
    secure = link.process;
  });
  after(async () => {
    await link?.stop();
    rmSync(folder, { recursive: true });
  });

  interface Response {
    readonly http: number;
    readonly [field: string]: unknown;
  }
  const agents: Agent[] = [];
  after(() => agents.forEach((agent) => agent.destroy()));

  /** Calls a route below /api/v1 over TLS, with a certificate. */
  const raw = (
    peer: { certificate?: string; keys?: Keys },
    method: string,
    route: string,
    options: { body?: unknown; request?: RequestOptions } = {},
  ): Promise<{ http: number; text: string; bytes: Buffer; headers: IncomingHttpHeaders }> =>
    new Promise((resolve, reject) => {
      const { body, request = {} } = options;
      const sent = httpsRequest(
        {
          ...{ host: '127.0.0.1', port: secure.ports.restPort, path: `/api/v1/${route}`, method },
          ...{
            rejectUnauthorized: false,
            agent: false,
            servername: 'localhost',
            cert: peer.certificate,
            key: peer.keys?.pem,
          },
          ...request,
          headers: { 'content-type': 'application/json', ...request.headers },
        },
        (response) => {
          const chunks: Buffer[] = [];
          response.on('data', (chunk: Buffer) => chunks.push(chunk));
          response.on('end', () => {
            const bytes = Buffer.concat(chunks);
            const { statusCode, headers } = response;
            resolve({ http: statusCode!, text: bytes.toString(), bytes, headers });
          });
        },
      );
      sent.on('error', reject);
      sent.end(body === undefined ? undefined : JSON.stringify(body));
    });
  const rest = async (...call: Parameters<typeof raw>): Promise<Response> => {
    const { http, text } = await raw(...call);
    return { ...(JSON.parse(text) as Record<string, unknown>), http };
  };
  const pending = (device: { deviceId: string; certificate?: string; keys?: Keys }, seconds = 0) =>
    rest(device, 'GET', `devices/${device.deviceId}/rpc/pending?wait_seconds=${seconds}`);

  const grpcClient = (peer: { certificate: string; keys: Keys }): Client =>
    new Client(
      `127.0.0.1:${secure.ports.grpcPort}`,
      credentials.createSsl(Buffer.from(serverCertificate), Buffer.from(peer.keys.pem), Buffer.from(peer.certificate), {
        checkServerIdentity: () => undefined,
      }),
      { 'grpc.use_local_subchannel_pool': 1 },
    );
  const grpcCode = async (peer: Certified): Promise<number> => {
    const client = grpcClient(peer);
    const { path: name, requestSerialize, responseDeserialize } = grpcService(DeviceLinkService)['ListPendingRpcs']!;
    const message = create(ListPendingRpcsRequestSchema, { deviceId: peer.deviceId });
    const code = await new Promise<number>((resolve) =>
      client.makeUnaryRequest(name, requestSerialize, responseDeserialize, message, (error) =>
        resolve(error?.code ?? status.OK),
      ),
    );
    client.close();
    return code;
  };
  const mqtt = (peer: { certificate: string; keys: Keys }, options: object = {}): TestClient =>
    new TestClient(`mqtts://127.0.0.1:${secure.ports.mqttTlsPort}`, {
      ...{
        rejectUnauthorized: false,
        servername: 'localhost',
        cert: peer.certificate,
        key: peer.keys.pem,
        protocolVersion: 5,
      },
      ...options,
    });
  const mqttCode = async (client: TestClient): Promise<number> => {
    try {
      await client.connected();
      await client.end();
      return 0;
    } catch (error) {
      return (error as { code?: number }).code ?? -1;
    }
  };
  /** Returns the responses of the three ports. */
  const results = async (device: Certified) => {
    const { http, rpc, mqttReason } = {
      http: (await pending(device)).http,
      rpc: await grpcCode(device),
      mqttReason: await mqttCode(mqtt(device)),
    };
    return { http, rpc, mqttReason };
  };
  const accepted = { http: 200, rpc: status.OK, mqttReason: 0 };
  const refused = { http: 401, rpc: status.UNAUTHENTICATED, mqttReason: 0x87 };

  /** Waits until a device is refused on every port: within a second, more on a busy machine. */
  const becomesRefused = (device: Certified) =>
    eventually(async () => isDeepStrictEqual(await results(device), refused));

  const operate = (method: string, route: string, body?: unknown, tenantId = tenant) =>
    rest({}, method, route, { body, request: { headers: { 'x-api-key': link.operators[tenantId]! } } });
  /** Registers a device with a certificate. */
  const certified = async (tenantId = tenant): Promise<Certified> => {
    made += 1;
    const keys = await newKeys(made % 2 === 0 ? 'p256' : 'ed25519');
    // The certificate does not take over the name of the request.
    const csr = await csrOf(keys, `request-${made}`);
    const body = { hardware_id: `certified-${made}`, credential_type: 'certificate', csr };
    const result = await operate('POST', 'devices', body, tenantId);
    expect(result.http, JSON.stringify(result)).to.equal(200);
    expect(result['api_key']).to.equal('');
    const { device_id: deviceId } = result['device'] as { device_id: string };
    return { deviceId, keys, certificate: result['certificate'] as string };
  };

  it('can be certificates, which work on REST, gRPC and MQTT', async () => {
    const device = await certified();
    const certificate = new X509Certificate(device.certificate);
    expect(certificate.subject).to.equal(`CN=${device.deviceId}`);
    expect(await results(device)).to.deep.equal(accepted);
    const shown = await operate('GET', `devices/${device.deviceId}`);
    expect(shown).to.include({ credential_type: 'certificate' });
    expect(Date.parse(shown['certificate_expires_at'] as string)).to.equal(certificate.validToDate.getTime());
    const { device_authorities: authorities } = await operate('GET', 'device-authorities');
    const [authority] = authorities as { certificate: string }[];
    expect(JSON.stringify(authorities)).not.to.contain('private');
    expect(certificate.verify(new X509Certificate(authority!.certificate).publicKey)).to.equal(true);
    const { devices } = await operate('GET', 'devices?credential_type=certificate');
    expect((devices as { device_id: string }[]).map(({ device_id: id }) => id)).to.include(device.deviceId);
    expect((await operate('GET', 'devices?credential_type=psk'))['devices']).to.deep.equal([]);
    // With the device's id as user name, but not with another's.
    expect(await mqttCode(mqtt(device, { username: device.deviceId }))).to.equal(0);
    const other = await certified();
    expect(await mqttCode(mqtt(device, { username: other.deviceId }))).to.equal(0x87);
    const http = async (deviceId: string) => (await pending({ ...device, deviceId })).http;
    expect(await http(other.deviceId)).to.equal(403);
  });

  it('can be certificates on resumed TLS sessions too', async () => {
    const device = await certified();
    const agent = new Agent({ maxCachedSessions: 10, keepAlive: false });
    agents.push(agent);
    const call = () =>
      rest(device, 'GET', `devices/${device.deviceId}/rpc/pending`, { request: { agent, servername: 'localhost' } });
    for (let run = 0; run < 3; run += 1) expect((await call()).http).to.equal(200);
  });

  it('are not accepted without a proof of possession', async () => {
    const device = await certified();
    const der = new X509Certificate(device.certificate);
    const sha256 = der.fingerprint256.replaceAll(':', '').toLowerCase();
    const said = [device.certificate.replaceAll('\n', ''), sha256, `certificate ${sha256}`, der.raw.toString('latin1')];
    for (const text of said) {
      const headers = { 'x-api-key': text.replace(/[^\x20-\x7e]/g, '?') };
      const { http } = await rest({}, 'GET', `devices/${device.deviceId}/rpc/pending`, { request: { headers } });
      expect(http).to.equal(401);
      const options = { cert: undefined, key: undefined, username: device.deviceId, password: text };
      expect(await mqttCode(mqtt(device, options))).to.equal(0x87);
    }
    // Only the gateway may state what a connection proves.
    const proof = { certificate_sha256: Buffer.from(sha256, 'hex').toString('base64') };
    const body = { token: 'x', device_proof: proof };
    expect((await operate('POST', 'auth/validate', body)).http).to.equal(400);
    // A certificate that was sent is not used in place of a wrong key.
    const headers = { authorization: 'Bearer wrong' };
    const route = `devices/${device.deviceId}/rpc/pending`;
    expect((await rest(device, 'GET', route, { request: { headers } })).http).to.equal(401);
  });

  it('do not include certificates that others have signed, whatever name they have', async () => {
    const { deviceId } = await certified();
    const { device_authorities: authorities } = await operate('GET', 'device-authorities');
    const [{ certificate: real }] = authorities as [{ certificate: string }];
    const realName = new X509Certificate(real).subject.replace(/^CN=/, '');
    const authority = await newKeys();
    const supplied = {
      certificate: await certificateOf(authority, 'supplied', { isAuthority: true }),
      private_key: authority.pem,
    };
    // The authority of another tenant, and one of this tenant, with certificates that were not issued here.
    expect((await operate('POST', 'device-authorities', supplied, stranger)).http).to.equal(200);
    const foreign = await certified(stranger);
    expect(new X509Certificate(foreign.certificate).issuer).to.equal('CN=supplied');
    expect(await results(foreign)).to.deep.equal(accepted);
    expect((await pending({ ...foreign, deviceId })).http).to.be.oneOf([403, 404]);
    const issuers: [string, { keys: Keys; name: string } | undefined, [number, number]?][] = [
      ['itself', undefined],
      ['an authority with the name of the real one', { keys: await newKeys(), name: realName }],
      ['the authority of another tenant', { keys: authority, name: 'supplied' }],
      ['the authority of another tenant, expired', { keys: authority, name: 'supplied' }, [-3, -2]],
      ['the authority of another tenant, not valid yet', { keys: authority, name: 'supplied' }, [2, 3]],
    ];
    for (const [what, issuer, days] of issuers) {
      const keys = await newKeys();
      const certificate = await certificateOf(keys, deviceId, { ...(issuer && { issuer }), ...(days && { days }) });
      expect(await results({ deviceId, keys, certificate }), what).to.deep.equal(refused);
    }
  });

  it('are refused before and after their time', async () => {
    const [early, late] = [await certified(), await certified()];
    await link.test.database.system(async (tx) => {
      await tx.query(`UPDATE device_certificates SET not_before = now() + interval '1 hour' WHERE device_id = $1`, [
        early.deviceId,
      ]);
      await tx.query(`UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE device_id = $1`, [
        late.deviceId,
      ]);
    });
    expect(await results(early)).to.deep.equal(refused);
    expect(await results(late)).to.deep.equal(refused);
  });

  it('end open connections when they are revoked, and are listed as revoked', async () => {
    // Two devices, because the newer of a stream and an MQTT connection of one device replaces the other.
    const [device, other] = [await certified(), await certified()];
    const poll = pending(device, 60);
    const stream = new TestStream(grpcClient(device), '');
    stream.write({ event: { case: 'hello', value: { deviceIds: [] } } });
    await stream.opened();
    const client = await mqtt(other).connected();
    for (const { deviceId } of [device, other]) {
      expect(await operate('POST', `devices/${deviceId}/credentials/revoke`, {})).to.include({ http: 200, revoked: 1 });
    }
    expect((await poll).http).to.equal(401);
    expect(await stream.code()).to.equal(status.UNAUTHENTICATED);
    expect(await client.closed()).to.deep.equal([0x87]);
    expect(await results(other)).to.deep.equal(refused);
    expect(await operate('GET', `devices/${device.deviceId}`)).not.to.have.property('certificate_expires_at');
    expect(await results(device)).to.deep.equal(refused);
    const { device_certificates: listed } = await operate(
      'GET',
      `device-certificates?revoked=true&device_id=${device.deviceId}`,
    );
    const certificate = new X509Certificate(device.certificate);
    expect(listed).to.have.length(1);
    const [row] = listed as [Record<string, string>];
    expect(row['serial_number']!.toUpperCase()).to.equal(certificate.serialNumber);
    expect(row['revoked_at']).to.be.a('string');
    expect(
      (await operate('GET', 'device-certificates?revoked=true', undefined, stranger))['device_certificates'],
    ).to.deep.equal([]);
    const { events } = await operate('GET', `devices/${device.deviceId}/history`);
    expect((events as { kind: string; to: string }[]).find(({ kind }) => kind === 'credential')?.to).to.equal('');
  });

  it('are rotated by an operator with a new request', async () => {
    const device = await certified();
    const keys = await newKeys();
    const rotate = (body: object) => operate('POST', `devices/${device.deviceId}/credentials/rotate`, body);
    expect(await rotate({})).to.include({ http: 400, message: 'csr is required: the device has certificates' });
    expect((await rotate({ csr: await csrOf(await newKeys('rsa')) })).http).to.equal(400);
    expect(await results(device)).to.deep.equal(accepted);
    const graceful = await rotate({ csr: await csrOf(keys, device.deviceId), grace_seconds: 3600 });
    const second = { ...device, keys, certificate: graceful['certificate'] as string };
    expect(await results(device)).to.deep.equal(accepted);
    expect(await results(second)).to.deep.equal(accepted);
    const { certificate } = await rotate({ csr: await csrOf(keys) });
    await becomesRefused(device);
    await becomesRefused(second);
    expect(await results({ ...second, certificate: certificate as string })).to.deep.equal(accepted);
  });

  it('are renewed by the device itself, again if the response is lost', async () => {
    const device = await certified();
    const keys = await newKeys('ed25519');
    const route = `devices/${device.deviceId}/credentials/renew`;
    const renew = async (by: Certified, body: object = {}) =>
      rest(by, 'POST', route, { body: { csr: await csrOf(keys, device.deviceId), ...body } });
    const lost = await renew(device);
    const received = await renew(device);
    const renewed = { ...device, keys, certificate: received['certificate'] as string };
    expect(await results(device)).to.deep.equal(accepted);
    expect(await results({ ...renewed, certificate: lost['certificate'] as string })).to.deep.equal(refused);
    expect(await results(renewed)).to.deep.equal(accepted);
    expect((await renew(await certified())).http).to.equal(403);
    expect(await renew(renewed, { csr: 'x' })).to.include({ http: 400 });
    expect((await operate('POST', route, { csr: await csrOf(keys) })).http).to.equal(403);
    const last = await renew(renewed, { grace_seconds: 0 });
    expect(last.http).to.equal(200);
    await eventually(async () => (await pending(renewed)).http === 401);
  });

  it('are not renewed by the gateway of their device, which would take over its identity', async () => {
    const [gateway, child] = [await certified(), await certified()];
    const { hardware_id } = await operate('GET', `devices/${child.deviceId}`);
    const connected = await rest(gateway, 'POST', `gateway/${gateway.deviceId}/connect`, { body: { hardware_id } });
    expect(connected).to.deep.include({ http: 200, device_id: child.deviceId, created: false });
    const body = { csr: await csrOf(await newKeys()) };
    expect((await rest(gateway, 'POST', `devices/${child.deviceId}/credentials/renew`, { body })).http).to.equal(404);
    expect((await pending(child)).http).to.equal(200);
    expect((await rest(child, 'POST', `devices/${child.deviceId}/credentials/renew`, { body })).http).to.equal(200);
  });

  it('are renewed until there are 80 that have not expired, which leaves room for an operator to rotate them', async () => {
    const device = await certified();
    const keys = await newKeys();
    const body = { csr: await csrOf(keys) };
    const renew = () => rest(device, 'POST', `devices/${device.deviceId}/credentials/renew`, { body });
    for (let count = 1; count < 80; count += 1) expect((await renew()).http, `renewal ${count}`).to.equal(200);
    expect(await renew()).to.include({ http: 429, code: 'RESOURCE_EXHAUSTED' });
    const rotated = await operate('POST', `devices/${device.deviceId}/credentials/rotate`, body);
    expect(rotated.http).to.equal(200);
    await becomesRefused(device);
    expect(await results({ ...device, keys, certificate: rotated['certificate'] as string })).to.deep.equal(accepted);
  });

  it('are not renewed with a certificate that an operator has replaced, while its period of grace lasts', async () => {
    const device = await certified();
    const renew = async (by: Certified) =>
      rest(by, 'POST', `devices/${device.deviceId}/credentials/renew`, { body: { csr: await csrOf(await newKeys()) } });
    const keys = await newKeys();
    const rotated = await operate('POST', `devices/${device.deviceId}/credentials/rotate`, {
      csr: await csrOf(keys),
      grace_seconds: 3600,
    });
    const second = { ...device, keys, certificate: rotated['certificate'] as string };
    expect(await renew(device)).to.include({
      http: 400,
      message: 'an administrator has replaced this certificate: the new one can be renewed',
    });
    expect(await results(device)).to.deep.equal(accepted);
    expect(await results(second)).to.deep.equal(accepted);
    expect((await renew(second)).http).to.equal(200);
  });

  it('end with their device, and with their authority', async () => {
    const deleted = await certified();
    expect(await results(deleted)).to.deep.equal(accepted);
    await operate('DELETE', `devices/${deleted.deviceId}`);
    await becomesRefused(deleted);
    const device = await certified();
    const client = await mqtt(device).connected();
    const issuer = (await operate('GET', 'device-authorities'))['device_authorities'] as { authority_id: string }[];
    const route = `device-authorities/${issuer.at(-1)!.authority_id}`;
    expect((await operate('DELETE', route, undefined, stranger)).http).to.equal(404);
    expect((await operate('DELETE', route)).http).to.equal(200);
    expect((await operate('DELETE', route)).http).to.equal(404);
    expect(await client.closed()).to.deep.equal([0x87]);
    await becomesRefused(device);
    // The next certificate has a new authority.
    expect(await results(await certified())).to.deep.equal(accepted);
  });

  it('are in a revocation list that their authority has signed, once they are revoked', async () => {
    const devices: Certified[] = [];
    while (devices.length < 5) devices.push(await certified());
    const [revoked, rotated, renewed, deleted, other] = devices;
    const csr = await csrOf(await newKeys());
    await operate('POST', `devices/${revoked!.deviceId}/credentials/revoke`, {});
    await operate('POST', `devices/${rotated!.deviceId}/credentials/rotate`, { csr });
    const renewal = { csr, grace_seconds: 0 };
    await rest(renewed!, 'POST', `devices/${renewed!.deviceId}/credentials/renew`, { body: renewal });
    await operate('DELETE', `devices/${deleted!.deviceId}`);
    // In the grace period its certificate is still accepted.
    await rest(other!, 'POST', `devices/${other!.deviceId}/credentials/renew`, { body: { csr } });

    const { device_authorities: authorities } = await operate('GET', 'device-authorities');
    const signing = (authorities as { authority_id: string; certificate: string }[]).at(-1)!;
    const route = `device-authorities/${signing.authority_id}/crl`;
    const get = (headers: Record<string, string> = {}) =>
      raw({}, 'GET', route, { request: { headers: { 'x-api-key': link.operators[tenant]!, ...headers } } });
    const { http, bytes, headers } = await get();
    expect([http, headers['content-type'], headers['cache-control']]).to.deep.equal([
      200,
      'application/pkix-crl',
      'private, no-cache',
    ]);
    const list = new X509Crl(bytes);
    const { publicKey } = new ReadCertificate(signing.certificate);
    expect(await list.verify({ publicKey })).to.equal(true);
    expect(list.nextUpdate!.getTime() - list.thisUpdate.getTime()).to.equal(86_400_000);
    const isListed = ({ certificate }: Certified) =>
      list.findRevoked(new X509Certificate(certificate).serialNumber.toLowerCase()) !== null;
    expect([revoked, rotated, renewed, deleted, other].map((device) => isListed(device!))).to.deep.equal([
      ...[true, true, true, true],
      false,
    ]);
    // What proxies do with it.
    if (spawnSync('openssl', ['version']).status === 0) {
      const file = (name: string, content: string | Buffer): string => {
        writeFileSync(path.join(folder, name), content);
        return path.join(folder, name);
      };
      const [authority, crl] = [file('authority.pem', signing.certificate), path.join(folder, 'list.pem')];
      spawnSync('openssl', ['crl', '-inform', 'DER', '-in', file('list.der', bytes), '-out', crl]);
      const verify = (device: Certified): string => {
        const words = [
          'verify',
          '-crl_check',
          '-CAfile',
          authority,
          '-CRLfile',
          crl,
          file('d.pem', device.certificate),
        ];
        const { stdout, stderr } = spawnSync('openssl', words, { encoding: 'utf8' });
        return `${stdout}${stderr}`;
      };
      for (const device of [revoked, rotated, renewed]) expect(verify(device!)).to.contain('certificate revoked');
      expect(verify(other!)).to.contain('d.pem: OK');
    }

    const unchanged = await get({ 'if-none-match': headers.etag! });
    expect([unchanged.http, unchanged.bytes.length, unchanged.headers.etag]).to.deep.equal([304, 0, headers.etag]);
    expect((await get({ 'if-none-match': '"another"' })).bytes).to.deep.equal(bytes);
    expect((await operate('GET', route, undefined, stranger)).http).to.equal(404);
    expect((await rest(other!, 'GET', route)).http).to.equal(403);
    await operate('DELETE', `device-authorities/${signing.authority_id}`);
    expect(await operate('GET', route)).to.include({ http: 400, code: 'FAILED_PRECONDITION' });
  });

  it('are accepted from the header of a trusted proxy, and of no other peer', async () => {
    const device = await certified();
    const headers = { 'x-client-cert': encodeURIComponent(device.certificate) };
    const route = `devices/${device.deviceId}/rpc/pending`;
    const from = (localAddress: string) => rest({}, 'GET', route, { request: { headers, localAddress } });
    expect((await from(proxy)).http).to.equal(200);
    expect((await from('127.0.0.1')).http).to.equal(401);
    // The proxy's own certificate is not the client's.
    const request = { localAddress: proxy };
    expect((await rest(device, 'GET', route, { request })).http).to.equal(401);
  });

  it('are signed by supplied authorities, if these may sign and come with their key', async () => {
    const keys = await newKeys();
    const create_ = async (certificate: Promise<string> | string, key = keys) =>
      (await operate('POST', 'device-authorities', { certificate: await certificate, private_key: key.pem }, stranger))
        .http;
    expect(await create_(certificateOf(keys, 'a'))).to.equal(400);
    expect(await create_(certificateOf(keys, 'a', { isAuthority: true, days: [-3, -1] }))).to.equal(400);
    expect(await create_(certificateOf(keys, 'a', { isAuthority: true, days: [1, 3] }))).to.equal(400);
    expect(await create_(certificateOf(keys, 'a', { isAuthority: true }), await newKeys())).to.equal(400);
    expect(await create_('garbage')).to.equal(400);
    expect(await create_('')).to.equal(400);
    const rsa = await newKeys('rsa');
    expect(await create_(certificateOf(rsa, 'rsa', { isAuthority: true }), rsa)).to.equal(200);
    expect(await results(await certified(stranger))).to.deep.equal(accepted);
    const { rows } = await link.test.database.system((tx) => tx.query('SELECT private_key FROM device_authorities'));
    expect(JSON.stringify(rows)).not.to.contain('PRIVATE');
  });

  it('keep working after the certificate of the server is replaced', async () => {
    const device = await certified();
    const keys = await newKeys();
    const another = await certificateOf(keys, 'another', { isAuthority: true });
    const shown = (port: number): Promise<string> =>
      new Promise((resolve, reject) => {
        const socket = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false, ALPNProtocols: ['h2'] }, () => {
          resolve(String(socket.getPeerCertificate().subject.CN));
          socket.destroy();
        });
        socket.on('error', reject);
      });
    writeFileSync(path.join(folder, 'tls.key'), keys.pem);
    writeFileSync(path.join(folder, 'tls.crt'), another);
    const { restPort, grpcPort, mqttTlsPort } = secure.ports;
    for (const port of [restPort, grpcPort, mqttTlsPort!]) {
      await eventually(async () => (await shown(port)) === 'another', 30_000);
    }
    serverCertificate = another;
    expect(await results(device)).to.deep.equal(accepted);
  });

  describe('that are pre-shared keys', () => {
    interface Shared {
      readonly deviceId: string;
      readonly apiKey: string;
      readonly identity: string;
      readonly psk: Buffer;
    }
    const sharedOf = (result: Record<string, unknown>, deviceId: string): Shared => ({
      deviceId,
      apiKey: result['api_key'] as string,
      identity: result['psk_identity'] as string,
      psk: Buffer.from(result['psk'] as string, 'hex'),
    });
    const shared = async (tenantId = tenant): Promise<Shared> => {
      made += 1;
      const body = { hardware_id: `shared-${made}`, credential_type: 'psk' };
      const result = await operate('POST', 'devices', body, tenantId);
      return sharedOf(result, (result['device'] as { device_id: string }).device_id);
    };
    const versions: [string, object][] = [
      ['TLS 1.2', { maxVersion: 'TLSv1.2', ciphers: 'PSK' }],
      ['TLS 1.3', { minVersion: 'TLSv1.3' }],
    ];
    const connect = ({ identity, psk }: Pick<Shared, 'identity' | 'psk'>, options: object): TestClient =>
      new TestClient(`mqtts://127.0.0.1:${secure.ports.mqttTlsPort}`, {
        ...{
          protocolVersion: 5,
          servername: 'localhost',
          rejectUnauthorized: false,
          checkServerIdentity: () => undefined,
        },
        ...{ pskCallback: () => ({ psk, identity }) },
        ...options,
      });

    for (const [version, options] of versions) {
      it(`open MQTT connections over ${version}`, async () => {
        const device = await shared();
        const client = await connect(device, options).connected();
        expect(await client.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
        const { psk, ...body } = await operate('POST', `devices/${device.deviceId}/credentials/rotate`, {});
        expect(psk).not.to.equal(device.psk.toString('hex'));
        expect(await client.closed()).to.deep.equal([0x87]);
        expect(await mqttCode(connect(device, options))).to.equal(0x87);
        const rotated = sharedOf({ ...body, psk }, device.deviceId);
        expect(await mqttCode(connect(rotated, options))).to.equal(0);
        const key = { username: device.deviceId, password: rotated.apiKey };
        expect(
          await mqttCode(connect(rotated, { ...options, ...key, pskCallback: undefined, ciphers: undefined })),
        ).to.equal(0);
      });

      it(`do not open them without the key over ${version}`, async () => {
        const device = await shared();
        // A well-formed identity that was never issued.
        const invented = `${device.deviceId}.${'0'.repeat(16)}`;
        const attempts = [
          { ...device, psk: Buffer.alloc(32, 1) },
          { ...device, identity: device.deviceId },
          { ...device, identity: invented },
        ];
        for (const attempt of attempts) {
          // The handshake fails, or it continues with the server's certificate and proves nothing.
          expect(String(await mqttCode(connect(attempt, options)))).to.match(/^135$|EPROTO|SSL|ECONNRESET/);
        }
      });
    }

    it('are not proven by an identity that the handshake did not use', async () => {
      const device = await shared();
      // The key goes with SHA-256 only: the handshake completes with the server's certificate instead.
      const options = { minVersion: 'TLSv1.3', ciphers: 'TLS_AES_256_GCM_SHA384' };
      const wrong = { ...device, psk: Buffer.alloc(32, 1) };
      expect(await mqttCode(connect(wrong, options))).to.equal(0x87);
    });

    it('end, like certificates, when the tenant is suspended, and neither points nor wills follow', async () => {
      const { database } = link.test;
      const suspend = (suspended: boolean) => database.system((tx) => setSuspended(tx, stranger, suspended));
      const payload = JSON.stringify({ numeric_values: { will: 1 } });
      const will = { topic: 'kellet/v1/telemetry', payload, qos: 1 as const };
      const devices = [await shared(stranger), await shared(stranger), await certified(stranger)];
      const connectAll = () => [
        connect(devices[0] as Shared, { ...versions[0]![1], will }),
        connect(devices[1] as Shared, { ...versions[1]![1], will }),
        mqtt(devices[2] as Certified, { will }),
      ];
      const clients = await Promise.all(connectAll().map((client) => client.connected()));
      const acknowledged = clients.map(() => 0);
      const sending = clients.map(async (client, index) => {
        for (; !client.isClosed; acknowledged[index]! += 1) {
          if ((await client.publish('telemetry', { numeric_values: { a: 1 } }).catch(() => 1)) !== 0) return;
        }
      });
      await eventually(() => acknowledged.every((count) => count > 3));
      const begin = performance.now();
      await suspend(true);
      const reasons = await Promise.all(clients.map((client) => client.closed()));
      expect(performance.now() - begin).to.be.below(1000);
      expect(reasons).to.deep.equal([[0x87], [0x87], [0x87]]);
      await Promise.all(sending.map((each, index) => Promise.race([each, eventually(() => clients[index]!.isClosed)])));
      expect(await Promise.all(connectAll().map(mqttCode))).to.deep.equal([0x87, 0x87, 0x87]);
      await suspend(false);
      await eventually(async () => (await mqttCode(connectAll()[0]!)) === 0);
      for (const { deviceId } of devices) {
        const range = 'start=2026-01-01T00:00:00Z&end=2100-01-01T00:00:00Z';
        const result = await operate('GET', `telemetry/${deviceId}?${range}`, undefined, stranger);
        expect(result.http, JSON.stringify(result)).to.equal(200);
        const points = result['points'];
        const values = (points as { numeric_values: Record<string, number> }[]).map((point) => point.numeric_values);
        expect(values).to.not.be.empty;
        expect(values.some((value) => 'will' in value)).to.equal(false);
      }
    });

    it('are not resumed, so that no later connection rests on a handshake of before', async () => {
      for (const maxVersion of ['TLSv1.2', 'TLSv1.3'] as const) {
        const device = await certified();
        const options = {
          ...{ host: '127.0.0.1', port: secure.ports.mqttTlsPort, servername: 'localhost', rejectUnauthorized: false },
          ...{ cert: device.certificate, key: device.keys.pem, maxVersion },
        };
        const first = connectTls(options);
        let session: Buffer | undefined;
        first.on('session', (given: Buffer) => (session = given));
        await once(first, 'secureConnect');
        session ??= first.getSession();
        first.destroy();
        const { cert: _cert, key: _key, ...without } = options;
        const second = connectTls({ ...without, ...(session && { session }) });
        await once(second, 'secureConnect');
        expect(second.isSessionReused(), maxVersion).to.equal(false);
        second.destroy();
      }
    });

    it('and certificates open nothing in the name of another device', async () => {
      const [one, other] = [await shared(), await shared()];
      const [mine, foreign] = [await certified(), await certified(stranger)];
      const attempts = [
        connect(one, { ...versions[1]![1], username: other.deviceId }),
        connect(one, { ...versions[1]![1], username: other.deviceId, password: one.apiKey }),
        connect({ ...one, identity: other.identity }, versions[1]![1]),
        mqtt(mine, { username: one.deviceId }),
        mqtt(mine, { username: one.deviceId, password: other.apiKey }),
        mqtt(mine, { username: foreign.deviceId }),
        mqtt({ ...mine, certificate: foreign.certificate }),
      ];
      for (const attempt of attempts) expect(await mqttCode(attempt)).to.not.equal(0);
      // A password counts, whatever the handshake has proven.
      expect(await mqttCode(mqtt(mine, { username: one.deviceId, password: one.apiKey }))).to.equal(0);
    });

    it('are not stored, and not exported', async () => {
      const device = await shared();
      const stored = await link.test.database.system((tx) =>
        tx.query('SELECT row_to_json(k) AS row FROM api_keys k WHERE device_id = $1', [device.deviceId]),
      );
      const headers = { 'x-api-key': link.operators[tenant]! };
      const exported = await raw({}, 'GET', 'devices/export?format=ndjson', { request: { headers } });
      const text = JSON.stringify(stored.rows) + exported.text;
      expect(text).to.contain(device.deviceId);
      for (const secret of [device.psk.toString('hex'), device.apiKey, device.identity.split('.')[1]!]) {
        expect(text).not.to.contain(secret);
      }
    });
  });

  describe('that are claimed', () => {
    const claim = (key: string, hardwareId: string, csr?: string) =>
      rest({}, 'POST', 'provision', {
        body: {
          ...{ provision_key: key, hardware_id: hardwareId, device_name: 'claimed' },
          ...(csr !== undefined && { csr }),
        },
      });
    const templateOf = async (credentialType: 'Psk' | 'Certificate'): Promise<string> => {
      const dispatcher = provisioningDispatcher(link.test.database);
      await applyProfile(dispatcher, { tenantId: tenant, name: 'claimed' });
      const key = mintProvisionKey();
      const name = `template-${credentialType.toLowerCase()}`;
      const spec = { profileRef: { name: 'claimed' }, credentialType, keyUse: 'Once' as const };
      const { refusal } = await applyTemplate(dispatcher, { tenantId: tenant, name }, key, spec);
      expect(refusal).to.equal(undefined);
      return key;
    };

    it('are certificates if the template says so, and bad requests use up nothing', async () => {
      const key = await templateOf('Certificate');
      const keys = await newKeys();
      const bad = [undefined, '', 'garbage', 'x'.repeat(20_000), await csrOf(await newKeys('rsa'))];
      for (const csr of bad) {
        const result = await claim(key, 'claimed-1', csr);
        expect(result).to.include({ http: 400, code: 'INVALID_ARGUMENT' });
        expect(result.message).to.match(/^csr/);
      }
      const csr = await csrOf(keys, 'claimed-1');
      const result = await claim(key, 'claimed-1', csr);
      expect(result).to.include({ http: 200, api_key: '' });
      const device = {
        keys,
        deviceId: result['device_id'] as string,
        certificate: result['certificate'] as string,
      };
      expect(await results(device)).to.deep.equal(accepted);
      expect(await claim(key, 'claimed-1', csr)).to.deep.equal(result);
      const thief = await claim(key, 'claimed-1', await csrOf(await newKeys()));
      expect(thief).to.deep.equal({ http: 200, device_id: device.deviceId, api_key: '' });
    });

    it('are pre-shared keys if the template says so', async () => {
      const key = await templateOf('Psk');
      expect((await claim(key, 'claimed-2', await csrOf(await newKeys()))).http).to.equal(400);
      const result = await claim(key, 'claimed-2');
      expect(result['psk']).to.match(/^[0-9a-f]{64}$/);
      expect(result['api_key']).to.match(/^sk_live_/);
      const again = await claim(key, 'claimed-2');
      expect(again).to.deep.equal({ http: 200, device_id: result['device_id'], api_key: '' });
    });
  });

  // A suite of its own, so that it runs last.
  describe('in unfinished handshakes', () => {
    it('do not keep a process from stopping', async () => {
      const { restPort, grpcPort, mqttTlsPort } = secure.ports;
      // Handshakes that never begin, and an idle connection.
      const sockets = [restPort, grpcPort, mqttTlsPort!].map((port) => connectSocket(port, '127.0.0.1'));
      sockets.push(connectTls({ port: restPort, host: '127.0.0.1', rejectUnauthorized: false }));
      for (const socket of sockets) socket.on('error', () => undefined);
      await eventually(() => sockets.every((socket) => !socket.connecting));
      secure.child.kill('SIGTERM');
      expect((await secure.ended).end).to.equal(0);
      for (const socket of sockets) socket.destroy();
    });
  });
});
