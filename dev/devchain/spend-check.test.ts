import { LockingScript, P2PKH, PrivateKey, Transaction, TransactionSignature, UnlockingScript } from '@bsv/sdk';
import { expect } from 'chai';
import { ArcProblem } from './arc-problem.ts';
import { checkAlone, checkSpends, minFee } from './spend-check.ts';
import { readSubmissions, type Submission } from './submission.ts';
import { TestWallet } from './testing/wallet.ts';

const wallet = new TestWallet();
const lockingScript = new P2PKH().lock(wallet.address);

/** Returns an output of `satoshis` in an arbitrary transaction. */
function funded(satoshis: number): Transaction {
  const source = new Transaction();
  source.addInput({ sourceTXID: '22'.repeat(32), sourceOutputIndex: 0, unlockingScript: new UnlockingScript() });
  source.addOutput({ satoshis, lockingScript });
  return source;
}

const read = (transaction: Transaction): Submission =>
  readSubmissions(Uint8Array.from(transaction.toEF())).transactions[0]!;

/** Runs both checks as for a submission; the spent outputs are those that it states. */
function check(submission: Submission): void {
  checkAlone(submission.txid, submission.raw, submission.transaction);
  checkSpends(submission.txid, submission.raw, submission.transaction, submission.stated!);
}

/** Creates a spend with these outputs, signed by the owner. */
async function spend(outputs: { satoshis: number; lockingScript: LockingScript }[]): Promise<Transaction> {
  const transaction = new Transaction();
  transaction.addInput({
    sourceTransaction: funded(1000),
    sourceOutputIndex: 0,
    unlockingScriptTemplate: new P2PKH().unlock(wallet.key),
  });
  for (const output of outputs) transaction.addOutput(output);
  await transaction.sign();
  return transaction;
}

/** Creates a spend with another unlocking script. */
async function unlocking(script: (signed: UnlockingScript) => UnlockingScript): Promise<Transaction> {
  const transaction = await spend([{ satoshis: 900, lockingScript }]);
  transaction.inputs[0]!.unlockingScript = script(transaction.inputs[0]!.unlockingScript!);
  return transaction;
}

/** Returns the signature in an unlocking script with its last byte, the scope it covers, replaced. */
function withScope(signed: UnlockingScript, scope: number): UnlockingScript {
  const [signature, publicKey] = signed.chunks.map((chunk) => chunk.data!);
  return new UnlockingScript().writeBin([...signature!.slice(0, -1), scope]).writeBin(publicKey!);
}

describe('the processor’s rules', () => {
  it('accept a signed P2PKH spend with a data output and the minimum fee', async () => {
    check(read(await wallet.anchor({ source: funded(2), index: 0 })));
  });

  it('accept a bare multisignature spend, because scripts are executed', async () => {
    const keys = [PrivateKey.fromRandom(), PrivateKey.fromRandom()];
    const source = funded(1000);
    const script = LockingScript.fromASM(
      `OP_1 ${keys.map((key) => key.toPublicKey().toString()).join(' ')} OP_2 OP_CHECKMULTISIG`,
    );
    source.outputs[0]!.lockingScript = script;
    const transaction = new Transaction();
    transaction.addInput({ sourceTransaction: source, sourceOutputIndex: 0, unlockingScript: new UnlockingScript() });
    transaction.addOutput({ satoshis: 900, lockingScript });
    const scope = TransactionSignature.SIGHASH_ALL | TransactionSignature.SIGHASH_FORKID;
    const { signature } = await sign(transaction, source, script, keys[1]!, scope);
    transaction.inputs[0]!.unlockingScript = new UnlockingScript().writeOpCode(0).writeBin(signature);
    check(read(transaction));
  });

  const refused: { what: string; make: () => Promise<Transaction>; status: number; says: RegExp }[] = [
    {
      what: 'no fee',
      make: () => wallet.anchor({ source: funded(2), index: 0 }, { fee: 0 }),
      status: 465,
      says: /minimum expected fee: 1, actual fee: 0$/,
    },
    {
      what: 'more out than in',
      make: () => spend([{ satoshis: 1001, lockingScript }]),
      status: 465,
      says: /actual fee: 0$/,
    },
    {
      what: 'a foreign key',
      make: () => wallet.anchor({ source: funded(2), index: 0 }, { signer: PrivateKey.fromRandom() }),
      status: 461,
      says: /./,
    },
    {
      what: 'a signature of something else',
      make: async () => {
        const transaction = await spend([{ satoshis: 900, lockingScript }]);
        transaction.outputs[0]!.satoshis = 901;
        return transaction;
      },
      status: 461,
      says: /^arc error 461: Signature must be zero for failed CHECK\(MULTI\)SIG operation$/,
    },
    {
      what: 'a signature without SIGHASH_FORKID',
      make: () => unlocking((signed) => withScope(signed, TransactionSignature.SIGHASH_ALL)),
      status: 461,
      says: /signature format/,
    },
    { what: 'no unlocking script', make: () => unlocking(() => new UnlockingScript()), status: 461, says: /./ },
    {
      what: 'an unlocking script that does more than push',
      make: () => unlocking((signed) => UnlockingScript.fromHex(`${signed.toHex()}76`)),
      status: 463,
      says: /not push only/,
    },
    {
      what: 'a data output of value',
      make: () => spend([{ satoshis: 1, lockingScript: LockingScript.fromHex('006a0101') }]),
      status: 464,
      says: /non 0 value op return/,
    },
    {
      what: 'an output of nothing',
      make: () => spend([{ satoshis: 0, lockingScript }]),
      status: 464,
      says: /satoshis is invalid/,
    },
    {
      what: 'one output spent twice',
      make: async () => {
        const transaction = await spend([{ satoshis: 900, lockingScript }]);
        transaction.inputs.push(transaction.inputs[0]!);
        return transaction;
      },
      status: 462,
      says: /second time/,
    },
  ];
  for (const { what, make, status, says } of refused) {
    it(`reject ${what} with ${status}`, async () => {
      const submission = read(await make());
      expect(() => check(submission))
        .to.throw(ArcProblem)
        .with.property('body')
        .that.includes({
          status,
          txid: submission.txid,
        });
      expect(() => check(submission))
        .to.throw(ArcProblem)
        .with.nested.property('body.extraInfo')
        .match(says);
    });
  }

  it('require one satoshi per started thousand bytes', () => {
    expect([1, 999, 1000, 1001, 34_000].map((bytes) => minFee(bytes))).to.deep.equal([1n, 1n, 1n, 2n, 34n]);
  });
});

/** Signs input 0 over a given script. */
async function sign(
  transaction: Transaction,
  source: Transaction,
  script: LockingScript,
  key: PrivateKey,
  scope: number,
) {
  const unlockingScript = await new P2PKH()
    .unlock(key, 'all', false, source.outputs[0]!.satoshis, script)
    .sign(transaction, 0);
  const signature = unlockingScript.chunks[0]!.data!;
  expect(signature.at(-1)).to.equal(scope);
  return { signature };
}
