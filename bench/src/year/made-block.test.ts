import { randomUUID } from 'node:crypto';
import {
  bumpOfTree,
  findCommitment,
  merkleLevels,
  parseTransaction,
  serialiseBump,
  toHex,
  transactionId,
} from '@kellet/verify';
import { expect } from 'chai';
import { hashBytes, leafHash, merkleRoot } from '../../../apiserver/src/telemetry/points/leaf-hashes.ts';
import { parsePayload } from '../../../apiserver/src/telemetry/points/payload.ts';
import { idText } from './batch-rows.ts';
import { BinaryRows } from './binary-rows.ts';
import { MadeBlock, payloadOf, type SendingDevice, valueOf } from './made-block.ts';

const deviceOf = (tenantId: string, place: number): SendingDevice => {
  const deviceId = randomUUID();
  return { tenantId, deviceId, bytes: Buffer.from(deviceId.replaceAll('-', ''), 'hex'), place };
};

/** Points per batch, of blocks with so many batches. */
const shapes = [
  { batches: 0, points: 4 },
  { batches: 1, points: 1 },
  { batches: 2, points: 5 },
  { batches: 6, points: 4 },
  { batches: 7, points: 24 },
  { batches: 300, points: 3 },
];

describe('blocks of a year', () => {
  const block = new MadeBlock();
  const miner = Buffer.alloc(32, 9);
  const at = 1_700_000_000;

  for (const { batches, points } of shapes) {
    it(`are what the verifier computes, with ${batches} batches of ${points} points`, () => {
      block.clear();
      const devices = Array.from({ length: batches }, (_, index) => deviceOf(`tenant-${index * 7}`, index));
      for (const [index, device] of devices.entries())
        block.addBatch(device, at + index, index * points, points, at + 30);
      const root = Buffer.from(block.buildTree(miner));
      const ids: Uint8Array[] = [miner];
      for (const [index, { tenantId, deviceId }] of devices.entries()) {
        const leaves = Array.from({ length: points }, (_, leaf) =>
          leafHash(tenantId, deviceId, at + index + leaf, payloadOf(index * points + leaf)),
        );
        const stored = block.leaves.subarray(block.leavesAt[index], block.leavesAt[index]! + points * 32);
        expect(stored.equals(hashBytes(leaves)), 'leaves').to.equal(true);
        const raw = block.transactions.subarray(block.transactionAt(index), block.transactionAt(index + 1));
        const commitment = findCommitment(parseTransaction(raw));
        expect(toHex(commitment.merkleRoot)).to.equal(hashBytes([merkleRoot(leaves)]).toString('hex'));
        expect(commitment.batchId).to.equal(idText(block.ids, index * 16));
        expect([commitment.timestampSeconds, commitment.count]).to.deep.equal([at + 30, points]);
        ids.push(transactionId(raw));
      }
      const tree = merkleLevels(ids);
      expect(root.toString('hex')).to.equal(toHex(tree.at(-1)![0]!));
      for (const index of devices.keys()) {
        const bump = serialiseBump(bumpOfTree(70_000 - index, tree, index + 1));
        expect(block.bumpOf(index, 70_000 - index).toString('hex')).to.equal(toHex(bump));
      }
      expect(new Set(devices.map((_, index) => idText(block.ids, index * 16))).size).to.equal(batches);
    });
  }

  it('have payloads with the value of their number', () => {
    for (const number of [0, 1, 899, 900, 120_000_001])
      expect(parsePayload(payloadOf(number))).to.deep.equal({
        numericValues: { temperature: valueOf(number), voltage: 3.3 },
        stringValues: { state: 'on' },
      });
  });
});

describe('rows of COPY', () => {
  it('have numbers and times as PostgreSQL reads them', () => {
    const rows = new BinaryRows(64);
    rows.row(4);
    rows.int8(2 ** 53 - 1);
    rows.nanoseconds(1_764_000_007);
    rows.timestamp(1_764_000_007);
    rows.reversedHex(Buffer.from('00ff12', 'hex'), 1, 3);
    const data = rows.take().subarray(19);
    expect(data.readInt16BE(0)).to.equal(4);
    expect(data.readBigInt64BE(6)).to.equal(2n ** 53n - 1n);
    expect(data.readBigInt64BE(18)).to.equal(1_764_000_007_000_000_000n);
    expect(data.readBigInt64BE(30)).to.equal((1_764_000_007n - 946_684_800n) * 1_000_000n);
    expect(data.toString('latin1', 42, 46)).to.equal('12ff');
    expect(data.readInt16BE(46)).to.equal(-1);
  });

  it('grow beyond their size', () => {
    const rows = new BinaryRows(8);
    for (let row = 0; row < 5; row += 1) {
      rows.row(1);
      rows.bytes(Buffer.alloc(60_000, row));
    }
    const data = rows.take();
    expect(data.length).to.equal(19 + 5 * (2 + 4 + 60_000) + 2);
    expect(data[data.length - 3]).to.equal(4);
    expect(rows.isEmpty).to.equal(true);
  });
});
