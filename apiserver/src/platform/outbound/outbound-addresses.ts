// Decides where the data plane may connect on behalf of a tenant: to public addresses and to what an operator has
// listed.
import { isIP, isIPv4 } from 'node:net';
import { domainToASCII } from 'node:url';

/** The target of a URL: its host as the URL class formats it, and its port. */
export interface OutboundTarget {
  /** A DNS name or an IP address, the latter without brackets. */
  readonly host: string;
  readonly port: number;
}

interface Network {
  readonly bytes: Uint8Array;
  readonly prefix: number;
}

interface ListedAddress {
  readonly network: Network;
  /** Undefined for every port. */
  readonly port: number | undefined;
}

interface ListedName {
  /** In lower case; for `*.suffix`, the part from the dot. */
  readonly name: string;
  readonly isSuffix: boolean;
  readonly port: number | undefined;
}

/** IPv4-mapped IPv6 (::ffff:0:0/96): the address in the last four bytes, in a different spelling. */
const mappedIpv4: Network = {
  bytes: Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0),
  prefix: 96,
};

/**
 * The IPv4 networks of IANA's special-purpose registry and multicast: none of them contains public Internet servers.
 */
const specialIpv4 = [
  '0.0.0.0/8', // this network
  '10.0.0.0/8', // private
  '100.64.0.0/10', // carrier-grade NAT
  '127.0.0.0/8', // loopback
  '168.63.129.16/32', // Azure's platform, reachable from virtual machines only
  '169.254.0.0/16', // link-local, including cloud metadata services
  '172.16.0.0/12', // private
  '192.0.0.0/24', // protocol assignments
  '192.0.2.0/24', // documentation
  '192.31.196.0/24', // AS112
  '192.52.193.0/24', // AMT
  '192.88.99.0/24', // 6to4 relays
  '192.168.0.0/16', // private
  '192.175.48.0/24', // AS112
  '198.18.0.0/15', // benchmarks
  '198.51.100.0/24', // documentation
  '203.0.113.0/24', // documentation
  '224.0.0.0/4', // multicast
  '240.0.0.0/4', // reserved, including 255.255.255.255
].map(networkOf);

/** The only publicly allocated IPv6 network. Loopback, unique local, link-local, multicast and the rest are outside. */
const globalUnicast = networkOf('2000::/3');

/** The special-purpose networks within it. */
const specialIpv6 = [
  '2001::/23', // protocol assignments: Teredo, benchmarks, ORCHID; its exceptions are not servers
  '2001:db8::/32', // documentation
  '2002::/16', // 6to4: an embedded IPv4 address, possibly private
  '2620:4f:8000::/48', // AS112
  '3fff::/20', // documentation
].map(networkOf);

/** NAT64: leads to the IPv4 address in the last four bytes. */
const translatedIpv4 = networkOf('64:ff9b::/96');

/** Private networks that a listed name may resolve to. */
const privateNetworks = ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'].map(networkOf);

/** Cloud metadata services in private networks; no name may resolve to them. */
const metadataServices = ['fd00:ec2::254/128', 'fd20:ce::254/128'].map(networkOf);

/** Reports whether an address belongs to the public Internet. False for an invalid address. */
export function isPublicAddress(address: string): boolean {
  const bytes = bytesOf(address);
  return bytes !== undefined && isPublic(bytes);
}

/** Hosts and networks that may be connected to although they are not public. */
export class OutboundHosts {
  private readonly addresses: readonly ListedAddress[];
  private readonly names: readonly ListedName[];

  constructor(addresses: readonly ListedAddress[], names: readonly ListedName[]) {
    this.addresses = addresses;
    this.names = names;
  }

  /** Reports whether the host of a URL is itself listed, by name or address, so that TLS is not required. */
  isListed({ host, port }: OutboundTarget): boolean {
    const bytes = bytesOf(host);
    return bytes ? this.isAddressListed(bytes, port) : this.isNameListed(host, port);
  }

  /**
   * Reports whether a connection to `address`, which the target's host resolved to, is allowed: public addresses,
   * listed ones, and private networks under a listed name. The addresses of this machine are allowed only when listed.
   */
  allows({ host, port }: OutboundTarget, address: string, ownAddresses: readonly string[]): boolean {
    const bytes = bytesOf(address);
    if (!bytes) return false;
    if (this.isAddressListed(bytes, port)) return true;
    const isOwn = ownAddresses.some((own) => {
      const ownBytes = bytesOf(own);
      return ownBytes !== undefined && isSame(ownBytes, embeddedIpv4(bytes) ?? bytes);
    });
    if (isOwn) return false;
    if (isPublic(bytes)) return true;
    const isPrivate = isInOneOf(bytes, privateNetworks) && !isInOneOf(bytes, metadataServices);
    return isPrivate && isIP(host) === 0 && this.isNameListed(host, port);
  }

  private isAddressListed(bytes: Uint8Array, port: number): boolean {
    return this.addresses.some(
      (listed) => (listed.port === undefined || listed.port === port) && isIn(bytes, listed.network),
    );
  }

  private isNameListed(host: string, port: number): boolean {
    const name = host.toLowerCase().replace(/\.$/, '');
    return this.names.some(
      (listed) =>
        (listed.port === undefined || listed.port === port) &&
        (listed.isSuffix ? name.endsWith(listed.name) && name !== listed.name : name === listed.name),
    );
  }
}

/**
 * Parses a comma-separated list of names (`host`, `*.suffix`), addresses and CIDR networks; a name or address may have
 * a port (`host:8080`, `[::1]:8080`). Throws an Error that quotes the invalid entry.
 */
export function parseOutboundHosts(text: string): OutboundHosts {
  const addresses: ListedAddress[] = [];
  const names: ListedName[] = [];
  for (const part of text.split(',')) {
    const entry = part.trim();
    if (entry === '') continue;
    const fail = (problem: string): never => {
      throw new Error(`${JSON.stringify(entry)} ${problem}`);
    };
    if (entry.includes('://')) fail('is a URL: use the host alone, or host:port');
    if (entry.includes('/')) {
      addresses.push({ network: listedNetwork(entry, fail), port: undefined });
      continue;
    }
    const [, bracketed, plain = '', portText] =
      isIP(entry) === 6 ? [entry, entry] : (/^(?:\[([^\]]*)\]|([^:[\]]*))(?::(.*))?$/.exec(entry) ?? fail(form));
    const port = portText === undefined ? undefined : Number(portText);
    if (port !== undefined && (!/^\d{1,5}$/.test(portText!) || port < 1 || port > 65_535)) {
      fail('has a port outside 1 to 65535');
    }
    const address = bracketed ?? plain;
    const bytes = bytesOf(address);
    if (bytes) addresses.push({ network: { bytes, prefix: bytes.length * 8 }, port });
    else if (bracketed !== undefined) fail('has no IPv6 address between its brackets');
    else names.push({ ...listedName(plain, fail), port });
  }
  return new OutboundHosts(addresses, names);
}

const form = 'is not a host, host:port, *.suffix, address or CIDR network';

/** Parses the network of an entry such as 10.1.0.0/16. One as large as the Internet is rejected as a mistake. */
function listedNetwork(entry: string, fail: (problem: string) => never): Network {
  const [address = '', prefixText = '', ...rest] = entry.split('/');
  const version = isIP(address);
  if (version === 0 || address.includes('%') || rest.length > 0 || !/^\d{1,3}$/.test(prefixText)) fail(form);
  const network = networkOf(entry);
  if (network.bytes.length === 4 && version === 6) fail('is an IPv4 network in IPv6: write it as IPv4');
  const prefix = Number(prefixText);
  const [least, most] = version === 4 ? [8, 32] : [7, 128];
  if (prefix < least || prefix > most) fail(`has a prefix outside ${least} to ${most}`);
  if (network.bytes.some((byte, index) => (byte & ~maskOf(prefix, index)) !== 0)) fail('has bits set after its prefix');
  return network;
}

function listedName(text: string, fail: (problem: string) => never): { name: string; isSuffix: boolean } {
  const isSuffix = text.startsWith('*.');
  const name = domainToASCII((isSuffix ? text.slice(2) : text).replace(/\.$/, '')).toLowerCase();
  const labels = name.split('.');
  const isName = labels.every((label) => /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/.test(label));
  // A host that ends in a number is an address in URLs, not a name.
  if (!isName || name.length > 253 || /^(\d+|0x[0-9a-f]*)$/.test(labels.at(-1)!)) fail(form);
  return { name: isSuffix ? `.${name}` : name, isSuffix };
}

/**
 * Returns the bytes of an address: four for IPv4, including IPv4-mapped, otherwise sixteen. Undefined for anything
 * else.
 */
function bytesOf(address: string): Uint8Array | undefined {
  if (isIPv4(address)) return Uint8Array.from(address.split('.'), Number);
  if (isIP(address) === 0) return undefined;
  const [text = ''] = address.split('%');
  // A dotted end takes the place of two groups.
  const hexadecimal = text.replace(/(\d+)\.(\d+)\.(\d+)\.(\d+)$/, (_dotted, ...parts: string[]) => {
    const [a, b, c, d] = parts.slice(0, 4).map(Number);
    return `${(a! * 256 + b!).toString(16)}:${(c! * 256 + d!).toString(16)}`;
  });
  const [head = '', tail] = hexadecimal.split('::');
  const groupsOf = (part: string): number[] => (part === '' ? [] : part.split(':').map((group) => parseInt(group, 16)));
  const before = groupsOf(head);
  const after = groupsOf(tail ?? '');
  const groups = [...before, ...Array.from({ length: 8 - before.length - after.length }, () => 0), ...after];
  const bytes = Uint8Array.from(groups.flatMap((group) => [group >> 8, group & 0xff]));
  return isIn(bytes, mappedIpv4) ? bytes.subarray(12) : bytes;
}

function isPublic(bytes: Uint8Array): boolean {
  const ipv4 = embeddedIpv4(bytes);
  if (ipv4) return !isInOneOf(ipv4, specialIpv4);
  return isIn(bytes, globalUnicast) && !isInOneOf(bytes, specialIpv6);
}

/** Returns the IPv4 address that these bytes are or that NAT64 translates them to. */
function embeddedIpv4(bytes: Uint8Array): Uint8Array | undefined {
  if (bytes.length === 4) return bytes;
  return isIn(bytes, translatedIpv4) ? bytes.subarray(12) : undefined;
}

/** Returns the network of a well-formed CIDR text. */
function networkOf(text: string): Network {
  const [address = '', prefix] = text.split('/');
  return { bytes: bytesOf(address)!, prefix: Number(prefix) };
}

const isInOneOf = (bytes: Uint8Array, networks: readonly Network[]): boolean =>
  networks.some((network) => isIn(bytes, network));

function isIn(bytes: Uint8Array, { bytes: base, prefix }: Network): boolean {
  if (bytes.length !== base.length) return false;
  return base.every((byte, index) => ((byte ^ bytes[index]!) & maskOf(prefix, index)) === 0);
}

const isSame = (one: Uint8Array, other: Uint8Array): boolean => Buffer.compare(one, other) === 0;

/** Returns which bits of a byte belong to the prefix. */
function maskOf(prefix: number, index: number): number {
  return (0xff << (8 - Math.max(0, Math.min(8, prefix - index * 8)))) & 0xff;
}
