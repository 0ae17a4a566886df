// Keeps connections on behalf of tenants away from this machine and its neighbours. A URL is judged before anything is
// looked up, and every address that DNS gives is judged at the moment of connecting, so that DNS cannot change its mind.
import dns from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import os from 'node:os';
import type { OutboundHosts, OutboundTarget } from './outbound-addresses.ts';

/** The host of a URL has no address, or one that must not be connected to. Which of them it is, is not said. */
export class BlockedAddressError extends Error {
  constructor(host: string) {
    super(`${host} has no address that may be connected to`);
    this.name = 'BlockedAddressError';
  }
}

/** All addresses of a name, as dns.lookup gives them. */
export type Resolve = (
  name: string,
  options: dns.LookupAllOptions,
  done: (error: NodeJS.ErrnoException | null, addresses: dns.LookupAddress[]) => void,
) => void;

/** How long the addresses of the machine's interfaces are believed. */
const interfacesMilliseconds = 10_000;

/** Judges where requests lead. */
export class OutboundGuard {
  private readonly hosts: OutboundHosts;
  private readonly resolve: Resolve;
  private readonly interfaces: () => readonly string[];
  private own: readonly string[] = [];
  private ownUntil = -Infinity;

  constructor(hosts: OutboundHosts, options: { resolve?: Resolve; interfaces?: () => readonly string[] } = {}) {
    this.hosts = hosts;
    this.resolve = options.resolve ?? dns.lookup;
    this.interfaces = options.interfaces ?? interfaceAddresses;
  }

  /** Whether the host of the URL may be spoken to without TLS: only if it is listed. */
  allowsPlainText(url: URL): boolean {
    return this.hosts.isListed(targetOf(url));
  }

  /** Whether the URL names an address that must not be connected to. What a name leads to shows when it is looked up. */
  isBlocked(url: URL): boolean {
    const target = targetOf(url);
    return isIP(target.host) !== 0 && !this.allows(target, target.host);
  }

  /**
   * The `lookup` of a request to this URL: gives the addresses that the request then connects to. Fails with
   * BlockedAddressError when there are none, or when one of them is blocked.
   */
  lookupFor(url: URL): LookupFunction {
    const target = targetOf(url);
    return (name, options, done) => {
      this.resolve(name, { ...options, all: true }, (error, addresses) => {
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

function targetOf(url: URL): OutboundTarget {
  const host = url.hostname.replace(/^\[|\]$/g, '');
  return { host, port: Number(url.port) || (url.protocol === 'https:' ? 443 : 80) };
}

function interfaceAddresses(): string[] {
  return Object.values(os.networkInterfaces()).flatMap((list) => list?.map(({ address }) => address) ?? []);
}
