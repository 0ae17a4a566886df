// A client's wallet: a key, and anchoring transactions built and signed by the SDK alone, independent of devchain's
// code.
import { LockingScript, P2PKH, PrivateKey, Transaction } from '@bsv/sdk';

/** A P2PKH output that the wallet can spend. */
export interface Spendable {
  readonly source: Transaction;
  readonly index: number;
}

export interface AnchorOptions {
  /** Satoshis left to the miner; the minimum for such a transaction is 1. */
  readonly fee?: number;
  /** First byte of the payload, so that two spends of one output differ. */
  readonly mark?: number;
  /** Signs with a key other than the owner's. */
  readonly signer?: PrivateKey;
}

export class TestWallet {
  readonly key = PrivateKey.fromRandom();
  readonly address = this.key.toAddress();

  /** Builds a transaction with one P2PKH input, an output `OP_FALSE OP_RETURN` with 66 bytes, and change. */
  async anchor({ source, index }: Spendable, { fee = 1, mark = 0, signer = this.key }: AnchorOptions = {}) {
    const payload = Buffer.alloc(66, mark).toString('hex');
    const transaction = new Transaction();
    transaction.addInput({
      sourceTransaction: source,
      sourceOutputIndex: index,
      unlockingScriptTemplate: new P2PKH().unlock(signer),
    });
    transaction.addOutput({ satoshis: 0, lockingScript: LockingScript.fromHex(`006a42${payload}`) });
    const change = source.outputs[index]!.satoshis! - fee;
    if (change > 0) transaction.addOutput({ satoshis: change, lockingScript: new P2PKH().lock(this.address) });
    await transaction.sign();
    return transaction;
  }
}
