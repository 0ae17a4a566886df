// Signs P2PKH inputs with SIGHASH_ALL | SIGHASH_FORKID, the digest that BSV adopted from BIP 143.
import {
  concatBytes,
  encodeUint32,
  encodeUint64,
  encodeVarint,
  fromDisplayHex,
  sha256d,
  type Transaction,
  type TransactionOutput,
} from '@kellet/verify';
import type { WalletKey } from './wallet-key.ts';

/** SIGHASH_ALL | SIGHASH_FORKID. */
const SIGHASH = 0x41;

/** A spendable output. */
export interface Coin {
  /** Display hex. */
  readonly txid: string;
  readonly outputIndex: number;
  readonly satoshis: bigint;
}

/**
 * Builds a transaction that spends coins of the key, with all inputs signed. Its lock time is 0, so `sequence` delays
 * nothing: it only distinguishes otherwise identical transactions.
 */
export function signTransaction(
  coins: readonly Coin[],
  outputs: readonly TransactionOutput[],
  key: WalletKey,
  sequence = 0xffff_ffff,
): Transaction {
  const transaction: Transaction = {
    version: 1,
    inputs: coins.map((coin) => ({
      previousTxid: fromDisplayHex(coin.txid),
      previousOutputIndex: coin.outputIndex,
      unlockingScript: new Uint8Array(0),
      sequence,
    })),
    outputs: [...outputs],
    lockTime: 0,
  };
  for (const [index, coin] of coins.entries()) {
    const signature = key.sign(signatureDigest(transaction, index, coin.satoshis, key.lockingScript));
    transaction.inputs[index]!.unlockingScript = concatBytes(
      encodeVarint(signature.length + 1),
      signature,
      Uint8Array.of(SIGHASH),
      encodeVarint(key.publicKey.length),
      key.publicKey,
    );
  }
  return transaction;
}

/** Returns the digest that input `index` signs: the double SHA-256 of the BIP 143 preimage with hash type 0x41. */
function signatureDigest(
  transaction: Transaction,
  index: number,
  satoshis: bigint,
  lockingScript: Uint8Array,
): Uint8Array {
  const outpoint = (input: Transaction['inputs'][number]) =>
    concatBytes(input.previousTxid, encodeUint32(input.previousOutputIndex));
  const input = transaction.inputs[index]!;
  return sha256d(
    concatBytes(
      encodeUint32(transaction.version),
      sha256d(concatBytes(...transaction.inputs.map(outpoint))),
      sha256d(concatBytes(...transaction.inputs.map(({ sequence }) => encodeUint32(sequence)))),
      outpoint(input),
      encodeVarint(lockingScript.length),
      lockingScript,
      encodeUint64(satoshis),
      encodeUint32(input.sequence),
      sha256d(
        concatBytes(
          ...transaction.outputs.flatMap((output) => [
            encodeUint64(output.satoshis),
            encodeVarint(output.lockingScript.length),
            output.lockingScript,
          ]),
        ),
      ),
      encodeUint32(transaction.lockTime),
      encodeUint32(SIGHASH),
    ),
  );
}
