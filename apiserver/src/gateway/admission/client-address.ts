// Determines the client address of a request: the peer's, or the one that a trusted proxy reports.
import type { IncomingMessage } from 'node:http';
import { isIP } from 'node:net';
import { addressList, isListed } from '../../platform/addresses/address-ranges.ts';
import { plainAddress } from './authorize.ts';

/** Returns the client's address, given the peer's and the request's headers by lower-case name. */
export type AddressOf = (peer: string, header: (name: string) => string | undefined) => string;

/** Returns the client's address, through trusted proxies. */
export const addressOfRequest = (addressOf: AddressOf, request: IncomingMessage): string =>
  addressOf(request.socket.remoteAddress ?? '', (name) => request.headers[name] as string | undefined);

/** Returns whether a peer is a proxy, given the addresses or CIDR ranges of those that are trusted (KELLET_TRUSTED_PROXIES). */
export function trustedProxies(trusted: readonly string[]): (peer: string) => boolean {
  const proxies = addressList(trusted);
  return (peer) => isListed(proxies, plainAddress(peer));
}

/**
 * Returns a resolver of client addresses. `trusted` holds addresses or CIDR ranges of proxies (KELLET_TRUSTED_PROXIES).
 * Walks the addresses in `X-Forwarded-For`, or else in `Forwarded` (RFC 7239), from nearest to farthest: the first one
 * that is not a trusted proxy is the client. Addresses before it were written by the client and prove nothing. Without
 * trusted proxies the headers are ignored. `untrusted` is called once, with the first peer that sends them without
 * being trusted.
 */
export function clientAddresses(trusted: readonly string[], untrusted?: (peer: string) => void): AddressOf {
  let warn = untrusted;
  const notBelieved = (address: string, header: (name: string) => string | undefined): string => {
    if (warn && (header('x-forwarded-for') !== undefined || header('forwarded') !== undefined)) {
      warn(address);
      warn = undefined;
    }
    return address;
  };
  const isProxy = trustedProxies(trusted);
  return (peer, header) => {
    let address = plainAddress(peer);
    if (!isProxy(address)) return notBelieved(address, header);
    const forwardedFor = header('x-forwarded-for');
    const hops = forwardedFor === undefined ? forwardedHops(header('forwarded') ?? '') : forwardedFor.split(',');
    for (const hop of hops.toReversed()) {
      const next = hopAddress(hop);
      // The proxy hides the client, or the hop is not an address: the last known address is used.
      if (next === undefined) return address;
      address = next;
      if (!isProxy(address)) return address;
    }
    return address;
  };
}

/** Splits a comma-separated setting into its ranges. */
export const listOf = (text: string): string[] =>
  text
    .split(',')
    .map((item) => item.trim())
    .filter((item) => item !== '');

/** Returns the `for` parameters of a Forwarded header, one per hop; empty for hops without one. */
function forwardedHops(text: string): string[] {
  if (text === '') return [];
  return splitOutsideQuotes(text, ',').map((element) => {
    const pair = splitOutsideQuotes(element, ';').find((candidate) => /^\s*for\s*=/i.test(candidate));
    return pair?.slice(pair.indexOf('=') + 1) ?? '';
  });
}

function splitOutsideQuotes(text: string, separator: string): string[] {
  const parts: string[] = [];
  let isQuoted = false;
  let start = 0;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === '"') isQuoted = !isQuoted;
    else if (text[at] === separator && !isQuoted) {
      parts.push(text.slice(start, at));
      start = at + 1;
    }
  }
  return [...parts, text.slice(start)];
}

/**
 * Parses the address of a hop, which may be quoted and have a port: `192.0.2.1`, `192.0.2.1:80`, `[2001:db8::1]:80`,
 * `2001:db8::1`.
 */
function hopAddress(hop: string): string | undefined {
  const text = hop.trim().replace(/^"(.*)"$/, '$1');
  const address = /^\[([^\]]+)\](?::\d+)?$/.exec(text)?.[1] ?? /^(\d+\.\d+\.\d+\.\d+):\d+$/.exec(text)?.[1] ?? text;
  return isIP(address) === 0 || address.includes('%') ? undefined : plainAddress(address);
}
