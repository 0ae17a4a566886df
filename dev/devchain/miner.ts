// The miner's wallet: pays addresses from mature coins, and creates competitors for double-spend faults.
import { LockingScript, P2PKH, PrivateKey, TransactionSignature } from '@bsv/sdk';
import {
  concatBytes,
  encodeVarint,
  fromDisplayHex,
  fromHex,
  messageOf,
  serialiseTransaction,
  sha256,
  toDisplayHex,
  type Transaction,
  type TransactionInput,
  type TransactionOutput,
} from '@kellet/verify';
import { COINBASE_MATURITY } from './block.ts';
import type { Chain, Coin } from './chain.ts';
import { minFee } from './spend-check.ts';

/** A request that cannot be fulfilled; the message gives the reason. */
export class RefusedError extends Error {}

/**
 * Returns the locking script that pays a P2PKH address of any network. Throws RefusedError for a malformed address.
 */
export function addressScript(address: string): Uint8Array {
  try {
    return Uint8Array.from(new P2PKH().lock(address).toBinary());
  } catch (error) {
    throw new RefusedError(`address: ${messageOf(error)}`);
  }
}

/** A key pair that owns coinbases. */
export interface Miner {
  readonly lockingScript: Uint8Array;
  /**
   * Returns a signed transaction that pays these outputs from mature coins, with change back to the miner. Throws
   * RefusedError when the chain holds too few.
   */
  pay(chain: Chain, outputs: readonly TransactionOutput[]): Uint8Array;
}

/** Maximum size of the unlocking script, sequence and outpoint of a P2PKH input. */
const INPUT_BYTES = 149;

/** Creates the miner with this secret key (hex). */
export function createMiner(secretKey: string): Miner {
  const key = PrivateKey.fromHex(secretKey);
  const publicKey = Uint8Array.from(key.toPublicKey().encode(true) as number[]);
  const lockingScript = addressScript(key.toAddress());

  function unlock(transaction: Transaction, coins: readonly Coin[], index: number): Uint8Array {
    const scope = TransactionSignature.SIGHASH_ALL | TransactionSignature.SIGHASH_FORKID;
    const input = transaction.inputs[index]!;
    const preimage = TransactionSignature.format({
      sourceTXID: toDisplayHex(input.previousTxid),
      sourceOutputIndex: input.previousOutputIndex,
      sourceSatoshis: Number(coins[index]!.satoshis),
      transactionVersion: transaction.version,
      otherInputs: transaction.inputs
        .filter((_, other) => other !== index)
        .map((other) => ({
          sourceTXID: toDisplayHex(other.previousTxid),
          sourceOutputIndex: other.previousOutputIndex,
          sequence: other.sequence,
        })),
      outputs: transaction.outputs.map((output) => ({
        satoshis: Number(output.satoshis),
        lockingScript: LockingScript.fromBinary([...output.lockingScript]),
      })),
      inputIndex: index,
      subscript: LockingScript.fromBinary([...lockingScript]),
      inputSequence: input.sequence,
      lockTime: transaction.lockTime,
      scope,
    });
    const signature = key.sign([...sha256(Uint8Array.from(preimage))]);
    const pushed = Uint8Array.from([...(signature.toDER() as number[]), scope]);
    return concatBytes(push(pushed), push(publicKey));
  }

  return {
    lockingScript,
    pay(chain, outputs) {
      const wanted = outputs.reduce((sum, output) => sum + output.satoshis, 0n);
      const height = chain.tip.height + 1;
      const inputs: TransactionInput[] = [];
      const coins: Coin[] = [];
      let gathered = 0n;
      let fee = 0n;
      for (const { key: outpoint, coin } of chain.coinsOf(lockingScript)) {
        if (inputs.length > 0 && gathered > wanted + fee) break;
        if (coin.isCoinbase && height - coin.height < COINBASE_MATURITY) continue;
        const [txid = '', index = ''] = outpoint.split(':');
        inputs.push({
          previousTxid: fromDisplayHex(txid),
          previousOutputIndex: Number(index),
          unlockingScript: new Uint8Array(0),
          sequence: 0xffff_ffff,
        });
        coins.push(coin);
        gathered += coin.satoshis;
        const unsigned = { version: 1, inputs, outputs: [...outputs], lockTime: 0 };
        fee = minFee(serialiseTransaction(unsigned).length + INPUT_BYTES * inputs.length + lockingScript.length + 9);
      }
      const change = gathered - wanted - fee;
      if (change < 1n) throw new RefusedError('the miner does not have enough mature coins; mine some blocks first');
      const transaction: Transaction = {
        version: 1,
        inputs,
        outputs: [...outputs, { satoshis: change, lockingScript }],
        lockTime: 0,
      };
      const scripts = inputs.map((_, index) => unlock(transaction, coins, index));
      return serialiseTransaction({
        ...transaction,
        inputs: inputs.map((input, index) => ({ ...input, unlockingScript: scripts[index]! })),
      });
    },
  };
}

/**
 * Returns a transaction that spends the same outputs as another. Its inputs are not signed, which only their owner
 * could do: faults put it into a block, the one thing in devchain's blocks that a real node would reject.
 */
export function competitorOf(txid: string, transaction: Transaction): Uint8Array {
  const note = concatBytes(new TextEncoder().encode('competitor of '), fromHex(txid));
  return serialiseTransaction({
    version: 1,
    inputs: transaction.inputs.map((input) => ({ ...input, unlockingScript: new Uint8Array(0) })),
    outputs: [{ satoshis: 0n, lockingScript: concatBytes(Uint8Array.of(0x00, 0x6a), push(note)) }],
    lockTime: 0,
  });
}

/** Pushes at most 75 bytes. */
function push(bytes: Uint8Array): Uint8Array {
  return concatBytes(encodeVarint(bytes.length), bytes);
}
