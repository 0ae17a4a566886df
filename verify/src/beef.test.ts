import { readFileSync } from 'node:fs';
import { Beef as SdkBeef, Transaction as SdkTransaction } from '@bsv/sdk';
import { expect } from 'chai';
import { anchoringTransaction } from '../testing/sound-bundle.ts';
import { buildBeef, parseBeef } from './beef.ts';
import { buildBump, serialiseBump } from './bump.ts';
import { concatBytes, encodeVarint, fromHex, toDisplayHex, toHex } from './bytes.ts';
import { MalformedError } from './errors.ts';
import { merkleRoot } from './merkle.ts';
import { sha256d } from './sha256.ts';
import { serialiseTransaction, transactionId, txidOf } from './transaction.ts';

const raw = serialiseTransaction(anchoringTransaction(sha256d(Uint8Array.of(1)), 3));
const txids = [sha256d(Uint8Array.of(0)), transactionId(raw), sha256d(Uint8Array.of(2))];
const bump = buildBump(100, txids, 1);
const beef = buildBeef(raw, bump);
/** A transaction that spends the anchoring transaction. */
const child = serialiseTransaction({
  ...anchoringTransaction(sha256d(Uint8Array.of(2)), 4),
  inputs: [
    { previousTxid: transactionId(raw), previousOutputIndex: 1, unlockingScript: new Uint8Array(1), sequence: 0 },
  ],
});

const version = fromHex('0100beef');
const proven = concatBytes(raw, Uint8Array.of(1, 0));
const unproven = concatBytes(child, Uint8Array.of(0));
const otherBump = serialiseBump(buildBump(100, txids, 0));

/** Returns a BEEF of these BUMPs and these transactions, each including what follows it. */
function assemble(bumps: Uint8Array[], transactions: Uint8Array[]): Uint8Array {
  return concatBytes(version, encodeVarint(bumps.length), ...bumps, encodeVarint(transactions.length), ...transactions);
}

describe('beef', () => {
  it('builds one transaction with its BUMP, valid according to @bsv/sdk', () => {
    const theirs = SdkBeef.fromBinary([...beef]);
    expect(theirs.isValid()).to.be.true;
    expect(theirs.txs.map((tx) => tx.txid)).to.deep.equal([txidOf(raw)]);
    const transaction = SdkTransaction.fromBEEF([...beef]);
    expect(transaction.merklePath!.computeRoot(txidOf(raw))).to.equal(toDisplayHex(merkleRoot(txids)));
    const parsed = parseBeef(beef);
    expect(toHex(parsed.transactions[0]!.raw)).to.equal(toHex(raw));
    expect(toHex(serialiseBump(parsed.bumps[0]!))).to.equal(toHex(serialiseBump(bump)));
  });

  it('parses a child after its parent', () => {
    const parsed = parseBeef(assemble([serialiseBump(bump)], [proven, unproven]));
    expect(parsed.transactions.map((transaction) => transaction.bumpIndex)).to.deep.equal([0, undefined]);
  });

  it("parses the BEEF in the SDK's tests that the SDK itself would write and rejects its faulty ones", () => {
    let read = 0;
    for (const file of ['Beef.test.ts', 'Transaction.test.ts']) {
      const url = new URL(`../../src/transaction/__tests/${file}`, import.meta.resolve('@bsv/sdk'));
      for (const [, hex] of readFileSync(url, 'utf8').matchAll(/'(0100beef[0-9a-f]+)'/g)) {
        if (isSdkBeef(hex!)) {
          expect(parseBeef(fromHex(hex!)).transactions.length).to.be.greaterThan(0);
          read++;
        } else {
          expect(() => parseBeef(fromHex(hex!))).to.throw(MalformedError);
        }
      }
    }
    expect(read).to.be.greaterThan(1);
  });

  const broken: [string, Uint8Array, RegExp][] = [
    ['another version', concatBytes(fromHex('0200beef'), beef.subarray(4)), /version 1/],
    ['a trailing byte', concatBytes(beef, Uint8Array.of(0)), /trailing/],
    ['a missing byte', beef.subarray(0, -1), /too early/],
    ['no transaction', assemble([], []), /no transaction/],
    ['a transaction with neither BUMP nor parents', assemble([], [concatBytes(raw, Uint8Array.of(0))]), /neither/],
    ['a child before its parent', assemble([serialiseBump(bump)], [unproven, proven]), /neither/],
    ['a missing BUMP', assemble([serialiseBump(bump)], [concatBytes(raw, Uint8Array.of(1, 1))]), /does not exist/],
    [
      'a BUMP of other transactions',
      assemble([serialiseBump(buildBump(100, [txids[0]!, txids[2]!], 0))], [proven]),
      /not in BUMP 0/,
    ],
    ['an unused BUMP', assemble([serialiseBump(bump), otherBump], [proven]), /no transaction uses/],
    ['the same transaction twice', assemble([serialiseBump(bump)], [proven, proven]), /repeated/],
    ['an unknown flag', assemble([serialiseBump(bump)], [concatBytes(raw, Uint8Array.of(2, 0))]), /flag 2/],
  ];
  for (const [name, bytes, says] of broken) {
    it(`rejects ${name}`, () => expect(() => parseBeef(bytes)).to.throw(MalformedError, says));
  }
});

/**
 * Reports whether the SDK considers it valid and serialises it the same way: its parser accepts repeated and misordered
 * transactions.
 */
function isSdkBeef(hex: string): boolean {
  const beef = SdkBeef.fromString(hex);
  return beef.isValid() && beef.toHex() === hex;
}
