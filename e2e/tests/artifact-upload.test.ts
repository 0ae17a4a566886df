// Artifacts as raw bytes: uploaded in parts for packages created through REST and kubectl, downloaded by range.
import { createHash, randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import { expect } from 'chai';
import type { Rest } from '../../dev/clients/rest.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, kubectl, makeDevice, makeUser, type OtaPackage, unique } from '../testing/fixtures.ts';

type Uploaded = OtaPackage & { uploaded_bytes: number; code?: string; message?: string };

const path = (packageId: string) => `/api/v1/ota/packages/${packageId}/artifact`;

async function put(as: Rest, packageId: string, bytes: Buffer<ArrayBuffer>, contentRange?: string) {
  const response = await fetch(as.base + path(packageId), {
    method: 'PUT',
    headers: {
      authorization: `Bearer ${as.token}`,
      'content-type': 'application/octet-stream',
      ...(contentRange ? { 'content-range': contentRange } : {}),
    },
    body: bytes,
  });
  return { status: response.status, body: (await response.json()) as Uploaded };
}

describe('uploaded artifacts', () => {
  const artifact = randomBytes(5 * 1024 * 1024 + 321);
  const sha256 = createHash('sha256').update(artifact).digest('hex');
  const small = randomBytes(70_000);
  const smallSha256 = createHash('sha256').update(small).digest('hex');
  const declared = { type: 'fw', artifact_uri: 'upload://', sha256, size_bytes: artifact.length };

  it('are sent in parts, resumed after a lost connection, and downloaded by range', async () => {
    const rest = await admin();
    const body = { ...declared, name: unique('uploaded'), version: '1.0.0' };
    const made = await rest.post<Uploaded>('/api/v1/ota/packages', body);
    expect(made).to.include({ status: 'uploading', checksum_verified: false, uploaded_bytes: 0 });

    const [half, all] = [2_500_000, artifact.length];
    const first = await put(rest, made.package_id, artifact.subarray(0, half), `bytes 0-${half - 1}/${all}`);
    expect(first).to.deep.include({ status: 200, body: { ...made, uploaded_bytes: half } });

    const { hostname, port } = new URL(rest.base);
    const socket = connect(Number(port), hostname);
    socket.write(
      `PUT ${path(made.package_id)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${rest.token}\r\n` +
        `Content-Range: bytes ${half}-${all - 1}/${all}\r\nContent-Length: ${all - half}\r\n\r\n`,
    );
    socket.write(artifact.subarray(half, half + 1_500_000));
    const held = async () => (await rest.get<Uploaded>(`/api/v1/ota/packages/${made.package_id}`)).uploaded_bytes;
    await waitUntil(async () => (await held()) > half, { what: 'bytes to be kept', timeoutMilliseconds: 10_000 });
    socket.destroy();

    const finish = async () => {
      const from = await held();
      return put(rest, made.package_id, artifact.subarray(from), `bytes ${from}-${all - 1}/${all}`);
    };
    // The interrupted request may still be writing its last pieces, which causes a 409.
    const last = await waitUntil(
      async () => {
        const response = await finish();
        return response.status === 409 ? undefined : response;
      },
      { what: 'the upload', timeoutMilliseconds: 10_000 },
    );
    expect(last.body).to.include({ status: 'available', checksum_verified: true, uploaded_bytes: all });

    const device = await makeDevice(rest);
    await rest.call('PUT', `/api/v1/devices/${device.deviceId}/ota/assignment`, {
      body: { package_id: made.package_id },
    });
    const download = createHash('sha256');
    for (let at = 0, isComplete = false; !isComplete;) {
      const url = `${rest.base}/api/v1/devices/${device.deviceId}/ota/chunk?package_id=${made.package_id}`;
      const response = await fetch(url, {
        headers: { 'x-api-key': device.rest.token, accept: 'application/octet-stream', range: `bytes=${at}-` },
      });
      expect(response.status).to.equal(206);
      const bytes = Buffer.from(await response.arrayBuffer());
      expect(response.headers.get('content-range')).to.equal(`bytes ${at}-${at + bytes.length - 1}/${all}`);
      download.update(bytes);
      at += bytes.length;
      isComplete = response.headers.get('x-kellet-complete') === 'true';
    }
    expect(download.digest('hex')).to.equal(sha256);
  });

  it('complete a package created with kubectl', async () => {
    const rest = await admin();
    const kube = await kubectl();
    const name = unique('uploaded');
    await kube.apply({
      apiVersion: 'kellet.dev/v1alpha1',
      kind: 'OtaPackage',
      metadata: { name },
      spec: { type: 'Firmware', version: '1.0.0', artifact: { uri: 'upload://', sha256: 'ab'.repeat(32) } },
    });
    await kube.wait(`otapkg/${name}`, 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=AwaitingUpload', 20);
    const { status } = await kube.json<{ status: { packageId: string } }>(['get', 'otapkg', name]);
    const wrong = await put(rest, status.packageId, artifact.subarray(0, 1000));
    expect(wrong).to.deep.include({ status: 400 });
    expect(wrong.body.message).to.contain('checksum mismatch');
    await kube.wait(`otapkg/${name}`, 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=ChecksumMismatch', 20);
    await kube.run(['delete', 'otapkg', name]);

    const right = unique('uploaded');
    await kube.apply({
      apiVersion: 'kellet.dev/v1alpha1',
      kind: 'OtaPackage',
      metadata: { name: right },
      spec: { type: 'Firmware', version: '1.0.0', artifact: { uri: 'upload://', sha256: smallSha256 } },
    });
    await kube.wait(`otapkg/${right}`, 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=AwaitingUpload', 20);
    const waiting = await kube.json<{ status: { packageId: string } }>(['get', 'otapkg', right]);
    expect((await put(rest, waiting.status.packageId, small)).body).to.include({ status: 'available' });
    await kube.wait(`otapkg/${right}`, 'condition=Ready', 20);
    await kube.run(['delete', 'otapkg', right]);
  });

  it('are accepted only from a tenant administrator', async () => {
    const rest = await admin();
    const body = { ...declared, name: unique('uploaded'), version: '1.0.1', sha256: 'cd'.repeat(32) };
    const made = await rest.post<Uploaded>('/api/v1/ota/packages', body);
    for (const role of ['viewer', 'operator'] as const) {
      const { rest: user } = await makeUser(rest, role);
      expect((await put(user, made.package_id, small)).status, role).to.equal(403);
    }
  });
});
