// Keeps connections on behalf of tenants away from this machine and its neighbours. A URL is checked before any lookup,
// and every address from DNS is checked at the time of connecting, so that DNS rebinding has no effect.
import dns from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import os from 'node:os';
import { dnsNames, type Resolve } from './dns-names.ts';
import type { OutboundHosts, OutboundTarget } from './outbound-addresses.ts';

/** The host of a URL has no address, or one that must not be connected to. Does not reveal which. */
export class BlockedAddressError extends Error {
  constructor(host: string) {
    super(`${host} has no address that may be connected to`);
    this.name = 'BlockedAddressError';
  }
}

/** How long the addresses of the machine's interfaces are cached. */
const interfacesMilliseconds = 10_000;

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

  /** Reports whether the host of the URL may be contacted without TLS: only if it is listed. */
  allowsPlainText(url: URL): boolean {
    return this.hosts.isListed(targetOf(url));
  }

  /**
   * Reports whether the URL contains an address that must not be connected to. A name is checked when it is looked up.
   */
  isBlocked(url: URL): boolean {
    const target = targetOf(url);
    return isIP(target.host) !== 0 && !this.allows(target, target.host);
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

function targetOf(url: URL): OutboundTarget {
  const host = url.hostname.replace(/^\[|\]$/g, '');
  return { host, port: Number(url.port) || (url.protocol === 'https:' ? 443 : 80) };
}

function interfaceAddresses(): string[] {
  return Object.values(os.networkInterfaces()).flatMap((list) => list?.map(({ address }) => address) ?? []);
}
