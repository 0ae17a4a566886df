// The node's JSON-RPC at POST /rpc, as far as Kellet uses it: getbestblockhash, getblockcount, getblockhash,
// getblockheader and getblock, single or in a batch, with a node's error codes. It responds while `unavailable_ms` runs,
// because that fault concerns the processor.
import { parseHeader, toDisplayHex, toHex } from '@kellet/verify';
import type { Block, Chain } from './chain.ts';
import { type HttpRequest, type HttpResponse, parseJson } from './http.ts';

interface Result {
  readonly result: unknown;
  readonly error: { readonly code: number; readonly message: string } | null;
  readonly id: unknown;
}

/** A call that is refused, with the node's error code. */
class Refusal extends Error {
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** The path of the routes. */
export const nodePath = '/rpc';

/** Returns the response to a request of the node's API. */
export function handleNode(chain: Chain, request: HttpRequest): HttpResponse {
  const parsed = parseJson(request.body);
  if (request.method !== 'POST' || 'error' in parsed) return { status: 400, body: { message: 'not a JSON-RPC call' } };
  const { value } = parsed;
  if (Array.isArray(value)) return { status: 200, body: value.map((call: unknown) => reply(chain, call)) };
  const only = reply(chain, value);
  return { status: only.error ? 500 : 200, body: only };
}

function reply(chain: Chain, call: unknown): Result {
  const { id = null, method, params = [] } = (call ?? {}) as { id?: unknown; method?: unknown; params?: unknown[] };
  try {
    return { result: run(chain, String(method), params), error: null, id };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return { result: null, error: { code: error.code, message: error.message }, id };
  }
}

function run(chain: Chain, method: string, [first, verbosity]: readonly unknown[]): unknown {
  switch (method) {
    case 'getbestblockhash':
      return chain.tip.hash;
    case 'getblockcount':
      return chain.tip.height;
    case 'getblockhash': {
      const block = typeof first === 'number' ? chain.at(first) : undefined;
      if (!block) throw new Refusal(-8, 'Block height out of range');
      return block.hash;
    }
    case 'getblockheader': {
      const block = blockOf(chain, first);
      return verbosity === false ? toHex(block.header) : { ...describe(chain, block), nTx: block.txids.length };
    }
    case 'getblock': {
      const block = blockOf(chain, first);
      if (verbosity !== 1 && verbosity !== true) throw new Refusal(-8, 'devchain supports verbosity 1 only');
      return { ...describe(chain, block), tx: block.txids };
    }
    default:
      throw new Refusal(-32601, 'Method not found');
  }
}

function blockOf(chain: Chain, hash: unknown): Block {
  const block = typeof hash === 'string' ? chain.block(hash.toLowerCase()) : undefined;
  if (!block) throw new Refusal(-5, 'Block not found');
  return block;
}

function describe(chain: Chain, block: Block) {
  const { version, previousHash, merkleRoot, time, bits, nonce } = parseHeader(block.header);
  return {
    ...{ hash: block.hash, height: block.height, version, time, nonce },
    confirmations: chain.isActive(block) ? chain.tip.height - block.height + 1 : -1,
    merkleroot: toDisplayHex(merkleRoot),
    previousblockhash: toDisplayHex(previousHash),
    bits: bits.toString(16).padStart(8, '0'),
  };
}
