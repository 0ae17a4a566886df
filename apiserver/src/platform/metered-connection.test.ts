import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { expect } from 'chai';
import { MeteredConnection, SpentTimes } from './metered-connection.ts';
import { eventually } from './testing/eventually.ts';

/** A record of TLS. */
const record = (bytes: number): Buffer =>
  Buffer.concat([Buffer.from([23, 3, 3, bytes >> 8, bytes & 255]), Buffer.alloc(bytes)]);

describe('a connection whose handshake is complete', () => {
  it('counts the time of reads with many records, and lets such reads wait', async () => {
    const times = new SpentTimes(0.5, 0);
    let received = 0;
    const server = createServer((socket) => {
      const metered = new MeteredConnection(socket, { owner: 'a', times, untilOpen: true });
      metered.open();
      metered.on('data', (bytes: Buffer) => {
        for (const end = performance.now() + 100; performance.now() < end;);
        received += bytes.length;
      });
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const client = connect((server.address() as AddressInfo).port, '127.0.0.1').setNoDelay(true);
    /** Sends bytes, and returns how long it takes until they are received. */
    const send = async (bytes: Buffer): Promise<number> => {
      const [began, before] = [performance.now(), received];
      client.write(bytes);
      await eventually(() => received === before + bytes.length);
      return performance.now() - began;
    };
    await send(record(1000));
    // Also if the header of a record comes in parts.
    await send(record(16_000).subarray(0, 3));
    await send(Buffer.concat([record(16_000).subarray(3), record(10)]));
    expect(times.wait('a')).to.equal(0);
    const many = Buffer.concat(Array.from({ length: 100 }, () => record(22)));
    await send(many);
    expect(times.wait('a')).to.be.above(50);
    expect(await send(record(1000))).to.be.below(180);
    await send(many);
    expect(await send(many)).to.be.above(200);
    client.destroy();
    server.close();
  });
});
