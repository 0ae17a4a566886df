// Client of a Bitcoin SV node (JSON-RPC): headers, and the transactions of a block.
import { fromHex, type HeaderAtHeight } from '@kellet/verify';
import { readText } from '../../platform/outbound/bounded-body.ts';
import { traceRequestTo } from '../../platform/outbound/outgoing-call.ts';
import { checkedTip, type HeaderSource } from './header-source.ts';

const responseMilliseconds = 10_000;
/** A node takes a while to read a large block. */
const blockMilliseconds = 120_000;
const maximumBytes = 8 * 1024 * 1024;
/** About 1.9 million transaction ids. */
const maximumBlockBytes = 128 * 1024 * 1024;
/** Maximum headers per request. */
const pageHeaders = 500;

/** Error codes of the node: no such block, and a height beyond the tip. */
const unknownBlock = -5;
const invalidParameter = -8;

/** The node refused a call. */
class RpcError extends Error {
  readonly code: number;

  constructor(method: string, code: number, message: string) {
    super(`the node refused ${method}: ${message}`);
    this.code = code;
  }
}

interface Result {
  readonly id?: unknown;
  readonly result?: unknown;
  readonly error?: { readonly code?: unknown; readonly message?: unknown } | null;
}

/** A node. Credentials are part of the URL: `http://user:password@host:8332`. */
export class NodeRpc implements HeaderSource {
  private readonly url: URL;
  private readonly authorization: string;

  constructor(url: string) {
    // The error of the URL constructor would contain the password.
    if (!URL.canParse(url)) throw new Error('KELLET_NODE_RPC_URL is not a URL');
    this.url = new URL(url);
    const [user, password] = [this.url.username, this.url.password].map(decodeURIComponent);
    this.authorization = user === '' ? '' : `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`;
    [this.url.username, this.url.password] = ['', ''];
  }

  async tip(): Promise<{ height: number; hash: string }> {
    const hash = await this.call('getbestblockhash', []);
    const header = (await this.call('getblockheader', [hash, true])) as { height?: unknown } | null;
    return checkedTip(header?.height, hash);
  }

  async headers(from: number, count: number): Promise<HeaderAtHeight[]> {
    const headers: HeaderAtHeight[] = [];
    while (headers.length < count) {
      const first = from + headers.length;
      const size = Math.min(pageHeaders, count - headers.length);
      const hashes = await this.callEach(
        'getblockhash',
        Array.from({ length: size }, (_, index) => [first + index]),
        invalidParameter,
      );
      const known = hashes.slice(0, hashes.includes(undefined) ? hashes.indexOf(undefined) : size);
      const raws = await this.callEach(
        'getblockheader',
        known.map((hash) => [hash, false]),
      );
      headers.push(...raws.map((raw, index) => ({ height: first + index, raw: fromHex(String(raw)) })));
      if (known.length < size) break;
    }
    return headers;
  }

  /** Returns the transaction ids of a block in its order, or undefined if the node does not have it. */
  async txidsOf(blockHash: string): Promise<string[] | undefined> {
    try {
      const limits = { milliseconds: blockMilliseconds, bytes: maximumBlockBytes };
      const block = (await this.call('getblock', [blockHash, 1], limits)) as { tx?: unknown } | null;
      const txids = block?.tx;
      if (!Array.isArray(txids) || txids.length === 0 || !txids.every(isTxid)) {
        throw new Error('the node returned no transaction ids of a block');
      }
      return txids;
    } catch (error) {
      if (error instanceof RpcError && error.code === unknownBlock) return undefined;
      throw error;
    }
  }

  private async call(
    method: string,
    params: readonly unknown[],
    limits = { milliseconds: responseMilliseconds, bytes: maximumBytes },
  ): Promise<unknown> {
    const response = await this.post(method, { jsonrpc: '1.0', id: 0, method, params }, limits);
    return resultOf(method, response as Result);
  }

  /** Makes several calls of one method in a batch. The result of a call that fails with the code `absent` is undefined. */
  private async callEach(method: string, calls: readonly (readonly unknown[])[], absent?: number): Promise<unknown[]> {
    if (calls.length === 0) return [];
    const requests = calls.map((params, id) => ({ jsonrpc: '1.0', id, method, params }));
    const limits = { milliseconds: responseMilliseconds, bytes: maximumBytes };
    const responses = await this.post(method, requests, limits);
    if (!Array.isArray(responses)) throw new Error(`the node did not respond to each call of ${method}`);
    const byId = new Map((responses as Result[]).map((response) => [response.id, response]));
    return calls.map((_, id) => {
      try {
        return resultOf(method, byId.get(id));
      } catch (error) {
        if (absent !== undefined && error instanceof RpcError && error.code === absent) return undefined;
        throw error;
      }
    });
  }

  private post(
    method: string,
    body: unknown,
    { milliseconds, bytes }: { milliseconds: number; bytes: number },
  ): Promise<unknown> {
    return traceRequestTo({ method: 'POST', url: this.url, template: method }, async (setStatus) => {
      const response = await fetch(this.url, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          ...(this.authorization === '' ? {} : { authorization: this.authorization }),
        },
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(milliseconds),
      });
      setStatus(response.status);
      const text = await readText(response, bytes);
      try {
        // A refusal comes with status 500 and says why.
        return JSON.parse(text) as unknown;
      } catch {
        throw new Error(`the node returned ${response.status}`);
      }
    });
  }
}

function resultOf(method: string, response: Result | null | undefined): unknown {
  if (response?.error) {
    const { code, message } = response.error;
    throw new RpcError(method, Number(code), String(message).slice(0, 200));
  }
  if (response?.result === undefined) throw new Error(`the node returned no result of ${method}`);
  return response.result;
}

const isTxid = (value: unknown): value is string => typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
