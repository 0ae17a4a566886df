import { expect } from 'chai';
import { anchoringTransaction, BATCH_ID } from '../testing/sound-bundle.ts';
import { toHex } from './bytes.ts';
import { commitmentScript, findCommitment, parseCommitmentScript } from './commitment.ts';
import { MalformedError, RefutedError } from './errors.ts';
import { sha256d } from './sha256.ts';

const merkleRoot = sha256d(Uint8Array.of(1));
const commitment = { merkleRoot, batchId: BATCH_ID, timestampSeconds: 1_760_000_030, count: 1000 };
const script = commitmentScript(commitment);

/** Returns the script with the byte at `offset` changed. */
function changed(offset: number, byte: number): Uint8Array {
  const copy = Uint8Array.from(script);
  copy[offset] = byte;
  return copy;
}

describe('commitment', () => {
  it('encodes 66 bytes after OP_FALSE OP_RETURN, with the root at offset 6', () => {
    expect(toHex(script)).to.equal(
      '006a42' + '4b454c4c4554' + toHex(merkleRoot) + BATCH_ID.replaceAll('-', '') + '0000000068e7781e' + '000003e8',
    );
    expect(parseCommitmentScript(script)).to.deep.equal(commitment);
  });

  const broken: [string, Uint8Array][] = [
    ['another tag', changed(4, 0x65)],
    ['another push', changed(2, 0x43)],
    ['no OP_FALSE', changed(0, 0x51)],
    ['another opcode', changed(1, 0x6b)],
    ['one byte less', script.subarray(0, -1)],
    ['one byte more', Uint8Array.of(...script, 0)],
    ['a zero count', Uint8Array.of(...script.subarray(0, 65), 0, 0, 0, 0)],
    ['a timestamp out of range', changed(57, 0xff)],
  ];
  for (const [name, bytes] of broken) {
    it(`rejects ${name}`, () => expect(() => parseCommitmentScript(bytes)).to.throw(MalformedError));
  }

  for (const change of [
    { batchId: BATCH_ID.toUpperCase() },
    { count: 0 },
    { count: 2 ** 32 },
    { timestampSeconds: -1 },
    { merkleRoot: new Uint8Array(31) },
  ]) {
    it(`refuses to encode ${JSON.stringify(change).slice(0, 40)}`, () => {
      expect(() => commitmentScript({ ...commitment, ...change })).to.throw(RangeError);
    });
  }

  it('rejects a transaction with no data output, with two, or with data of another kind', () => {
    const transaction = anchoringTransaction(merkleRoot, 7);
    expect(findCommitment(transaction).count).to.equal(7);
    const [data, change] = transaction.outputs;
    expect(() => findCommitment({ ...transaction, outputs: [change!] })).to.throw(RefutedError, '0 outputs');
    expect(() => findCommitment({ ...transaction, outputs: [data!, data!] })).to.throw(RefutedError, '2 outputs');
    const other = { satoshis: 0n, lockingScript: Uint8Array.of(0x00, 0x6a, 0x01, 0x00) };
    expect(() => findCommitment({ ...transaction, outputs: [other, change!] })).to.throw(MalformedError);
    expect(() => findCommitment({ ...transaction, outputs: [data!, other] })).to.throw(RefutedError, '2 outputs');
  });
});
