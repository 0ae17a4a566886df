// Keeps connections on behalf of tenants away from this machine and its neighbours. A URL is checked before any lookup,
// and every address from DNS is checked at the time of connecting, so that DNS rebinding has no effect.
import dns from 'node:dns';
import http from 'node:http';
import https from 'node:https';
import { isIP, type LookupFunction } from 'node:net';
import os from 'node:os';
import { cutOff, limitPieces } from '../cut-off.ts';
import { SpentTimes } from '../metered-connection.ts';
import { connectMetered } from './connect-metered.ts';
import { dnsNames, type Resolve } from './dns-names.ts';
import type { OutboundHosts, OutboundTarget } from './outbound-addresses.ts';

/** The host of a URL has no address, or one that must not be connected to. Does not reveal which. */
export class BlockedAddressError extends Error {
  constructor(host: string) {
    super(`${host} has no address that may be connected to`);
    this.name = 'BlockedAddressError';
  }
}

/** Why a URL may not be called: malformed, neither https nor http to a listed host, with a user, or a blocked address. */
export type UrlProblem = 'malformed' | 'scheme' | 'user' | 'address';

/** Returns the code of an error that is about TLS or the server's certificate, otherwise undefined. */
export function certificateErrorCode(error: unknown): string | undefined {
  const code = error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
  return /CERT|SELF_SIGNED|SSL|TLS|UNABLE_TO/.test(code) ? code : undefined;
}

/** How long the addresses of the machine's interfaces are cached. */
const interfacesMilliseconds = 10_000;

/** Names of which it is known where they lead (RFC 6761, 6.3). */
const localName = /(^|\.)localhost\.?$/;
const localAddresses = ['127.0.0.1', '::1'];

/** Interim responses to a request: servers send one or two. */
const mostInterim = 10;

/** The time that is spent on servers, by owner: a fifth. */
const times = new SpentTimes(0.2, 100);

/** Decides where requests may go. */
export class OutboundGuard {
  private readonly hosts: OutboundHosts;
  private readonly resolve: Resolve;
  private readonly resolveListed: Resolve;
  private readonly interfaces: () => readonly string[];
  private own: readonly string[] = [];
  private ownUntil = -Infinity;

  /**
   * `resolve` resolves names; by default, those that tenants choose by DNS queries and those of listed hosts as the
   * machine does (/etc/hosts, search domains).
   */
  constructor(hosts: OutboundHosts, options: { resolve?: Resolve; interfaces?: () => readonly string[] } = {}) {
    this.hosts = hosts;
    this.resolve = options.resolve ?? dnsNames();
    this.resolveListed = options.resolve ?? dns.lookup;
    this.interfaces = options.interfaces ?? interfaceAddresses;
  }

  /** Returns why a URL may not be called, or undefined. A host name, but localhost, is checked only when it is looked up. */
  problemOf(text: string): UrlProblem | undefined {
    const url = URL.parse(text);
    if (!url) return 'malformed';
    const target = targetOf(url);
    if (url.protocol !== 'https:' && !(url.protocol === 'http:' && this.hosts.isListed(target))) return 'scheme';
    if (url.username !== '' || url.password !== '') return 'user';
    const known = isIP(target.host) !== 0 ? [target.host] : localName.test(target.host) ? localAddresses : undefined;
    return known && !known.some((address) => this.allows(target, address)) ? 'address' : undefined;
  }

  /**
   * Begins a request to a URL, on behalf of an owner, for example a tenant. It uses a new connection, since a kept one may have been
   * made for another tenant and was not checked for this URL. The request fails if the server makes work of a response that honest
   * ones do not make.
   */
  request(url: URL, options: http.RequestOptions, owner: string): http.ClientRequest {
    const { request } = url.protocol === 'https:' ? https : http;
    const sent = request(url, { ...options, ...this.connectionTo(url, owner, options.signal) });
    limitAnswers(sent);
    return sent;
  }

  /** Returns the options of a request to this URL that make it connect only where it may, and on behalf of an owner. */
  connectionTo(url: URL, owner: string, signal: AbortSignal | undefined): http.RequestOptions {
    const lookup = this.lookupFor(url);
    if (url.protocol !== 'https:') return { agent: false, lookup };
    return {
      createConnection: (_options, done) =>
        void connectMetered({ ...targetOf(url), lookup, owner, times }, signal, done),
    };
  }

  /**
   * Returns the `lookup` for a request to this URL, which yields the addresses to connect to. It fails with
   * BlockedAddressError if there are none or one of them is blocked.
   */
  lookupFor(url: URL): LookupFunction {
    const target = targetOf(url);
    const resolve = this.hosts.isListed(target) ? this.resolveListed : this.resolve;
    return (name, options, done) => {
      resolve(name, { ...options, all: true }, (error, addresses) => {
        if (error || addresses.length === 0 || addresses.some(({ address }) => !this.allows(target, address))) {
          return done(new BlockedAddressError(target.host), '', 0);
        }
        if (options.all) return done(null, addresses);
        done(null, addresses[0]!.address, addresses[0]!.family);
      });
    };
  }

  private allows(target: OutboundTarget, address: string): boolean {
    const now = performance.now();
    if (now >= this.ownUntil) {
      this.own = this.interfaces();
      this.ownUntil = now + interfacesMilliseconds;
    }
    return this.hosts.allows(target, address, this.own);
  }
}

/**
 * Cuts off a server that sends very many interim responses (1xx) or pieces of a body: thousands of them fit into one read of a
 * connection, and each takes 2 to 6 µs.
 */
function limitAnswers(request: http.ClientRequest): void {
  let interim = 0;
  request.on('information', () => {
    interim += 1;
    if (interim > mostInterim) cutOff(request.socket!);
  });
  request.once('response', (response) => limitPieces(response));
}

function targetOf(url: URL): OutboundTarget {
  const host = url.hostname.replace(/^\[|\]$/g, '');
  return { host, port: Number(url.port) || (url.protocol === 'https:' ? 443 : 80) };
}

function interfaceAddresses(): string[] {
  return Object.values(os.networkInterfaces()).flatMap((list) => list?.map(({ address }) => address) ?? []);
}
