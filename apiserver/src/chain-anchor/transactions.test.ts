// Checks the hand-built transactions against another implementation: the SDK parses them, and its interpreter runs
// their scripts.
import { randomBytes } from 'node:crypto';
import { LockingScript, P2PKH, PrivateKey, Spend, Transaction as SdkTransaction } from '@bsv/sdk';
import { findCommitment, parseTransaction, toHex, txidOf } from '@kellet/verify';
import { expect } from 'chai';
import {
  anchorCoinRange,
  anchorFee,
  COMMITMENT_BYTES,
  feeFor,
  PAYMENT_BYTES,
  transactionBytes,
} from './processor/fees.ts';
import { buildAnchorTransaction } from './wallet/anchor-transaction.ts';
import type { Coin } from './wallet/sign-transaction.ts';
import { buildSplitTransaction, planSplit, splitAmounts } from './wallet/split-transaction.ts';
import { createWalletKey } from './wallet/wallet-key.ts';

const rate = { satoshis: 1, bytes: 1000 };
const commitment = {
  merkleRoot: new Uint8Array(randomBytes(32)),
  batchId: '0198f3a2-7c41-7d3e-9b52-4f6a8c1e2d30',
  timestampSeconds: 1_760_000_030,
  count: 1000,
};
const newCoin = (satoshis = 1n): Coin => ({ txid: randomBytes(32).toString('hex'), outputIndex: 3, satoshis });

/** Reports whether every input's script unlocks its coin under the rules that BSV nodes enforce. */
function isSpendable(raw: Uint8Array, coins: readonly Coin[], lockingScript: Uint8Array): boolean {
  const sdk = SdkTransaction.fromHex(toHex(raw));
  return sdk.inputs.every((input, inputIndex) =>
    new Spend({
      sourceTXID: input.sourceTXID!,
      sourceOutputIndex: input.sourceOutputIndex,
      sourceSatoshis: Number(coins[inputIndex]!.satoshis),
      lockingScript: LockingScript.fromHex(toHex(lockingScript)),
      transactionVersion: sdk.version,
      otherInputs: sdk.inputs.filter((_, index) => index !== inputIndex),
      outputs: sdk.outputs,
      inputIndex,
      unlockingScript: input.unlockingScript!,
      inputSequence: input.sequence!,
      lockTime: sdk.lockTime,
      verifyFlags: [
        'UTXO_AFTER_GENESIS',
        'SIGHASH_FORKID',
        'STRICTENC',
        'DERSIG',
        'LOW_S',
        'NULLFAIL',
        'MINIMALDATA',
        'SIGPUSHONLY',
        'CLEANSTACK',
      ],
    }).validate(),
  );
}

describe('the wallet key', () => {
  it('has the address and script that the SDK derives, on each network', () => {
    for (let i = 0; i < 20; i += 1) {
      const sdk = PrivateKey.fromRandom();
      const key = createWalletKey(sdk.toHex().padStart(64, '0'), 'main');
      expect(key.address).to.equal(sdk.toAddress());
      expect(createWalletKey(sdk.toHex().padStart(64, '0'), 'local').address).to.equal(sdk.toAddress('testnet'));
      expect(toHex(key.lockingScript)).to.equal(new P2PKH().lock(sdk.toAddress()).toHex());
    }
  });

  it('rejects an invalid key without echoing it', () => {
    for (const text of ['', '00'.repeat(32), 'ff'.repeat(32), 'secret', 'ab'.repeat(31)]) {
      expect(() => createWalletKey(text, 'main'))
        .to.throw('not a private key')
        .with.property('message')
        .that.does.not.include(text || 'nothing');
    }
  });
});

describe('the anchoring transaction', () => {
  const key = createWalletKey(randomBytes(32).toString('hex'), 'local');

  it('has one input and only the commitment as output, unlocks its coin and pays the fee', () => {
    for (let i = 0; i < 50; i += 1) {
      const coin = newCoin(anchorFee(rate));
      const { raw, txid } = buildAnchorTransaction([coin], commitment, 1, key);
      const transaction = parseTransaction(raw);
      expect(transaction.inputs).to.have.length(1);
      expect(transaction.outputs).to.have.length(1);
      expect(toHex(transaction.outputs[0]!.lockingScript).slice(0, 18)).to.equal('006a424b454c4c4554');
      expect(transaction.outputs[0]!.satoshis).to.equal(0n);
      expect(findCommitment(transaction)).to.deep.equal(commitment);
      expect(txid)
        .to.equal(txidOf(raw))
        .and.to.equal(SdkTransaction.fromHex(toHex(raw)).id('hex'));
      expect(isSpendable(raw, [coin], key.lockingScript)).to.equal(true);
      expect(raw.length).to.be.at.most(transactionBytes(1, COMMITMENT_BYTES));
      expect(coin.satoshis >= feeFor(raw.length, rate)).to.equal(true);
    }
  });

  it('differs between attempts with the same coins', () => {
    const coins = [newCoin(), newCoin()];
    const attempts = [1, 2, 3].map((attempt) => buildAnchorTransaction(coins, commitment, attempt, key));
    expect(new Set(attempts.map(({ txid }) => txid)).size).to.equal(3);
    for (const { raw } of attempts) expect(isSpendable(raw, coins, key.lockingScript)).to.equal(true);
    expect(buildAnchorTransaction(coins, commitment, 2, key)).to.deep.equal(attempts[1]);
  });

  it('does not unlock a coin of a different value or key', () => {
    const coin = newCoin(5n);
    const { raw } = buildAnchorTransaction([coin], commitment, 1, key);
    const other = createWalletKey(randomBytes(32).toString('hex'), 'local');
    expect(() => isSpendable(raw, [{ ...coin, satoshis: 6n }], key.lockingScript)).to.throw();
    expect(() => isSpendable(raw, [coin], other.lockingScript)).to.throw();
  });
});

describe('fees', () => {
  const cases: [bytes: number, satoshis: number, per: number, expected: bigint][] = [
    [240, 1, 1000, 1n],
    [1000, 1, 1000, 1n],
    [1001, 1, 1000, 2n],
    [240, 50, 1000, 12n],
    [240, 500, 1000, 120n],
    [240, 0, 1000, 1n],
    [34_000, 0, 1000, 34n],
    [240, 1, 0, 1n],
    [240, 0.5, 1, 120n],
  ];
  for (const [bytes, satoshis, per, expected] of cases) {
    it(`${bytes} bytes at ${satoshis} for ${per}: ${expected}`, () => {
      expect(feeFor(bytes, { satoshis, bytes: per })).to.equal(expected);
    });
  }

  it('an anchor coin pays for an anchor with some margin', () => {
    expect(anchorCoinRange(rate)).to.deep.equal({ least: 1n, most: 10n });
    expect(anchorCoinRange({ satoshis: 50, bytes: 1000 })).to.deep.equal({ least: 12n, most: 120n });
  });
});

describe('the split', () => {
  const key = createWalletKey(randomBytes(32).toString('hex'), 'local');
  const cases: [satoshis: bigint, denomination: bigint, wanted: number, outputs: number | undefined][] = [
    [100_000n, 1n, 1000, 1000],
    [100_000n, 1n, 5000, 1000],
    [100_000n, 12n, 1000, 1000],
    [100n, 12n, 1000, 8],
    [25n, 12n, 10, 2],
    [24n, 12n, 10, undefined],
    [12n, 12n, 10, undefined],
    [3n, 1n, 10, 2],
    [2n, 1n, 10, undefined],
  ];
  for (const [satoshis, denomination, wanted, outputs] of cases) {
    it(`${satoshis} into ${wanted} of ${denomination}: ${outputs ?? 'too small'}`, () => {
      const plan = planSplit(satoshis, denomination, wanted, rate);
      expect(plan?.outputs).to.equal(outputs);
      if (!plan) return;
      const coin = newCoin(satoshis);
      const { raw } = buildSplitTransaction(coin, plan, 1, key);
      const paid = splitAmounts(plan).reduce((sum, amount) => sum + amount, 0n);
      expect(satoshis - paid >= feeFor(raw.length, rate), 'the fee').to.equal(true);
      expect(
        satoshis - paid <= feeFor(raw.length + PAYMENT_BYTES + 10, rate) + denomination,
        'no more than that',
      ).to.equal(true);
      expect(parseTransaction(raw).outputs.map((output) => output.satoshis)).to.deep.equal(splitAmounts(plan));
      expect(isSpendable(raw, [coin], key.lockingScript)).to.equal(true);
    });
  }
});
