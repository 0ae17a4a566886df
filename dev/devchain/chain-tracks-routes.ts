// The header source's routes, in the shape of ChainTracks v2 as go-chaintracks 1.1 and Arcade serve it: bare JSON
// objects and raw bytes, with none of the {"status","value"} envelope that earlier versions had.
//   GET /network                 {"network"}
//   GET /height                  {"height"}
//   GET /tip                     header          GET /tip.bin                  80 bytes
//   GET /header/height/{height}  header          GET /header/height/{h}.bin    80 bytes
//   GET /header/hash/{hash}      header          GET /header/hash/{hash}.bin   80 bytes
//   GET /headers?height&count    80 bytes each, as many as there are; /headers.bin the same with X-Header-Count
//   GET /tip/stream              server-sent events: the tip at once, then each new one
//   GET /reorg/stream            server-sent events: {"orphanedHashes","commonAncestor","newTip","depth"} and oldTip
// A header is {"version","previousHash","merkleRoot","time","bits","nonce","height","hash"}, hashes in display hex.
// All are served at the root and under /v2.
import type { ServerResponse } from 'node:http';
import { concatBytes, parseHeader, toDisplayHex } from '@kellet/verify';
import type { Block, Chain } from './chain.ts';
import type { Devchain, Reorganisation } from './devchain.ts';
import type { HttpRequest, HttpResponse } from './http.ts';

/** Maximum number of headers in one response. */
const MAXIMUM_HEADERS = 2000;

const KEEP_ALIVE_MILLISECONDS = 15_000;

/** A header as JSON. */
function headerJson(block: Block) {
  const { version, previousHash, merkleRoot, time, bits, nonce } = parseHeader(block.header);
  return {
    version,
    previousHash: toDisplayHex(previousHash),
    merkleRoot: toDisplayHex(merkleRoot),
    time,
    bits,
    nonce,
    height: block.height,
    hash: block.hash,
  };
}

/** Returns the response to a request, or undefined for an unknown path. */
export function handleChainTracks(chain: Chain, request: HttpRequest): HttpResponse | undefined {
  if (request.method !== 'GET') return undefined;
  const path = request.path.replace(/^\/v2(?=\/)/, '');
  const [, kind, key = ''] = /^\/header\/(height|hash)\/([^/]+)$/.exec(path) ?? [];
  if (kind === 'height') return headerResponse(chain, key, byHeight(chain, key.replace(/\.bin$/, '')));
  if (kind === 'hash') return headerResponse(chain, key, byHash(chain, key.replace(/\.bin$/, '')));
  switch (path) {
    case '/network':
      return { status: 200, body: { network: 'regtest' } };
    case '/height':
      return { status: 200, body: { height: chain.tip.height }, headers: noCache };
    case '/tip':
    case '/tip.bin':
      return headerResponse(chain, path, chain.tip);
    case '/headers':
    case '/headers.bin':
      return headersResponse(chain, request.query, path.endsWith('.bin'));
    default:
      return undefined;
  }
}

const noCache = { 'cache-control': 'no-cache' };

function byHeight(chain: Chain, text: string): Block | HttpResponse | undefined {
  const height = unsigned(text);
  return height === undefined ? invalid('Invalid height parameter') : chain.at(height);
}

function byHash(chain: Chain, text: string): Block | HttpResponse | undefined {
  if (!/^[0-9a-f]{64}$/i.test(text)) return invalid('Invalid hash parameter');
  const block = chain.block(text.toLowerCase());
  return block !== undefined && chain.isActive(block) ? block : undefined;
}

function headerResponse(chain: Chain, key: string, found: Block | HttpResponse | undefined): HttpResponse {
  if (found === undefined) return { status: 404, body: { error: 'Header not found' } };
  if ('status' in found) return found;
  return {
    status: 200,
    body: key.endsWith('.bin') ? found.header : headerJson(found),
    headers: { ...cacheFor(chain, found.height), 'x-block-height': found.height.toString() },
  };
}

function headersResponse(chain: Chain, query: URLSearchParams, counted: boolean): HttpResponse {
  const [heightText, countText] = [query.get('height') ?? '', query.get('count') ?? ''];
  if (heightText === '' || countText === '') return invalid('Missing height or count parameter');
  const height = unsigned(heightText);
  if (height === undefined) return invalid('Invalid height parameter');
  const count = unsigned(countText);
  if (count === undefined) return invalid('Invalid count parameter');
  const wanted = Math.min(count, MAXIMUM_HEADERS, Math.max(0, chain.tip.height - height + 1));
  const headers = Array.from({ length: wanted }, (_, i) => chain.at(height + i)!.header);
  const counts = { 'x-start-height': heightText, 'x-header-count': headers.length.toString() };
  return {
    status: 200,
    body: concatBytes(...headers),
    headers: { ...cacheFor(chain, height), ...(counted ? counts : {}) },
  };
}

function invalid(error: string): HttpResponse {
  return { status: 400, body: { error } };
}

function unsigned(text: string): number | undefined {
  return /^\d{1,10}$/.test(text) && Number(text) <= 0xffff_ffff ? Number(text) : undefined;
}

/** Blocks below a depth of a hundred do not change any more. */
function cacheFor(chain: Chain, height: number): Record<string, string> {
  return height + 100 < chain.tip.height ? { 'cache-control': 'public, max-age=3600' } : noCache;
}

/** The two event streams. Uses devchain's listeners. */
export class HeaderStreams {
  private readonly chain: Chain;
  private readonly tip = new Set<ServerResponse>();
  private readonly reorg = new Set<ServerResponse>();
  private readonly keepAlive: NodeJS.Timeout;

  constructor(devchain: Devchain) {
    this.chain = devchain.ledger.chain;
    devchain.listeners.tip = (block) => broadcast(this.tip, headerJson(block));
    devchain.listeners.reorganised = (reorganisation) =>
      broadcast(this.reorg, reorganisationJson(this.chain, reorganisation));
    this.keepAlive = setInterval(() => {
      for (const response of [...this.tip, ...this.reorg]) response.write(': keepalive\n\n');
    }, KEEP_ALIVE_MILLISECONDS);
  }

  /** Opens a stream on a response; returns false for an unknown path. */
  open(path: string, response: ServerResponse): boolean {
    const name = path.replace(/^\/v2(?=\/)/, '');
    const clients = name === '/tip/stream' ? this.tip : name === '/reorg/stream' ? this.reorg : undefined;
    if (clients === undefined) return false;
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' });
    response.flushHeaders();
    clients.add(response);
    response.on('close', () => clients.delete(response));
    if (clients === this.tip) broadcast([response], headerJson(this.chain.tip));
    return true;
  }

  close(): void {
    clearInterval(this.keepAlive);
    for (const response of [...this.tip, ...this.reorg]) response.end();
  }
}

function reorganisationJson(chain: Chain, { depth, oldTip, newTip, stale }: Reorganisation): unknown {
  return {
    orphanedHashes: stale.map((block) => block.hash),
    commonAncestor: headerJson(chain.at(oldTip.height - depth)!),
    oldTip: headerJson(oldTip),
    newTip: headerJson(newTip),
    depth,
    deactivatedHeaders: stale.map(headerJson),
  };
}

function broadcast(clients: Iterable<ServerResponse>, value: unknown): void {
  for (const response of clients) response.write(`data: ${JSON.stringify(value)}\n\n`);
}
