import { LockingScript, P2PKH, PrivateKey, Transaction as SdkTransaction, UnlockingScript } from '@bsv/sdk';
import { expect } from 'chai';
import { fromHex, toHex } from './bytes.ts';
import { findCommitment } from './commitment.ts';
import { MalformedError } from './errors.ts';
import { parseTransaction, serialiseTransaction, type Transaction, txidOf } from './transaction.ts';

/** Returns an SDK transaction with the given numbers of inputs and outputs and length of scripts. */
function sdkTransaction(inputs: number, outputs: number, scriptBytes: number): SdkTransaction {
  const script = toHex(new Uint8Array(scriptBytes).fill(0x61));
  return new SdkTransaction(
    2,
    Array.from({ length: inputs }, (_, i) => ({
      sourceTXID: i.toString(16).padStart(64, 'a'),
      sourceOutputIndex: i,
      unlockingScript: UnlockingScript.fromHex(script),
      sequence: 0xffff_fffe,
    })),
    Array.from({ length: outputs }, (_, i) => ({ satoshis: i * 1e12, lockingScript: LockingScript.fromHex(script) })),
    777,
  );
}

const small = parseTransaction(fromHex(sdkTransaction(1, 1, 3).toHex()));
const serialised = serialiseTransaction(small);

describe('transaction', () => {
  for (const [inputs, outputs, scriptBytes] of [
    [1, 1, 5],
    [1, 2, 252],
    [2, 253, 253],
    [300, 1, 65_536],
  ] as const) {
    it(`parses and serialises ${inputs} inputs, ${outputs} outputs, scripts of ${scriptBytes} bytes as @bsv/sdk does`, () => {
      const theirs = sdkTransaction(inputs, outputs, scriptBytes);
      const raw = fromHex(theirs.toHex());
      const ours = parseTransaction(raw);
      expect(toHex(serialiseTransaction(ours))).to.equal(theirs.toHex());
      expect(txidOf(raw)).to.equal(theirs.id('hex'));
      expect(ours.inputs).to.have.length(inputs);
      expect(ours.outputs.at(-1)!.satoshis).to.equal(BigInt((outputs - 1) * 1e12));
      expect(ours.lockTime).to.equal(777);
    });
  }

  it('writes what @bsv/sdk signs and parses', async () => {
    const key = PrivateKey.fromHex('01'.repeat(32));
    const source = sdkTransaction(1, 1, 1);
    source.outputs[0] = { satoshis: 5000, lockingScript: new P2PKH().lock(key.toPublicKey().toHash()) };
    const spend = new SdkTransaction();
    spend.addInput({
      sourceTransaction: source,
      sourceOutputIndex: 0,
      unlockingScriptTemplate: new P2PKH().unlock(key),
    });
    spend.addOutput({ satoshis: 4999, lockingScript: new P2PKH().lock(key.toPublicKey().toHash()) });
    await spend.sign();
    const raw = serialiseTransaction(parseTransaction(fromHex(spend.toHex())));
    expect(SdkTransaction.fromHex(toHex(raw)).id('hex')).to.equal(txidOf(raw));
  });

  it('parses a transaction that a node mined, and its commitment', () => {
    // Recorded in extended format between ARC 1.5.11 and a Bitcoin SV node on regtest.
    const raw = SdkTransaction.fromHexEF(
      '010000000000000000ef018a041b658f29cc8a5e5d9da3691e260aa1e4cbc55516c7db195415742c1e9356010000006a47304402201e05592f' +
        '2c0fb412f9e4400162de499700d4c678a91cc86794e46fe28cc1717702201eb530023f2c16ef4d780eb0286911901115ee5cb0f99da6cda' +
        '64fca9cb73c02412102e09874eb68df5acd06cbf69d679cac4d2f4a1040c9620bef8aa1d32f2a12ff6affffffff40420f00000000001976' +
        'a9144e9b93b798fb0c289e79e140f23f03c3395c087f88ac02000000000000000045006a424b454c4c4554000102030405060708090a0b0' +
        'c0d0e0f101112131415161718191a1b1c1d1e1f11111111111111111111111111111111000001a1fd8e6780000000033f420f0000000000' +
        '1976a9144e9b93b798fb0c289e79e140f23f03c3395c087f88ac00000000',
    ).toHex();
    expect(txidOf(fromHex(raw))).to.equal('a18443d7bb2602c5e55139b8c9bbd380eb15569f0147afa1ceae1084d6e291aa');
    const commitment = findCommitment(parseTransaction(fromHex(raw)));
    expect(toHex(commitment.merkleRoot)).to.equal('000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f');
    expect(commitment.batchId).to.equal('11111111-1111-1111-1111-111111111111');
    expect(commitment.count).to.equal(3);
  });

  const broken: [string, Uint8Array, RegExp][] = [
    ['a trailing byte', Uint8Array.of(...serialised, 0), /1 trailing bytes/],
    ['a missing byte', serialised.subarray(0, -1), /too early/],
    ['nothing', new Uint8Array(0), /too early/],
    [
      'a count in a longer form',
      Uint8Array.of(...serialised.subarray(0, 4), 0xfd, 1, 0, ...serialised.subarray(5)),
      /shortest/,
    ],
    [
      'more inputs than bytes',
      Uint8Array.of(...serialised.subarray(0, 4), 0xfc, ...serialised.subarray(5)),
      /more than the remaining/,
    ],
    [
      'an enormous count',
      Uint8Array.of(...serialised.subarray(0, 4), 0xff, ...new Uint8Array(8).fill(0xff)),
      /out of range/,
    ],
    ['no inputs', serialiseTransaction({ ...small, inputs: [] }), /without inputs/],
    ['no outputs', serialiseTransaction({ ...small, outputs: [] }), /without outputs/],
    ['more satoshis than exist', serialiseTransaction(withSatoshis(2_100_000_000_000_001n)), /satoshis/],
    [
      'the extended format',
      Uint8Array.of(1, 0, 0, 0, 0, 0, 0, 0, 0, 0xef, ...serialised.subarray(4)),
      /without inputs/,
    ],
  ];
  for (const [name, raw, says] of broken) {
    it(`rejects ${name}`, () => expect(() => parseTransaction(raw)).to.throw(MalformedError, says));
  }

  it('rejects exactly 64 bytes, the length of an inner node of a block', () => {
    const of = (bytes: number): Transaction => ({
      ...small,
      inputs: [{ ...small.inputs[0]!, unlockingScript: new Uint8Array(bytes) }],
      outputs: [{ satoshis: 0n, lockingScript: new Uint8Array(0) }],
    });
    for (const bytes of [3, 4, 5]) {
      const raw = serialiseTransaction(of(bytes));
      if (raw.length === 64) expect(() => parseTransaction(raw)).to.throw(MalformedError, '64 bytes');
      else expect(toHex(serialiseTransaction(parseTransaction(raw)))).to.equal(toHex(raw));
    }
    expect(serialiseTransaction(of(4))).to.have.length(64);
  });
});

function withSatoshis(satoshis: bigint): Transaction {
  return { ...small, outputs: [{ ...small.outputs[0]!, satoshis }] };
}
