// Raw bytes through the gateway over real sockets: chunks by range, and streamed uploads.
import { once } from 'node:events';
import { connect } from 'node:net';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { sleep } from '../../platform/clock.ts';
import { failedPrecondition, invalidArgument, KelletError } from '../../platform/errors.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

const size = 150_000;
const artifact = Buffer.from(Array.from({ length: size }, (_, index) => index % 251));

describe('raw bytes', () => {
  let server: TestGateway;
  let received: Buffer[] = [];
  let contentTypes: string[] = [];
  let contentRange: string | undefined;
  let proceed: Promise<void> = Promise.resolve();
  /** The error that ended the last body early. */
  let brokenOff: unknown;

  before(async () => {
    server = await startTestGateway((registry) =>
      registry.register(OtaService, {
        getChunk: async ({ packageId, offset, length = 65_536 }) => {
          if (length < 1 || length > 65_536) throw invalidArgument('length must be from 1 to 65536');
          if (offset >= size) throw invalidArgument('offset must be less than the size');
          const data = artifact.subarray(offset, offset + length);
          return {
            packageId,
            offset,
            length: data.length,
            data,
            sizeBytes: size,
            complete: offset + data.length === size,
          };
        },
        uploadArtifact: async (requests, context) => {
          received = [];
          contentTypes = [];
          contentRange = context.metadata.get('content-range');
          let packageId = '';
          brokenOff = undefined;
          try {
            for await (const request of requests) {
              packageId ||= request.packageId;
              if (packageId === 'unwanted') throw failedPrecondition('not this one');
              if (request.content?.contentType) contentTypes.push(request.content.contentType);
              if (request.content) received.push(Buffer.from(request.content.data));
              await proceed;
            }
          } catch (error) {
            brokenOff = error;
            throw error;
          }
          return { packageId, uploadedBytes: received.reduce((sum, piece) => sum + piece.length, 0) };
        },
      }),
    );
    server.tokens.set('ota', { ...server.tokens.get('admin')!, scopes: ['ota:write'] });
  });
  after(() => server.stop());

  describe('of a chunk', () => {
    const get = (query: string, headers: Record<string, string>, verb = 'GET') =>
      fetch(`${server.rest}/api/v1/devices/d1/ota/chunk?package_id=P1${query}`, {
        method: verb,
        headers: { 'x-api-key': 'device', ...headers },
      });
    const bytes = { accept: 'application/octet-stream' };

    it('are sent only on request, JSON otherwise', async () => {
      const response = await get('&offset=149999', { range: 'bytes=0-1' });
      expect(response.status).to.equal(200);
      expect(response.headers.get('content-range')).to.equal(null);
      expect(await response.json()).to.deep.include({ offset: 149_999, length: 1, complete: true });
    });

    for (const [what, query, range, status, first, last] of [
      ['without a range', '', undefined, 200, 0, 65_535],
      ['by offset', '&offset=65536', undefined, 200, 65_536, 131_071],
      ['by offset and length, at the end', '&offset=149000&length=5000', undefined, 200, 149_000, 149_999],
      ['by a range', '', 'bytes=10-19', 206, 10, 19],
      ['by a range of one byte', '', 'bytes=0-0', 206, 0, 0],
      ['by an open range, cut to a chunk', '', 'bytes=5-', 206, 5, 65_540],
      ['by a long range, cut to a chunk', '', 'bytes=0-149999', 206, 0, 65_535],
      ['by a range beyond the end', '', 'bytes=149990-999999', 206, 149_990, 149_999],
      ['by a range from the end', '', 'bytes=-10', 206, 149_990, 149_999],
      ['by a long range from the end, cut to a chunk', '', 'bytes=-999999', 206, 0, 65_535],
      ['with several ranges, which are ignored', '', 'bytes=0-1,5-6', 200, 0, 65_535],
      ['with an unknown unit', '', 'lines=0-1', 200, 0, 65_535],
    ] as const) {
      it(what, async () => {
        const response = await get(query, { ...bytes, ...(range ? { range } : {}) });
        const body = Buffer.from(await response.arrayBuffer());
        expect(response.status).to.equal(status);
        expect(Object.fromEntries(response.headers)).to.include({
          'content-type': 'application/octet-stream',
          'content-range': `bytes ${first}-${last}/${size}`,
          'content-length': String(last - first + 1),
          'accept-ranges': 'bytes',
          etag: '"p1"',
          'x-kellet-complete': String(last === size - 1),
        });
        expect(body.equals(artifact.subarray(first, last + 1))).to.equal(true);
      });
    }

    for (const range of ['bytes=150000-', 'bytes=150000-150001', 'bytes=99999999999-', 'bytes=-0']) {
      it(`416 for ${range}`, async () => {
        const response = await get('', { ...bytes, range });
        expect(response.status).to.equal(416);
        expect(response.headers.get('content-range')).to.equal(`bytes */${size}`);
        expect(await response.json()).to.include({ code: 'OUT_OF_RANGE' });
      });
    }

    it('honour If-Range', async () => {
      expect((await get('', { ...bytes, range: 'bytes=0-1', 'if-range': '"p1"' })).status).to.equal(206);
      expect((await get('', { ...bytes, range: 'bytes=0-1', 'if-range': '"p2"' })).status).to.equal(200);
    });

    it('reject a length that is too long, and offset together with Range, in JSON', async () => {
      const tooLong = await get('&length=65537', bytes);
      expect(tooLong.status).to.equal(400);
      expect(await tooLong.json()).to.include({ code: 'INVALID_ARGUMENT', message: 'length must be from 1 to 65536' });
      const both = await get('&offset=1', { ...bytes, range: 'bytes=0-1' });
      expect(both.status).to.equal(400);
      expect(await both.text()).to.contain('together with Range');
    });
  });

  describe('of a body', () => {
    const put = (id: string, body: string | Buffer<ArrayBuffer>, headers: Record<string, string> = {}) =>
      fetch(`${server.rest}/api/v1/ota/packages/${id}/artifact`, {
        method: 'PUT',
        headers: { authorization: 'Bearer ota', ...headers },
        body,
      });

    it('reach the handler in pieces, with the headers', async () => {
      const body = Buffer.concat(Array.from({ length: 40 }, () => artifact));
      const response = await put('p%2F1', body, { 'content-type': 'image/x', 'content-range': 'bytes 0-1/2' });
      expect(await response.json()).to.include({ package_id: 'p/1', uploaded_bytes: body.length });
      expect(response.status).to.equal(200);
      expect(Buffer.concat(received).equals(body)).to.equal(true);
      expect(contentTypes).to.deep.equal(['image/x']);
      expect(contentRange).to.equal('bytes 0-1/2');
    });

    it('may be empty', async () => {
      expect(await (await put('p1', '')).json()).to.include({ uploaded_bytes: 0 });
    });

    it('require an authorised credential before any byte is read', async () => {
      expect((await put('p1', 'x', { authorization: 'Bearer viewer' })).status).to.equal(403);
      expect((await put('p1', 'x', { authorization: '' })).status).to.equal(401);
    });

    it('are rejected when compressed', async () => {
      const response = await put('p1', 'x', { 'content-encoding': 'gzip' });
      expect(response.status).to.equal(400);
    });

    it('leave the connection usable when the handler rejects them', async () => {
      const response = await put('unwanted', Buffer.alloc(3_000_000));
      expect(response.status).to.equal(400);
      expect(await response.json()).to.include({ code: 'FAILED_PRECONDITION' });
    });

    it('are not read faster than the handler consumes them', async () => {
      let release: () => void = () => undefined;
      proceed = new Promise((resolve) => (release = resolve));
      const total = 64 * 1024 * 1024;
      const socket = connect(Number(new URL(server.rest).port), '127.0.0.1');
      socket.write(
        `PUT /api/v1/ota/packages/big/artifact HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ota\r\nContent-Length: ${total}\r\n\r\n`,
      );
      socket.write(Buffer.alloc(total));
      let before = -1;
      while (socket.bytesWritten - socket.writableLength !== before) {
        before = socket.bytesWritten - socket.writableLength;
        await sleep(100);
      }
      // Only what the socket buffers of both kernels hold.
      expect(before).to.be.lessThan(total / 2);
      release();
      const [reply] = (await once(socket, 'data')) as [Buffer];
      expect(reply.toString()).to.contain(`"uploaded_bytes":${total}`);
      socket.destroy();
    });

    it('end the call when the client disconnects midway', async () => {
      proceed = Promise.resolve();
      const socket = connect(Number(new URL(server.rest).port), '127.0.0.1');
      socket.write(
        'PUT /api/v1/ota/packages/cut/artifact HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ota\r\nContent-Length: 100\r\n\r\nabc',
      );
      while (Buffer.concat(received).toString() !== 'abc') await sleep(10);
      expect(brokenOff).to.equal(undefined);
      const rejected = async () => {
        const text = await server.metrics.metrics();
        const line = /^kellet_gateway_calls_total\{(?=[^}]*UploadArtifact)(?=[^}]*INVALID_ARGUMENT)[^}]*\} (\d+)/m.exec(
          text,
        );
        return Number(line?.[1] ?? 0);
      };
      const before = await rejected();
      socket.destroy();
      await eventually(async () => (await rejected()) === before + 1);
      expect(brokenOff).to.be.instanceOf(KelletError).that.includes({ code: 'INVALID_ARGUMENT' });
      expect(Buffer.concat(received).toString()).to.equal('abc');
    });
  });
});
